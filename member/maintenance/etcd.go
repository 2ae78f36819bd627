package maintenance

import (
	"cmp"
	"context"
	"expvar"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"

	"etcd-wrapper/internal/disk"
)

// cluster is the part of etcd that a Maintainer uses.
type cluster interface {
	facts() facts
	Defragment() error // blocks until the defragmentation has finished
	copySize() int64   // returns how many bytes a running defragmentation has copied
	successor() (to peer, ok bool)
	handOver(ctx context.Context, to peer) error
	waitApplied(ctx context.Context) error             // returns once all committed entries are applied
	disarm(ctx context.Context, member types.ID) error // disarms the NOSPACE alarm of a member
	isAdmin(ctx context.Context) bool                  // reports whether the client is allowed to defragment and transfer leadership
}

// embedded implements cluster by calling the etcd in this process directly, which requires no certificates or
// authentication. Defragment goes through the server rather than the backend, because only the server ensures that a
// snapshot from the leader does not replace the database at the same time.
type embedded struct {
	*etcdserver.EtcdServer
	options *Options
}

func (e embedded) facts() facts {
	f := facts{
		quota: e.options.Quota, self: e.MemberID(), leader: e.Leader(),
		members: e.members(), sending: e.options.Sending(), readers: e.options.Gate.Inside(),
	}
	f.room, f.volume = space(e.Cfg.SnapDir())
	for _, alarm := range e.Alarms() {
		switch alarm.Alarm {
		case etcdserverpb.AlarmType_CORRUPT:
			f.corrupt = true
		case etcdserverpb.AlarmType_NOSPACE:
			f.full = append(f.full, types.ID(alarm.MemberID))
		case etcdserverpb.AlarmType_NONE:
		}
	}
	slices.Sort(f.full)
	if f.noSpace() {
		// Pages that a reader held during a compaction count as in use until the next commit. While the alarm blocks
		// writes, nothing else triggers a commit.
		e.Backend().ForceCommit()
	}
	f.size, f.inUse = e.Backend().Size(), e.Backend().SizeInUse()
	return f
}

func (e embedded) members() (all []peer) {
	self, active := e.MemberID(), e.options.Active(e.MemberID())
	for _, m := range e.Cluster().Members() {
		name, isActive := cmp.Or(m.Name, m.ID.String()), m.ID == self || active[m.ID]
		all = append(all, peer{id: m.ID, name: name, learner: m.IsLearner, active: isActive})
	}
	return all
}

// space returns, in bytes, the free space on the volume that contains dir and the size of the volume, or negative
// numbers if unknown.
func space(dir string) (free, size int64) {
	free, size, err := disk.Space(dir)
	if err != nil {
		return -1, -1
	}
	return free, size
}

func (e embedded) copySize() int64 { return copySize(e.Cfg.SnapDir()) }

// copySize returns the size of the temporary file to which etcd copies the database during a defragmentation, or 0 if
// there is none.
func copySize(dir string) (size int64) {
	files, _ := fs.Glob(os.DirFS(dir), "db.tmp.*") // fails only if the pattern is malformed
	for _, file := range files {
		if info, err := os.Stat(filepath.Join(dir, file)); err == nil {
			size = max(size, info.Size())
		}
	}
	return size
}

// maxBacklog is the maximum number of unapplied entries with which a member still counts as caught up. Under load,
// there are always some.
const maxBacklog = 50

func (e embedded) waitApplied(ctx context.Context) error {
	isApplied := func() bool { return e.AppliedIndex()+maxBacklog >= e.CommittedIndex() }
	if err := poll(ctx, appliedPoll, e.StopNotify(), isApplied); err != nil {
		return fmt.Errorf("%d committed entries have not been applied yet: %w", e.CommittedIndex()-e.AppliedIndex(), err)
	}
	return nil
}

const (
	appliedPoll = 10 * time.Millisecond
	// pollInterval is the polling interval for events that are expected within milliseconds.
	pollInterval = time.Millisecond
)

// poll waits until done returns true. It returns an error if ctx is done or etcd stops first.
func poll(ctx context.Context, interval time.Duration, stopped <-chan struct{}, done func() bool) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for !done() {
		select {
		case <-ticker.C:
		case <-stopped:
			return errNotServing
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (e embedded) disarm(ctx context.Context, member types.ID) error {
	_, err := e.Alarm(ctx, &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_DEACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE, MemberID: uint64(member),
	})
	return err
}

func (e embedded) isAdmin(ctx context.Context) bool {
	user, err := e.AuthInfoFromCtx(ctx)
	return err == nil && e.AuthStore().IsAdminPermitted(user) == nil
}

// maxMissingEntries is the maximum number of log entries that the new leader may lack. The number must be small,
// because raft sends these entries before the transfer and drops new proposals in the meantime. It must not be 0,
// because some entries are always in flight.
const maxMissingEntries = 100

// successor returns the best candidate for leadership: the connected voting member with the most complete log.
func (e embedded) successor() (best peer, ok bool) {
	followers := RaftStatus(e.EtcdServer).Progress
	own := followers[uint64(e.MemberID())].Match
	var match uint64
	for _, p := range e.members() {
		follower, known := followers[uint64(p.id)]
		ready := known && p.id != e.MemberID() && p.active && !p.learner && follower.State == tracker.StateReplicate
		if ready && follower.Match+maxMissingEntries >= own && (!ok || follower.Match > match) {
			best, match, ok = p, follower.Match, true
		}
	}
	return best, ok
}

// RaftStatus returns the raft status of a server in this process, or the zero value if it is not the most recently
// started one. etcd exports the status only as an expvar (raft.go in etcdserver).
func RaftStatus(server *etcdserver.EtcdServer) (status raft.Status) {
	if published, ok := expvar.Get("raft.status").(expvar.Func); ok {
		status, _ = published.Value().(raft.Status)
	}
	if status.ID != uint64(server.MemberID()) {
		return raft.Status{}
	}
	return status
}

// handOver transfers leadership to another member and returns once that member is the leader. It does nothing if this
// member is not the leader.
func (e embedded) handOver(ctx context.Context, to peer) error {
	if e.Leader() != e.MemberID() {
		return nil
	}
	election := time.Duration(e.Cfg.ElectionTicks) * time.Duration(e.Cfg.TickMs) * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, 2*election) // raft aborts a transfer after one election timeout
	defer cancel()
	if err := e.MoveLeader(ctx, e.Lead(), uint64(to.id)); err != nil {
		return fmt.Errorf("cannot transfer leadership to %s: %w", to.name, err)
	}
	return nil
}
