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

// Identity identifies the member as the configuration does.
type Identity struct {
	Name           string
	PeerURLs       []string // that it advertises
	InitialCluster string   // as etcd's configuration has it: name=URL, separated by commas
}

// Inspect refuses data that etcd would open without a word, and serve with less than was acknowledged, or under a
// wrong name. Call it right before etcd opens the directory, even if a validation has passed. It moves an
// uninitialized member out of the way, and logs warnings about what etcd tolerates. Anything unreadable is left to
// etcd, which reports it.
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

// uninitializedPrefix is the prefix of the name that an uninitialized member's directory is moved to.
const uninitializedPrefix = "member.uninitialized-"

// errNoVoter is the reason to refuse a log that was lost, or cut off at its start.
var errNoVoter = errors.New("it was lost, cut off or damaged, or belongs to another database")

// moveIfUnused handles a log that names no voter. etcd would open it and wait forever to be elected; without
// any log it would create a new one, and drop what is written until that is as long as the old one.
//
// A member is uninitialized if its log names no voter and its database is empty: etcd was killed in the first moment
// of its first start. It has acknowledged no write and given no vote. Its directory is moved out of the way, so that
// etcd starts with an empty one; nothing is deleted. In any other case the error names what was lost.
func (f *Inspection) moveIfUnused(log zerolog.Logger) (moved bool, err error) {
	if f.wal.readError() != nil || !f.namesNoVoter() {
		return false, nil
	}
	empty, missing := f.contentsErr == nil && f.contents.empty(), errors.Is(f.contentsErr, fs.ErrNotExist)
	switch {
	case len(f.segments()) == 0 && (empty || missing):
		return false, nil // a first start
	case empty && f.hasExternalLog():
		return false, nil // moving the directory would leave the log behind
	case empty:
		return true, moveUnused(f.member, log)
	case f.contentsErr == nil || missing:
		return false, lostLog.errorf(f.wal.path, errNoVoter)
	default:
		return false, nil // etcd says what is wrong with the database
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

// checkRestore refuses data whose database is missing or unused, and whose log continues a restored one. etcd
// would fill a new database from the log, without the content of the backup.
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

// checkCluster refuses a database of another cluster than the log's: one of them was rolled back, copied or
// mounted without the other. etcd would apply the log to that database, and die of a member that it does not know. A
// database that knows the log's own member needs no further check. Anything unreadable is refused elsewhere.
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

// checkLength refuses a database that was cut off, and a log of which the disk proves that it was: etcd repairs a
// damaged log by cutting it off, and serves without the acknowledged entries behind the damage. Anything unreadable
// is left to etcd, which reports it.
func (f *Inspection) checkLength() error {
	if errors.Is(f.contentsErr, errCutOff) {
		return cutOff.errorf(f.database, f.contentsErr)
	}
	if tail := f.tail(); tail != nil && f.contentsErr == nil {
		return f.contents.checkTail(f.member, tail)
	}
	return nil
}

// checkTail refuses a log whose tail proves that etcd would drop acknowledged entries, or that ends before the
// database.
//
// In the second case a single member would drop what is proposed until the log is as long again. Its log was damaged,
// because such a member applies an entry only after its log was flushed. With several members it need not be damage.
// A follower of etcd 3.6 passes an entry to the database while its log is still being written, if it learns of the
// entry and of its commitment together (raftNode.start; etcd 3.5.5 and later wait). After a power loss at the right
// moment its database is ahead. Such a member has not acknowledged what its log lacks and would do no harm. But its
// disk looks just as after damage, and then it has acknowledged to a leader what it no longer has, and would help to
// elect one that does not have it either. So both are refused, with the same way out. That loses neither data nor the
// quorum: an entry is committed because a majority of logs have it, so only a minority can lack it.
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

// checkMember refuses the data directory of another member of this cluster: volumes were mixed up. etcd would
// take that member's identity, which would exist twice. A directory of an unknown member causes a warning only: a
// restore may have given it any name. Anything unreadable is left to etcd, which reports it.
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

// Members returns how many members the cluster has as far as the data know: those in the database, with the changes that it has
// not applied yet.
func (f *Inspection) Members() int {
	members := map[uint64]bool{}
	for id := range f.contents.members {
		members[id] = true
	}
	f.change(members, f.contents.applied, ^uint64(0))
	return len(members)
}

// change applies the changes of the members after one entry and up to another one. The value of a member is true if it is a
// voter.
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
		case raftpb.ConfChangeUpdateNode: // it has other URLs
		}
	}
}

// OnlyRestored reports whether the data are those of a restored snapshot that no member has run on yet: what the database
// records of versions is about the cluster that the snapshot was taken of.
func (f *Inspection) OnlyRestored() bool {
	segments, tail := f.segments(), f.tail()
	if len(segments) != 1 || tail == nil || len(tail.snapshots) == 0 || tail.snapshots[len(tail.snapshots)-1].Index != tail.last {
		return false
	}
	head, err := readHead(f.segment(segments[0]))
	return err == nil && head.restored
}

// checkV2Requests refuses a log that etcd 3.6 panics over when it replays it, at every start.
func (f *Inspection) checkV2Requests() error {
	for _, n := range f.notes {
		if n.method != "" {
			return v2Request.errorf(f.wal.path, n.method, n.index)
		}
	}
	return nil
}

// checkV2Members refuses data whose two lists of members differ. etcd 3.5 and older list them in a second store, the v2 store,
// and go by that one; etcd 3.6 goes by the database. Older versions have left members in the database that were removed long
// ago, and learners that were promoted. etcd 3.6 takes them over, and panics when such a member is removed. etcd 3.5.26 and later
// correct the database when they start.
//
// The v2 store is in the snapshot that etcd starts from, and the entries after it change it. A member that any of these
// adds is not a leftover: an etcd 3.4 may have added it to the database before it noted there that it had applied the
// entry.
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
		cluster.UnsafeLoad() // panics if it cannot read a member
		return nil
	})
	for _, m := range cluster.Members() {
		members[uint64(m.ID)] = !m.IsLearner
	}
	return members, err
}
