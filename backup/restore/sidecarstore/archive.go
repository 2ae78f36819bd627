// Package sidecarstore reads the backups that the sidecar, etcd-backup-restore, keeps in an object store: full backups, which
// are snapshots of etcd, and deltas, which are the events of a watch. From a full and what follows it comes the database at any
// later revision that is kept: the snapshot, and the rows to be added to its bucket key.
//
// What is read, in the sidecar's words:
//
//	[v1/|v2/][Backup-<seconds>/]Full-<first>-<last>-<seconds>[.gz|.zlib|.Z][.final]   a snapshot of etcd and its SHA-256
//	[v1/|v2/][Backup-<seconds>/]Incr-<first>-<last>-<seconds>[.gz|.zlib|.Z]           a JSON array of events and its SHA-256
//
// The seconds are those of Unix. Numbered objects below such a name are the chunks of an upload; they count only where the
// object itself is empty, as OpenStack's Swift leaves it. Anything else is left alone, and so is what lies deeper, since it may
// belong to another cluster. Objects that were tagged x-etcd-snapshot-exclude are read like the others: a tag can't be seen here.
//
// # What the names say, and what counts
//
// A name is where to look; the content counts. A full's name has the revision of a request before the snapshot, which may be
// newer: [Base] says what the database really holds. Rows up to there are not repeated. Deltas of two sidecars that wrote at the
// same time overlap: what both have must be the same. A revision that is in no object is a [GapError]; such gaps are usual before
// each full, as the sidecar forgets what it has collected when it takes one.
//
// The time of an event is when the sidecar received it, by its own clock: after a full that took a minute to upload, up to a
// minute later than it happened.
//
// # Why the rows are etcd's own
//
// etcd numbers the rows of a transaction as it makes them, and hands them to a watch in the same order, one event a row, whether
// a put, one of many keys of a range that is deleted, or one of an expired lease. The sidecar watches every key and writes down
// all of an event but the previous value, which it does not ask for. So revision and position make the row's key, and the event's
// key, value, revisions, version and lease its value, byte by byte.
//
// One thing cannot be known: an etcd from before 2024 (its issue 18089) that was compacted at the very revision at which the
// sidecar began to watch had dropped that revision's deletions before the watch saw them. The rows behind a dropped one then have
// a position too low, and the key is still there.
//
// # What no delta holds
//
// Leases themselves, users, roles, whether authentication is on, alarms, members and the revision of the last compaction: those
// stay as they were in the full. A key whose lease was granted after the full names a lease that the restored etcd doesn't know,
// and so lives until it is deleted or overwritten. A lease that was revoked after the full is there until it expires, without
// keys. A password that was changed after the full is the old one again.
package sidecarstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"etcd-wrapper/backup/store"
)

// Object is a full snapshot or a delta, described by its name.
type Object struct {
	Name        string    // in the store
	Full        bool      // a snapshot; otherwise a delta
	First, Last int64     // revisions; First is 0 for a full, whose content may be newer than Last
	Created     time.Time // by the sidecar's clock, rounded down to the second
	Final       bool      // the sidecar took it as the last one of its cluster
	Size        int64     // bytes in the store

	compression string   // the suffix
	parts       []string // the objects to read: the object, or its chunks
}

var (
	namePattern  = regexp.MustCompile(`^(?:v[12]/)?(?:Backup-\d+/)?(Full|Incr)-(\d+)-(\d+)-(\d+)((?:\.[A-Za-z0-9]+)*)$`)
	chunkPattern = regexp.MustCompile(`^(.+?)(?:\.chunk)?/\d{10}$`)
)

// parse returns false for an object that is not the sidecar's.
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

// chunkOf returns the name of the object of which name is a chunk, or "".
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

// Archive is a listing of the sidecar's backups in a store. It is safe for concurrent use.
type Archive struct {
	Chains []Chain  // oldest first
	Stray  []Object // deltas older than every full snapshot, which are unusable

	store store.Store
}

// Chain is a full snapshot and the deltas until the next one, by name.
type Chain struct {
	Full   Object
	Deltas []Object // by their last revisions; two sidecars at a time leave some that overlap
}

// Reach returns the last object that the names of the chain connect without a gap: its full snapshot if no delta follows.
func (c Chain) Reach() Object {
	reached := c.Full
	for _, delta := range byFirst(c.Deltas) {
		if delta.First > reached.Last+1 {
			break
		}
		if delta.Last > reached.Last {
			reached = delta
		}
	}
	return reached
}

// List lists the sidecar's backups in s. An empty archive is no error. Errors are those of the store.
func List(ctx context.Context, s store.Store) (*Archive, error) {
	archive := &Archive{store: s}
	objects, err := find(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("cannot list the sidecar's backups: %w", err)
	}
	slices.SortFunc(objects, inSequence)
	for _, object := range objects {
		last := len(archive.Chains) - 1
		switch {
		case object.Full:
			archive.Chains = append(archive.Chains, Chain{Full: object})
		case last < 0:
			archive.Stray = append(archive.Stray, object)
		default:
			archive.Chains[last].Deltas = append(archive.Chains[last].Deltas, object)
		}
	}
	return archive, nil
}

