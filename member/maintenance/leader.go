package maintenance

import (
	"context"
	"expvar"
	"fmt"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"
)

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

// progress is what the leader knows of its followers' logs. etcd shows it to nobody but the variable that it publishes
// for people who debug it, which is that of the etcd started last in the process; nil if it is another's.
func progress(server *etcdserver.EtcdServer) map[uint64]tracker.Progress {
	published, ok := expvar.Get("raft.status").(expvar.Func)
	if !ok {
		return nil
	}
	status, ok := published.Value().(raft.Status)
	if !ok || status.ID != uint64(server.MemberID()) {
		return nil
	}
	return status.Progress
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
