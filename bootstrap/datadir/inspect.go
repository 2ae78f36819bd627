package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v2store"
	"go.etcd.io/raft/v3/raftpb"
)

// Identity identifies the member as configured.
type Identity struct {
	Name           string
	PeerURLs       []string // peer URLs that it advertises
	InitialCluster string   // in etcd's format: name=URL, separated by commas
}

// Inspect rejects data that etcd would open without an error and then serve without some acknowledged writes, or as
// the wrong member. Call it right before etcd opens the directory, even after a successful validation. It moves an
// uninitialized member out of the way, and logs warnings about problems that etcd tolerates. It ignores unreadable
// files: etcd reports them.
func (f *Inspection) Inspect(configured Identity, log zerolog.Logger) error {
	for _, warning := range f.warnings {
		log.Warn().Msg(warning)
	}
	if err := f.inspect(configured, log); err != nil {
		return fmt.Errorf("%w (validation does not check this, nor does the sidecar's)", err)
	}
	return nil
}

func (f *Inspection) inspect(configured Identity, log zerolog.Logger) error {
	if moved, err := f.moveIfUnused(log); err != nil || moved {
		return err
	}
	if f.contentsErr == nil || f.isDBMissing() {
		if err := checkRestore(f.member, f.contents); err != nil {
			return err
		}
	}
	for _, check := range []func() error{
		func() error { return checkCluster(f.member, f.contents) },
		f.checkLength,
		func() error { return f.checkMember(configured, log) },
		f.checkV2Requests,
		f.checkV2Members,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// uninitializedPrefix starts the name to which an uninitialized member's directory is moved.
const uninitializedPrefix = "member.uninitialized-"

// errNoVoter means that the log was lost, or truncated at its start.
var errNoVoter = errors.New("it was lost, cut off or damaged, or belongs to another database")

// moveIfUnused handles a log that names no voter. etcd would open it and wait forever to be elected. Without any log,
// etcd would create a new one, and drop writes until the new log is as long as the old one.
//
// A member is uninitialized if its log names no voter and its database is empty: etcd was killed at the very start of
// its first run. The member has acknowledged no write and cast no vote. moveIfUnused moves its directory out of the
// way, so that etcd starts with an empty one; it deletes nothing. In all other cases the error names what was lost.
func (f *Inspection) moveIfUnused(log zerolog.Logger) (moved bool, err error) {
	if f.wal.readError() != nil || !f.namesNoVoter() {
		return false, nil
	}
	empty, missing := f.contentsErr == nil && f.contents.empty(), errors.Is(f.contentsErr, fs.ErrNotExist)
	switch {
	case len(f.segments()) == 0 && (empty || missing):
		return false, nil // this is the first start
	case empty && f.hasExternalLog():
		return false, nil // moving the directory would leave the log behind
	case empty:
		return true, moveUnused(f.member, log)
	case f.contentsErr == nil || missing:
		return false, lostLog.errorf(f.wal.path, errNoVoter)
	default:
		return false, nil // etcd reports the error of the database
	}
}

func moveUnused(m *member, log zerolog.Logger) error {
	to := filepath.Join(m.root.path, uninitializedPrefix+time.Now().UTC().Format("20060102T150405.000Z"))
	if err := os.Rename(m.dir.path, to); err != nil {
		return fmt.Errorf("cannot move an uninitialized member out of the way: %w", err)
	}
	log.Warn().Str("moved_to", to).Msg("etcd was killed before it had stored anything; it starts without data")
	return nil
}

// checkRestore rejects data whose database is missing or unused and whose log continues a restored one. etcd would
// fill a new database from the log, which lacks the content of the backup.
func checkRestore(m *member, found contents) error {
	segments := m.segments()
	if len(segments) == 0 || segments[0] != firstSegment || !found.unused() {
		return nil
	}
	if head, err := readHead(m.segment(firstSegment)); err != nil || !head.restored {
		return nil //nolint:nilerr // an unreadable log is refused elsewhere
	}
	return lostRestore.errorf(m.wal.path, m.database)
}

// checkCluster rejects a database that belongs to a different cluster than the log: one of them was rolled back,
// copied or mounted without the other. etcd would apply the log to that database, and die on a member that the
// database does not have. A database that has the log's own member needs no further check. Unreadable files are
// rejected elsewhere.
func checkCluster(m *member, found contents) error {
	identity, err := m.identity()
	if err != nil || identity.NodeID == 0 || len(found.members) == 0 || found.hasMember(identity.NodeID) {
		return nil //nolint:nilerr // see above
	}
	named, err := m.membersNamed()
	if err != nil || len(named) == 0 || slices.ContainsFunc(named, found.hasMember) {
		return nil //nolint:nilerr // see above
	}
	return otherCluster.errorf(m.database, m.wal.path)
}

// checkLength rejects a truncated database, and a log that provably lost its end: etcd repairs a damaged log by
// truncating it, and serves without the acknowledged entries after the damage. It ignores unreadable files: etcd
// reports them.
func (f *Inspection) checkLength() error {
	if errors.Is(f.contentsErr, errCutOff) {
		return cutOff.errorf(f.database, f.contentsErr)
	}
	if tail := f.tail(); tail != nil && f.contentsErr == nil {
		return f.contents.checkTail(f.member, tail)
	}
	return nil
}

// checkTail rejects a log whose tail proves that etcd would drop acknowledged entries, or that ends before the
// database's applied index.
//
// In the second case a single member would drop new proposals until the log is as long again. Its log must be
// damaged, because a single member applies an entry only after flushing it. With several members, damage is not
// certain. A follower of etcd 3.6 passes an entry to the database while its log is still being written, if it
// receives the entry and its commitment together (raftNode.start; etcd 3.5.5 and later wait). After a power loss at
// the wrong moment its database is ahead. Such a member has not acknowledged the missing entries and would do no
// harm. But its disk looks exactly as after damage, in which case it has acknowledged entries to a leader that it no
// longer has, and could help to elect a leader that lacks them too. So both are rejected, with the same way out. That
// loses neither data nor the quorum: a majority of logs have every committed entry, so only a minority can lack it.
func (c contents) checkTail(m *member, tail *history) error {
	switch {
	case tail.cut.isLoss(c.single36()):
		return lostTail.errorf(m.segment(m.lastSegment()), tail.cut.at, tail.cut.last, tail.cut.commitClause(), c.applied)
	case tail.last < c.applied && c.voterCount() > 1:
		return shortFollower.errorf(m.wal.path, tail.last, len(c.members), c.applied)
	case tail.last < c.applied:
		return shortLog.errorf(m.wal.path, tail.last, c.applied)
	}
	return nil
}

// checkMember rejects the data directory of another member of this cluster: volumes were mixed up. etcd would take on
// that member's identity, which would then exist twice. For the directory of an unknown member it only logs a
// warning: a restore may have given it any name. It ignores unreadable files: etcd reports them.
func (f *Inspection) checkMember(configured Identity, log zerolog.Logger) error {
	identity, err := f.identity()
	owner, here := f.contents.members[identity.NodeID], configured.PeerURLs
	if err != nil || owner.Name == "" || owner.Name == configured.Name {
		return nil //nolint:nilerr // see above
	}
	if slices.ContainsFunc(owner.PeerURLs, func(url string) bool { return slices.Contains(here, url) }) {
		return nil
	}
	cluster, err := types.NewURLsMap(configured.InitialCluster)
	if _, known := cluster[owner.Name]; err == nil && known {
		return otherMember.errorf(f.root.path, owner.Name, owner.PeerURLs, configured.Name, here)
	}
	log.Warn().Str("recorded_name", owner.Name).Strs("recorded_urls", owner.PeerURLs).Str("name", configured.Name).Strs("urls", here).
		Msg("the data directory was that of a member with another name and other peer URLs; etcd uses it")
	return nil
}

// Members returns the number of members that the data records: those in the database, plus the changes in the log
// that the database has not applied yet.
func (f *Inspection) Members() int {
	members := map[uint64]bool{}
	for id := range f.contents.members {
		members[id] = true
	}
	f.change(members, f.contents.applied, ^uint64(0))
	return len(members)
}

// change applies the membership changes after one entry, up to and including another. A member's value is true if it
// is a voter.
func (f *Inspection) change(members map[uint64]bool, after, until uint64) {
	for _, n := range f.notes {
		if n.change == nil || n.index <= after || n.index > until {
			continue
		}
		switch id := n.change.NodeID; n.change.Type {
		case raftpb.ConfChangeAddNode:
			members[id] = true
		case raftpb.ConfChangeAddLearnerNode:
			members[id] = false
		case raftpb.ConfChangeRemoveNode:
			delete(members, id)
		case raftpb.ConfChangeUpdateNode: // the URLs of the member change
		}
	}
}

// OnlyRestored reports whether the data was restored from a snapshot and no member has run on it yet. The versions
// recorded in its database are then those of the cluster that the snapshot was taken from.
func (f *Inspection) OnlyRestored() bool {
	segments, tail := f.segments(), f.tail()
	if len(segments) != 1 || tail == nil || len(tail.snapshots) == 0 || tail.snapshots[len(tail.snapshots)-1].Index != tail.last {
		return false
	}
	head, err := readHead(f.segment(segments[0]))
	return err == nil && head.restored
}

// checkV2Requests rejects a log with requests on which etcd 3.6 panics at every replay.
func (f *Inspection) checkV2Requests() error {
	for _, n := range f.notes {
		if n.method != "" {
			return v2Request.errorf(f.wal.path, n.method, n.index)
		}
	}
	return nil
}

// checkV2Members rejects data whose two lists of members differ. etcd 3.5 and older keep a list in a second store,
// the v2 store, and rely on that one; etcd 3.6 relies on the database. Older versions have left members in the
// database that were removed long ago, and learners that were promoted. etcd 3.6 uses them as they are, and panics
// when such a member is removed. etcd 3.5.26 and later correct the database when they start.
//
// The v2 store is part of the snapshot that etcd starts from, and later entries change it. A member that one of these
// entries adds is not a leftover: etcd 3.4 may have added it to the database before it recorded there that the entry
// was applied.
func (f *Inspection) checkV2Members() error {
	if f.contentsErr != nil || f.replayErr != nil || f.contents.since36 || len(f.contents.members) < 2 || f.start > f.contents.applied {
		return nil
	}
	members, err := f.v2Members()
	if err != nil {
		return nil //nolint:nilerr // etcd says why it cannot start from its snapshot
	}
	f.change(members, f.start, f.contents.applied)
	for _, id := range slices.Sorted(maps.Keys(f.contents.members)) {
		member := f.contents.members[id]
		switch voter, listed := members[id]; {
		case !listed && !f.adds(id):
			return leftoverMember.errorf(f.database, types.ID(id), member.Name)
		case voter && member.IsLearner:
			return leftoverLearner.errorf(f.database, types.ID(id), member.Name)
		}
	}
	return nil
}

// adds reports whether an entry that the database may not have applied adds the member.
func (f *Inspection) adds(id uint64) bool {
	return slices.ContainsFunc(f.notes, func(n note) bool {
		return n.index > f.contents.applied && n.change != nil && n.change.NodeID == id && n.change.Type != raftpb.ConfChangeRemoveNode
	})
}

// v2Members returns the members in the v2 store of the snapshot that etcd starts from, and whether each is a voter.
func (f *Inspection) v2Members() (map[uint64]bool, error) {
	members := map[uint64]bool{}
	if f.start == 0 {
		return members, nil
	}
	names := f.snapshots()
	content, err := readSnapshot(f.snapshot(names[slices.IndexFunc(names, func(name string) bool {
		index, ok := snapshotIndex(name)
		return ok && index == f.start
	})]))
	if err != nil {
		return nil, err
	}
	store, cluster := v2store.New(), membership.NewCluster(nil)
	cluster.SetStore(store)
	err = recoverPanic(func() error {
		if err := store.Recovery(content.Data); err != nil {
			return err
		}
		cluster.UnsafeLoad() // panics if it cannot parse a member
		return nil
	})
	for _, m := range cluster.Members() {
		members[uint64(m.ID)] = !m.IsLearner
	}
	return members, err
}