// find lists only names that can be the sidecar's, as much else may be stored next to them.
func find(ctx context.Context, s store.Store) (objects []Object, err error) {
	chunks := map[string][]store.Object{}
	for _, prefix := range []string{"Backup-", "Full-", "Incr-", "v1/", "v2/"} {
		for stored, err := range s.List(ctx, prefix, "") {
			if err != nil {
				return nil, err
			}
			if whole := chunkOf(stored.Name); whole != "" {
				chunks[whole] = append(chunks[whole], stored)
			} else if object, ours := parse(stored); ours {
				objects = append(objects, object)
			}
		}
	}
	for i := range objects {
		objects[i].gather(chunks[objects[i].Name])
	}
	return objects, nil
}

// gather reads chunks in the place of an object that is empty. Chunks of one that isn't are left over from its upload; those
// without an object are an upload that never ended.
func (o *Object) gather(chunks []store.Object) {
	if o.Size > 0 || len(chunks) == 0 {
		return
	}
	o.parts = nil
	for _, chunk := range chunks {
		o.parts = append(o.parts, chunk.Name)
		o.Size += chunk.Size
	}
}

// Target selects the state after Revision, or at Time, or the last one.
type Target struct {
	Revision int64
	Time     time.Time
}

// String describes the target to users.
func (t Target) String() string {
	switch {
	case t.Revision > 0:
		return fmt.Sprintf("revision %d", t.Revision)
	case !t.Time.IsZero():
		return t.Time.UTC().Format(time.RFC3339Nano)
	default:
		return "the last revision"
	}
}

// Fulls returns the full snapshots to start from for a target, the best one first. The next one is used if that is damaged, or turns out
// to be ErrNewer. The error means that none is old enough, or that there is none.
func (a *Archive) Fulls(to Target) (fulls []Object, err error) {
	for _, chain := range slices.Backward(a.Chains) {
		if chain.Full.suits(to) {
			fulls = append(fulls, chain.Full)
		}
	}
	switch {
	case len(fulls) > 0:
		return fulls, nil
	case len(a.Chains) == 0:
		return nil, fmt.Errorf("%w: there is no full backup of the sidecar's in %s", ErrNotKept, a.store)
	default:
		oldest := a.Chains[0].Full
		return nil, fmt.Errorf("%w: %s is before the oldest full backup, %s of %s", ErrNotKept, to, oldest.Name,
			oldest.Created.Format(time.RFC3339))
	}
}

// suits returns false for a full snapshot that is newer than the target, according to its name.
func (o Object) suits(to Target) bool {
	switch {
	case to.Revision > 0:
		return o.Last <= to.Revision
	case !to.Time.IsZero():
		return !o.Created.Add(time.Second).After(to.Time) // the name has the second in which it was taken
	default:
		return true
	}
}

// after returns the deltas with revisions later than the given one, by first revision.
func (a *Archive) after(revision int64) (deltas []Object) {
	for _, chain := range a.Chains {
		deltas = append(deltas, chain.Deltas...)
	}
	deltas = slices.DeleteFunc(append(deltas, a.Stray...), func(o Object) bool { return o.Last <= revision })
	return byFirst(deltas)
}

func byFirst(deltas []Object) []Object {
	return slices.SortedStableFunc(slices.Values(deltas), func(a, b Object) int { return int(min(max(a.First-b.First, -1), 1)) })
}

// Errors of backups, for errors.Is. Any other error comes from the store, or from the context.
var (
	// ErrDamaged: an object is truncated, altered, or not written by a sidecar.
	ErrDamaged = errors.New("damaged backup")
	// ErrNewer: a full snapshot holds later revisions than the target, contrary to its name: an older one is needed.
	ErrNewer = errors.New("full backup is newer than the target")
	// ErrConflict: two objects have different changes for one revision: those of two clusters, or of one that was rolled back in between.
	ErrConflict = errors.New("backups contradict each other")
	// ErrNotKept: no backup leads to the target.
	ErrNotKept = errors.New("not kept")
)

// GapError is an ErrNotKept that names the missing revisions. The last revision that can be reached is From-1.
type GapError struct {
	From, To      int64  // the first and the last that are missing
	Before, After string // the names of the objects between which they are missing
}

// Error implements error.
func (g *GapError) Error() string {
	return fmt.Sprintf("revisions %d to %d are in no backup: they would be between %s and %s", g.From, g.To, g.Before, g.After)
}

// Unwrap returns ErrNotKept.
func (g *GapError) Unwrap() error { return ErrNotKept }

var (
	errSum    = errors.New("the SHA-256 at its end is not that of its content: it is cut off or was altered")
	errSuffix = errors.New("the compression of that suffix is unknown")
	errLarge  = fmt.Errorf("it has an event of more than %d MiB", maxEvent>>20)
)

func damaged(name string, cause error) error {
	if errors.Is(cause, io.EOF) || errors.Is(cause, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %s is cut off", ErrDamaged, name)
	}
	return fmt.Errorf("%w: %s: %w", ErrDamaged, name, cause)
}
