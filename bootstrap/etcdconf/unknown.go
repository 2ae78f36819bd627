package etcdconf

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// sidecarKeys are meant for the sidecar. The operator puts them into every configuration.
var sidecarKeys = []string{"member-name-prefix", "next-cluster-version-compatible"}

// UnknownKey is a key that etcd does not know.
type UnknownKey struct {
	Key   string // as it is written; "section.key" inside a section
	Meant string // the key of etcd that it looks like, written the same way; empty if there is none
}

// String names the key, and asks whether another one was meant.
func (k UnknownKey) String() string {
	if k.Meant == "" {
		return k.Key
	}
	return fmt.Sprintf("%s (did you mean %s?)", k.Key, k.Meant)
}

func unknownKey(in []string, name string, known map[string]reflect.Type) UnknownKey {
	within := func(name string) string { return strings.Join(append(slices.Clone(in), name), ".") }
	found, best := UnknownKey{Key: within(name)}, 3 // two slips of the finger are no other word
	for candidate := range known {
		edits := distance(plain(name), plain(candidate))
		closer := edits < best || edits == best && found.Meant != "" && within(candidate) < found.Meant
		if closer && 3*edits < len(candidate) {
			found.Meant, best = within(candidate), edits
		}
	}
	return found
}

// plain is a key without what people mix up and nobody sees.
func plain(key string) string { return strings.ToLower(strings.ReplaceAll(key, "_", "-")) }

// distance is how many letters must be put in, taken out or replaced to make b of a (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
