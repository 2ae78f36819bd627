package maintenance

import (
	"context"
	"errors"
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

// cluster is what a Maintainer needs of etcd.
type cluster interface {
	facts() facts
	defragment() error // etcd's own, which stands still until it is done
	copied() int64     // bytes that a defragmentation has copied so far
	successor() (to peer, ok bool)
	handOver(ctx context.Context, to peer) error
	catchUp(ctx context.Context) error           // returns when what was committed is applied
	lift(ctx context.Context, of types.ID) error // ends that member's alarm NOSPACE
	permits(ctx context.Context) bool            // a client to defragment or to move leadership, as etcd will find, too
}

// embedded is the etcd in this process. Its own objects are asked, so that certificates and authentication have no part.
type embedded struct {
	*etcdserver.EtcdServer
	options *Options
}

func (e embedded) facts() facts {
	f := facts{
		quota: e.options.Quota, self: e.MemberID(), leader: e.Leader(),
		members: e.members(), sending: e.options.Sending(), readers: e.options.Gate.Inside(),
	}
	f.room, f.volume = space(e.dir())
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
	f.size, f.inUse = e.sizes(f.noSpace())
	return f
}

// sizes are the bytes of the database, and those of them that are in use. What somebody still read while it was compacted counts as in
// use until the next commit, and where the alarm NOSPACE keeps keys from being put none comes by itself.
func (e embedded) sizes(noSpace bool) (size, inUse int64) {
	if noSpace {
		e.Backend().ForceCommit()
	}
	return e.Backend().Size(), e.Backend().SizeInUse()
}

func (e embedded) members() (all []peer) {
	self, active := e.MemberID(), e.options.Active(e.MemberID())
	for _, m := range e.Cluster().Members() {
		name := m.Name
		if name == "" {
			name = m.ID.String()
		}
		all = append(all, peer{id: m.ID, name: name, learner: m.IsLearner, active: m.ID == self || active[m.ID]})
	}
	return all
}

// dir is where the database lies.
func (e embedded) dir() string { return e.Cfg.SnapDir() }

// space is how many bytes are free on the volume of a directory, and how many it has; negative if that cannot be told.
func space(dir string) (free, size int64) {
	free, size, err := disk.Space(dir)
	if err != nil {
		return -1, -1
	}
	return free, size
}

// defragment calls the server's method and not the backend's: only that keeps a snapshot from a leader, which replaces the
// database, out meanwhile.
func (e embedded) defragment() error { return e.Defragment() }

func (e embedded) copied() int64 { return copied(e.dir()) }

// copied looks at the file that etcd copies to, which lies beside the database until it takes its place.
func copied(dir string) (size int64) {
	files, _ := fs.Glob(os.DirFS(dir), "db.tmp.*") // the pattern is a good one
	for _, file := range files {
		if about, err := os.Stat(filepath.Join(dir, file)); err == nil {
			size = max(size, about.Size())
		}
	}
	return size
}

func (e embedded) successor() (to peer, ok bool) { return heir(e.EtcdServer, e.members()) }

func (e embedded) handOver(ctx context.Context, to peer) error {
	if !leads(e.EtcdServer) {
		return nil
	}
	return handOver(ctx, e.EtcdServer, to)
}

// backlog is how many committed entries may wait to be applied when a member counts as caught up: under load there are
// always some.
const backlog = 50

func (e embedded) catchUp(ctx context.Context) error {
	clock := time.NewTicker(10 * time.Millisecond)
	defer clock.Stop()
	for e.AppliedIndex()+backlog < e.CommittedIndex() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d committed entries are still to be applied: %w", e.CommittedIndex()-e.AppliedIndex(), ctx.Err())
		case <-e.StopNotify():
			return errors.New("etcd has stopped")
		case <-clock.C:
		}
	}
	return nil
}

func (e embedded) lift(ctx context.Context, of types.ID) error {
	_, err := e.Alarm(ctx, &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_DEACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE, MemberID: uint64(of),
	})
	return err
}

func (e embedded) permits(ctx context.Context) bool {
	who, err := e.AuthInfoFromCtx(ctx)
	return err == nil && e.AuthStore().IsAdminPermitted(who) == nil
}

// closely is how many entries of the log a member may lack to be given leadership: what is under way at any moment. raft
// sends it the rest first, and drops what it is asked to write meanwhile.
const closely = 100

// heir is the member that is best prepared to lead: connected, with a vote, and with the log up to its end or close to it.
func heir(server *etcdserver.EtcdServer, members []peer) (best peer, ok bool) {
	followers := progress(server)
	own := followers[uint64(server.MemberID())].Match
	var match uint64
	for _, p := range members {
		follower, known := followers[uint64(p.id)]
		ready := known && p.id != server.MemberID() && p.active && !p.learner && follower.State == tracker.StateReplicate
		if ready && follower.Match+closely >= own && (!ok || follower.Match > match) {
			best, match, ok = p, follower.Match, true
		}
	}
	return best, ok
}

// progress is what the leader knows of its followers' logs.
func progress(server *etcdserver.EtcdServer) map[uint64]tracker.Progress {
	return RaftStatus(server).Progress
}

// RaftStatus is how raft sees itself in an etcd of this process; the zero value if another etcd was begun later. etcd shows it to nobody
// but the variable that it publishes for people who debug it (raft.go in etcdserver).
func RaftStatus(server *etcdserver.EtcdServer) (status raft.Status) {
	if published, there := expvar.Get("raft.status").(expvar.Func); there {
		status, _ = published.Value().(raft.Status)
	}
	if status.ID != uint64(server.MemberID()) {
		return raft.Status{}
	}
	return status
}

// handOver moves leadership to another member and returns once that leads.
func handOver(ctx context.Context, server *etcdserver.EtcdServer, to peer) error {
	election := time.Duration(server.Cfg.ElectionTicks) * time.Duration(server.Cfg.TickMs) * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, 2*election) // raft itself gives up after one
	defer cancel()
	if err := server.MoveLeader(ctx, server.Lead(), uint64(to.id)); err != nil {
		return fmt.Errorf("leadership could not be moved to %s: %w", to.name, err)
	}
	return nil
}

// leads reports whether a member leads its cluster.
func leads(server *etcdserver.EtcdServer) bool {
	return server.Leader() != types.ID(0) && server.Leader() == server.MemberID()
}
