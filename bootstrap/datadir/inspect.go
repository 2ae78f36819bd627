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

// Identity describes the configured member.
type Identity struct {
	Name           string
	PeerURLs       []string // advertised peer URLs
	InitialCluster string   // initial cluster in etcd's format: comma-separated name=URL pairs
}

// Inspect returns an error if etcd would open the data but serve it without some acknowledged writes or as the wrong
// member. Call Inspect right before etcd opens the data directory, even after a successful validation. Inspect moves
// the directory of an uninitialized member away and logs warnings about problems that etcd tolerates. Unreadable
// files are ignored because etcd reports them.
func (f *Inspection) Inspect(configured Identity, log zerolog.Logger) error {
	for _, warning := range f.warnings {
		log.Warn().Msg(warning)
	}
	if err := f.inspect(configured, log); err != nil {
		return fmt.Errorf("%w (neither the validation nor the sidecar checks for this)", err)
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

// uninitializedPrefix is the prefix of the name that moveIfUnused gives the directory of an uninitialized member.
const uninitializedPrefix = "member.uninitialized-"

// errNoVoter explains why the log of an initialized member has no voters.
var errNoVoter = errors.New("the log was lost, truncated or damaged, or belongs to another database")

// moveIfUnused handles a log without voters, because etcd would wait forever for an election. If the log is
// missing, etcd would create a new one and drop writes until the new log is as long as the old one was.
//
// A member is uninitialized if its log has no voters and its database is empty, because etcd was killed at the
// beginning of its first run. An uninitialized member has neither acknowledged a write nor cast a vote. For an
// uninitialized member, moveIfUnused renames the directory, so that etcd starts with an empty one. For any other
// member, moveIfUnused returns an error that describes the loss.
func (f *Inspection) moveIfUnused(log zerolog.Logger) (moved bool, err error) {
	if f.wal.readError() != nil || !f.namesNoVoter() {
		return false, nil
	}
	empty, missing := f.contentsErr == nil && f.contents.empty(), errors.Is(f.contentsErr, fs.ErrNotExist)
	switch {
	case len(f.segments()) == 0 && (empty || missing):
		return false, nil // the member has never been started
	case empty && f.hasExternalLog():
		return false, nil // moving the directory would leave the log behind
	case empty:
		return true, moveUnused(f.member, log)
	case f.contentsErr == nil || missing:
		return false, lostLog.errorf(f.wal.path, errNoVoter)
	default:
		return false, nil // etcd reports the error
	}
}

func moveUnused(m *member, log zerolog.Logger) error {
	to := filepath.Join(m.root.path, uninitializedPrefix+time.Now().UTC().Format("20060102T150405.000Z"))
	if err := os.Rename(m.dir.path, to); err != nil {
		return fmt.Errorf("cannot move the directory of an uninitialized member: %w", err)
	}
	log.Warn().Str("moved_to", to).Msg("etcd was killed before it stored any data; starting with an empty data directory")
	return nil
}

// checkRestore returns an error if the database is missing or unused and the log belongs to a restored database.
// Without this check, etcd would replay the log into a new database that does not contain the data from the backup.
func checkRestore(m *member, found contents) error {
	segments := m.segments()
	if len(segments) == 0 || segments[0] != firstSegment || !found.unused() {
		return nil
	}
	if head, err := readHead(m.segment(firstSegment)); err != nil || !head.restored {
		return nil //nolint:nilerr // other checks reject an unreadable log
	}
	return lostRestore.errorf(m.database, m.wal.path)
}

// checkCluster returns an error if the database and the log belong to different clusters. One of them may have been
// rolled back, copied or mounted without the other. Without this check, etcd would apply the log to the wrong
// database and exit at the first entry that refers to an unknown member. If the database contains the member that
// wrote the log, no further check is needed. Unreadable files are reported by other checks.
func checkCluster(m *member, found contents) error {
	identity, err := m.identity()
	if err != nil || identity.NodeID == 0 || len(found.members) == 0 || found.hasMember(identity.NodeID) {
		return nil //nolint:nilerr // other checks report an unreadable file
	}
	named, err := m.membersNamed()
	if err != nil || len(named) == 0 || slices.ContainsFunc(named, found.hasMember) {
		return nil //nolint:nilerr // other checks report an unreadable file
	}
	return otherCluster.errorf(m.database, m.wal.path)
}

// checkLength returns an error if the database is truncated or if entries are known to be missing from the end of
// the log. etcd repairs a damaged log by truncating it, which drops the acknowledged entries after the damage.
// Unreadable files are ignored because etcd reports them.
func (f *Inspection) checkLength() error {
	if errors.Is(f.contentsErr, errCutOff) {
		return cutOff.errorf(f.database, f.contentsErr)
	}
	if tail := f.tail(); tail != nil && f.contentsErr == nil {
		return f.contents.checkTail(f.member, tail)
	}
	return nil
}

// checkTail returns an error if etcd is certain to drop acknowledged entries, or if the log ends before the applied
// index of the database.
//
// If the log of a single member ends before the applied index, etcd would drop new proposals until the log reaches
// that index again. The log must be damaged, because a single member applies entries only after syncing them.
//
// In a multi-member cluster, a log that ends before the applied index is not necessarily damaged. A follower running
// etcd 3.6 can apply an entry while the log is still being written, if the entry and the commit index arrive
// together. See raftNode.start. etcd 3.5.5 and later 3.5 releases wait for the log. If the power fails at the wrong
// moment, the database is ahead of the log, but the missing entries were never acknowledged, so starting the member
// is harmless. However, the files look the same if the disk damaged entries that the member had acknowledged, and
// such a member could vote for a leader that lacks those entries, too.
//
// checkTail therefore rejects every log that ends before the applied index. Rejecting an undamaged log is safe: a
// majority of the members has every committed entry in the log, so neither data nor the quorum is lost.
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

// checkMember returns an error if the data directory belongs to another member of this cluster, for example after
// volumes were swapped. Without this check, two members could run with the same identity. If the initial cluster does
// not contain the recorded name, checkMember only logs a warning, because a restore can use any name. Unreadable
// files are ignored because etcd reports them.
func (f *Inspection) checkMember(configured Identity, log zerolog.Logger) error {
	identity, err := f.identity()
	owner, here := f.contents.members[identity.NodeID], configured.PeerURLs
	if err != nil || owner.Name == "" || owner.Name == configured.Name {
		return nil //nolint:nilerr // etcd reports an unreadable file
	}
	if slices.ContainsFunc(owner.PeerURLs, func(url string) bool { return slices.Contains(here, url) }) {
		return nil
	}
	cluster, err := types.NewURLsMap(configured.InitialCluster)
	if _, known := cluster[owner.Name]; err == nil && known {
		return otherMember.errorf(f.root.path, owner.Name, owner.PeerURLs, configured.Name, here)
	}
	log.Warn().Str("recorded_name", owner.Name).Strs("recorded_urls", owner.PeerURLs).Str("name", configured.Name).Strs("urls", here).
		Msg("the data directory belongs to a member with a different name and peer URLs; using it anyway")
	return nil
}

// Members returns the number of members in the database after the membership changes in the log are applied.
func (f *Inspection) Members() int {
	members := map[uint64]bool{}
	for id := range f.contents.members {
		members[id] = true
	}
	f.change(members, f.contents.applied, ^uint64(0))
	return len(members)
}

// change applies the membership changes in all entries with an index in the range (after, until] to members, which
// maps the ID of each member to whether the member is a voter.
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
		case raftpb.ConfChangeUpdateNode: // only the URLs change
		}
	}
}

