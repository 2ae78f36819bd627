// Package sidecarstore reads backups made by the sidecar, etcd-backup-restore, from an object store. A full snapshot
// is an etcd snapshot, and a delta contains the events of a watch. From a full snapshot and the deltas that follow
// it, a restore can build the database at any later revision that the deltas cover, by adding the rows from the
// deltas to the snapshot's key bucket.
//
// Object names have the following format:
//
//	[v1/|v2/][Backup-<seconds>/]Full-<first>-<last>-<seconds>[.gz|.zlib|.Z][.final]   a snapshot of etcd and its SHA-256
//	[v1/|v2/][Backup-<seconds>/]Incr-<first>-<last>-<seconds>[.gz|.zlib|.Z]           a JSON array of events and its SHA-256
//
// The seconds are Unix time. All other objects are ignored, including numbered upload chunks, which stores merge into
// the object itself, and objects in deeper directories, which may belong to another cluster. Objects with the
// x-etcd-snapshot-exclude tag are not ignored, because listings do not contain tags.
//
// # Names are hints
//
// Names only help to select objects; the content decides. The sidecar reads the revision in the name of a full
// snapshot before it takes the snapshot, so the content may be newer. [Base] contains the revision of the database
// itself, and rows up to that revision are not repeated. Two concurrent sidecars create overlapping deltas, in which
// common rows must be equal. A revision that no object contains causes archive.ErrNotKept. Gaps are common before a
// full snapshot, because the sidecar discards its collected events when it takes a snapshot.
//
// The time of an event is the time at which the sidecar received the event, according to the sidecar's clock. After a
// full snapshot that takes a minute to upload, this time may be a minute late.
//
// # Why the rows equal etcd's rows
//
// etcd numbers the rows of a transaction in the order of its writes, and a watch delivers one event per row in the same
// order: for each put, for each deleted key of a range, and for each key of an expired lease. The sidecar watches all
// keys and stores complete events, except for previous values, which it does not request. Therefore the revision and
// the position within the revision form the row's key, and the key, value, revisions, version and lease of the event
// form the row's value, byte for byte.
//
// There is one exception: etcd versions before 2024 (etcd issue 18089) drop the deletions in the revision at which a
// watch starts if that revision was compacted. If the sidecar's watch starts at a compacted revision, rows after a
// dropped row get positions that are too low, and the deleted key still exists.
//
// # Limits of deltas
//
// Deltas do not contain leases, users, roles, alarms, members, the authentication status or the compacted revision.
// After a restore, all of this data is as it was in the full snapshot. A key whose lease was granted after the full
// snapshot refers to an unknown lease and exists until the key is deleted or overwritten. A lease that was revoked
// after the full snapshot exists without keys until it expires. A password that was changed after the full snapshot
// is reset to the previous one.
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

// Object is a full snapshot or a delta, as described by its name.
type Object struct {
	Name        string    // name in the store
	Full        bool      // full snapshot if true, otherwise delta
	First, Last int64     // revisions; for a full snapshot, First is 0 and the content may be newer than Last
	Created     time.Time // according to the sidecar's clock, rounded down to the second
	Size        int64     // size in the store

	compression string // suffix of the name
}

var namePattern = regexp.MustCompile(`^(?:v[12]/)?(?:Backup-\d+/)?(Full|Incr)-(\d+)-(\d+)-(\d+)((?:\.[A-Za-z0-9]+)*)$`)

// parse returns false for an object that the sidecar did not create.
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

// inSequence orders objects by last revision, like the sidecar. A full snapshot follows the deltas up to its
// revision.
func inSequence(a, b Object) int {
	rank := map[bool]int{true: 1}
	return cmp.Or(cmp.Compare(a.Last, b.Last), rank[a.Full]-rank[b.Full], a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
}

// Archive is a listing of the sidecar's backups in a store. An Archive is safe for concurrent use.
type Archive struct {
	Chains []Chain  // oldest first
	Stray  []Object // unusable deltas that are older than every full snapshot

	store store.Store
}

// Chain is a full snapshot and the deltas before the next full snapshot, according to their names.
type Chain struct {
	Full   Object
	Deltas []Object // ordered by last revision; concurrent sidecars may create overlapping deltas
}

// LastConnected returns the last object that follows the full snapshot without a gap, according to the names, or the
// full snapshot itself if no delta follows.
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

// find lists only the prefixes that the sidecar uses, because the store may contain many other objects.
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

// FullSnapshots returns the full snapshots from which the target can be reached, best first. If a snapshot is damaged
// or reading it returns ErrNewer, the caller tries the next one. FullSnapshots returns an error if there are no full
// snapshots or all of them are newer than the target.
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
		return nil, fmt.Errorf("%w: no full snapshots from the sidecar in %s", archive.ErrNotKept, a.store)
	default:
		oldest := a.Chains[0].Full
		return nil, fmt.Errorf("%w: %s is older than the oldest full snapshot (%s, created %s)", archive.ErrNotKept, to, oldest.Name,
			oldest.Created.Format(time.RFC3339))
	}
}

// isBefore reports whether a full snapshot is no newer than the target, according to its name.
func (o Object) isBefore(to archive.Target) bool {
	switch {
	case to.Revision > 0:
		return o.Last <= to.Revision
	case !to.Time.IsZero():
		return !o.Created.Add(time.Second).After(to.Time) // the name contains the creation time in seconds
	default:
		return true
	}
}

// after returns the deltas that contain revisions after the given one, ordered by first revision.
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

// Errors about unusable backups. Functions also return restore.ErrDamaged, archive.ErrNotKept, and errors from the
// store and the context.
var (
	// ErrNewer means that a full snapshot contains later revisions than the target, contrary to its name. An older
	// full snapshot is needed.
	ErrNewer = errors.New("full snapshot is newer than the target")
	// ErrConflict means that two objects contain different changes for the same revision, because they belong to two
	// clusters or the cluster was rolled back.
	ErrConflict = errors.New("backups conflict")
)
