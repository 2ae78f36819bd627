package sidecarstore

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"
	"time"

	"etcd-wrapper/backup/store"
)

// Object is a full backup or a delta, by its name.
type Object struct {
	Name        string    // in the store
	Full        bool      // a snapshot; otherwise a delta
	First, Last int64     // revisions; First is 0 for a full, whose content may be newer than Last
	Created     time.Time // by the sidecar's clock, rounded down to the second
	Final       bool      // the sidecar took it as the last one of its cluster
	Size        int64     // bytes in the store

	compression string   // the suffix
	parts       []string // what is read: the object, or its chunks
}

var (
	namePattern  = regexp.MustCompile(`^(?:v[12]/)?(?:Backup-\d+/)?(Full|Incr)-(\d+)-(\d+)-(\d+)((?:\.[A-Za-z0-9]+)*)$`)
	chunkPattern = regexp.MustCompile(`^(.+?)(?:\.chunk)?/\d{10}$`)
)

// parse is false for an object that is none of the sidecar's.
func parse(stored store.Object) (object Object, ours bool) {
	words := namePattern.FindStringSubmatch(stored.Name)
	if words == nil {
		return Object{}, false
	}
	var numbers [3]int64
	for i := range numbers {
		number, err := strconv.ParseInt(words[2+i], 10, 64)
		if err != nil {
			return Object{}, false
		}
		numbers[i] = number
	}
	suffix, final := strings.CutSuffix(words[5], ".final")
	return Object{
		Name: stored.Name, Full: words[1] == "Full", First: numbers[0], Last: numbers[1], Created: time.Unix(numbers[2], 0).UTC(),
		Final: final, Size: stored.Size, compression: suffix, parts: []string{stored.Name},
	}, numbers[0] <= numbers[1]
}

// chunkOf is the name of the object that is uploaded with name as a chunk; empty if name is no chunk.
func chunkOf(name string) string {
	words := chunkPattern.FindStringSubmatch(name)
	if words == nil {
		return ""
	}
	return words[1]
}

// inSequence orders objects as the sidecar does, by the last revision. A full comes after the deltas that lead to its revision.
func inSequence(a, b Object) int {
	full := func(o Object) int {
		if o.Full {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(a.Last, b.Last), full(a)-full(b), a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
}