// OnlyRestored reports whether the data was restored from a snapshot and no member has used it since. The cluster
// versions in such data are those of the original cluster and do not show which etcd version the other members run.
func (f *Inspection) OnlyRestored() bool {
	segments, tail := f.segments(), f.tail()
	if len(segments) != 1 || tail == nil || len(tail.snapshots) == 0 || tail.snapshots[len(tail.snapshots)-1].Index != tail.last {
		return false
	}
	head, err := readHead(f.segment(segments[0]))
	return err == nil && head.restored
}

// checkV2Requests returns an error if the log contains requests that make etcd 3.6 panic on every replay.
func (f *Inspection) checkV2Requests() error {
	for _, n := range f.notes {
		if n.method != "" {
			return v2Request.errorf(f.wal.path, n.method, n.index)
		}
	}
	return nil
}

// checkV2Members returns an error if the member lists in the database and in the v2 store differ. etcd 3.5 and
// earlier rely on the list in the v2 store, but etcd 3.6 relies on the list in the database. The list in the
// database may still contain members that were removed long ago, and learners that have been promoted. etcd 3.6
// uses the database list as is and panics when an outdated member is removed from the cluster. etcd 3.5.26 and
// later 3.5 releases correct the database at startup.
//
// The v2 store is part of the snapshot from which etcd starts, and the entries after the snapshot change it. The
// database may contain a member added by an entry that is not recorded as applied, because etcd 3.4 may have added
// the member first.
func (f *Inspection) checkV2Members() error {
	if f.contentsErr != nil || f.replayErr != nil || f.contents.since36 || len(f.contents.members) < 2 || f.start > f.contents.applied {
		return nil
	}
	members, err := f.v2Members()
	if err != nil {
		return nil //nolint:nilerr // etcd reports why it cannot start from its snapshot
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

// adds reports whether the member is added by an entry that may not have been applied.
func (f *Inspection) adds(id uint64) bool {
	return slices.ContainsFunc(f.notes, func(n note) bool {
		return n.index > f.contents.applied && n.change != nil && n.change.NodeID == id && n.change.Type != raftpb.ConfChangeRemoveNode
	})
}

// v2Members returns the members in the v2 store of the snapshot from which etcd starts. The map contains the ID of
// each member and whether the member is a voter.
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
		cluster.UnsafeLoad() // panics if a member cannot be parsed
		return nil
	})
	for _, m := range cluster.Members() {
		members[uint64(m.ID)] = !m.IsLearner
	}
	return members, err
}
