// Package sidecarstore reads the backups that the sidecar, etcd-backup-restore, keeps in an object store: full
// snapshots, which are snapshots of etcd, and deltas, which are the events of a watch. A full snapshot and the
// deltas after it yield the database at any later revision that they cover: the snapshot, and the rows to add to
// its bucket named key.
//
// It reads these objects:
//
//	[v1/|v2/][Backup-<seconds>/]Full-<first>-<last>-<seconds>[.gz|.zlib|.Z][.final]   a snapshot of etcd and its SHA-256
//	[v1/|v2/][Backup-<seconds>/]Incr-<first>-<last>-<seconds>[.gz|.zlib|.Z]           a JSON array of events and its SHA-256
//
// The seconds are Unix time. All other objects are ignored: numbered chunks of uploads, which the stores of this
// program merge into the object itself, and objects in deeper directories, which may belong to another cluster.
// Objects with the tag x-etcd-snapshot-exclude are read like the others, because a listing has no tags.
//
// # Names are hints
//
// Names serve to select objects; their content decides. The name of a full snapshot has a revision that the sidecar
// read before it took the snapshot, so the content may be newer: [Base] has the revision of the database itself.
// Rows up to that revision are not repeated. Two sidecars that wrote at the same time leave deltas that overlap,
// and the rows that both contain must be equal. A revision that no object contains is an archive.ErrNotKept; such
// gaps are common before a full snapshot, because the sidecar discards the events it has collected when it takes
// one.
//
// The time of an event is the time at which the sidecar received it, by its own clock. After a full snapshot that
// took a minute to upload, that may be a minute after the change.
//
// # Why the rows equal those of etcd
//
// etcd numbers the rows of a transaction in the order in which it writes them, and a watch delivers them in that
// order, with one event per row: for a put, for each key of a range that is deleted, and for each key of an expired
// lease. The sidecar watches all keys and stores each event completely, except for the previous value, which it
// does not request. So the revision and the position within it are the row's key, and the key, value, revisions,
// version and lease of the event are the row's value, byte for byte.
//
// There is one exception. An etcd older than 2024 (its issue 18089) that was compacted at the very revision from
// which the sidecar started to watch had already dropped the deletions of that revision. Rows that follow a dropped
// row then have too low a position, and the deleted key still exists.
//
// # What deltas lack
//
// Deltas contain no leases, users, roles, alarms, members, authentication status or compacted revision: these stay
// as they were in the full snapshot. A key whose lease was granted after the full snapshot refers to a lease that
// the restored etcd does not know, and stays until it is deleted or overwritten. A lease that was revoked after the
// full snapshot exists until it expires, without keys. A password that was changed after the full snapshot is the
// previous one again.
package sidecarstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
)

// Object is a full snapshot or a delta, described by its name.
type Object struct {
	Name        string    // name in the store
	Full        bool      // full snapshot if set, otherwise delta
	First, Last int64     // revisions; for a full snapshot, First is 0 and the content may be newer than Last
	Created     time.Time // by the sidecar's clock, rounded down to the second
	Size        int64     // size in the store

	compression string // suffix of the name
}

var namePattern = regexp.MustCompile(`^(?:v[12]/)?(?:Backup-\d+/)?(Full|Incr)-(\d+)-(\d+)-(\d+)((?:\.[A-Za-z0-9]+)*)$`)

// parse returns false for an object that does not belong to the sidecar.
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
	return Object{
		Name: stored.Name, Full: words[1] == "Full", First: numbers[0], Last: numbers[1], Created: time.Unix(numbers[2], 0).UTC(),
		Size: stored.Size, compression: strings.TrimSuffix(words[5], ".final"),
	}, numbers[0] <= numbers[1]
}

// inSequence orders objects by their last revision, as the sidecar does. A full snapshot follows the deltas that lead
// to its revision.
func inSequence(a, b Object) int {
	rank := map[bool]int{true: 1}
	return cmp.Or(cmp.Compare(a.Last, b.Last), rank[a.Full]-rank[b.Full], a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
}

// Archive is a listing of the sidecar's backups in a store. It is safe for concurrent use.
type Archive struct {
	Chains []Chain  // oldest first
	Stray  []Object // deltas older than every full snapshot, which are unusable

	store store.Store
}

// Chain is a full snapshot and the deltas before the next one, according to their names.
type Chain struct {
	Full   Object
	Deltas []Object // ordered by last revision; deltas of two concurrent sidecars may overlap
}

// LastConnected returns the last object that follows the full snapshot without a gap, according to the names. It is
// the full snapshot itself if no delta follows it.
func (c Chain) LastConnected() Object {
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

// List lists the sidecar's backups in s. An empty store yields an empty archive. All errors come from the store.
func List(ctx context.Context, s store.Store) (*Archive, error) {
	listed := &Archive{store: s}
	objects, err := find(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("cannot list the sidecar's backups: %w", err)
	}
	slices.SortFunc(objects, inSequence)
	for _, object := range objects {
		last := len(listed.Chains) - 1
		switch {
		case object.Full:
			listed.Chains = append(listed.Chains, Chain{Full: object})
		case last < 0:
			listed.Stray = append(listed.Stray, object)
		default:
			listed.Chains[last].Deltas = append(listed.Chains[last].Deltas, object)
		}
	}
	return listed, nil
}

// find lists only names that the sidecar uses, because the store may contain many other objects.
func find(ctx context.Context, s store.Store) (objects []Object, err error) {
	for _, prefix := range []string{"Backup-", "Full-", "Incr-", "v1/", "v2/"} {
		for stored, err := range s.List(ctx, prefix, "") {
			if err != nil {
				return nil, err
			}
			if object, ours := parse(stored); ours {
				objects = append(objects, object)
			}
		}
	}
	return objects, nil
}

// FullSnapshots returns the full snapshots from which the target can be reached, the best one first. If one is
// damaged, or reading it returns ErrNewer, the caller tries the next one. The error means that there is none, or
// that all are newer than the target.
func (a *Archive) FullSnapshots(to archive.Target) (fulls []Object, err error) {
	for _, chain := range slices.Backward(a.Chains) {
		if chain.Full.isBefore(to) {
			fulls = append(fulls, chain.Full)
		}
	}
	switch {
	case len(fulls) > 0:
		return fulls, nil
	case len(a.Chains) == 0:
		return nil, fmt.Errorf("%w: %s contains no full backup of the sidecar", archive.ErrNotKept, a.store)
	default:
		oldest := a.Chains[0].Full
		return nil, fmt.Errorf("%w: %s is before the oldest full backup, %s of %s", archive.ErrNotKept, to, oldest.Name,
			oldest.Created.Format(time.RFC3339))
	}
}

// isBefore reports whether a full snapshot is no newer than the target, according to its name.
func (o Object) isBefore(to archive.Target) bool {
	switch {
	case to.Revision > 0:
		return o.Last <= to.Revision
	case !to.Time.IsZero():
		return !o.Created.Add(time.Second).After(to.Time) // the name contains only the second of creation
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
	return slices.SortedStableFunc(slices.Values(deltas), func(a, b Object) int { return cmp.Compare(a.First, b.First) })
}

// Errors of a backup that cannot be used. The others are restore.ErrDamaged, archive.ErrNotKept, and those of the
// store and the context.
var (
	// ErrNewer means that a full snapshot contains later revisions than the target, contrary to its name. An older
	// one is needed.
	ErrNewer = errors.New("full backup is newer than the target")
	// ErrConflict means that two objects contain different changes for one revision. They belong to two clusters, or
	// to one that was rolled back in between.
	ErrConflict = errors.New("backups conflict")
)
