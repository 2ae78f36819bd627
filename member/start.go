package member

import (
	"context"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/membershippb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"etcd-wrapper/member/maintenance"
)

const (
	// electPause is the pause between two election attempts of the only voter.
	electPause = 2 * time.Millisecond
	// electPatience bounds the attempts. A normal election takes at most two election timeouts (1 s each by
	// default).
	electPatience = 2 * time.Second
)

// electSelf makes the only voter of a cluster the leader without waiting for the election timeout, which accounts
// for most of the start time. electSelf sends MsgTimeoutNow to raft, like a leader that transfers its leadership,
// until there is a leader. raft then campaigns without a pre-vote, which is safe because there are no other voters.
func electSelf(server *etcdserver.EtcdServer) {
	self := uint64(server.MemberID())
	ctx, cancel := context.WithTimeout(context.Background(), electPatience)
	defer cancel()
	retry := time.NewTicker(electPause)
	defer retry.Stop()
	for server.Leader() == 0 {
		if isOnlyVoter(server.AppliedIndex(), maintenance.RaftStatus(server)) {
			_ = server.Process(ctx, raftpb.Message{Type: raftpb.MsgTimeoutNow, From: self, To: self}) // retried on the next tick
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return
		case <-server.StoppingNotify():
			return
		}
	}
}

// firstIndex is the index of the log entry that creates a single-member cluster.
const firstIndex = 1

// isOnlyVoter reports whether this member is the only voter in raft's configuration. raft and etcd must both have
// applied all committed entries, because a committed entry may add another voter. In addition, raft reads unapplied
// entries before it campaigns, and etcd may already have removed them from memory.
func isOnlyVoter(applied uint64, status raft.Status) bool {
	voters := status.Config.Voters
	_, votes := voters[0][status.ID]
	if status.Commit == firstIndex {
		applied = firstIndex // etcd reports 0 if there is nothing to apply
	}
	return min(applied, status.Applied) >= status.Commit && votes && len(voters[0]) == 1 && len(voters[1]) == 0
}

const (
	// maxApplyLag is the lag behind the commit index beyond which etcd rejects requests with "too many requests"
	// (maxGapBetweenApplyAndCommitIndex in etcdserver/v3_server.go of etcd v3.6.16).
	maxApplyLag = 5000
	// catchUpPoll is the pause between two checks of the lag.
	catchUpPoll = 200 * time.Millisecond
	// catchUpPause is the maximum pause between two proposals for a member that does not catch up.
	catchUpPause = 5 * time.Second
)

// proposeAfterSnapshot makes a member ready that has installed a snapshot from the leader in a cluster without
// writes. A snapshot does not advance the applied index; only a later entry does (applySnapshot and setAppliedIndex
// in etcdserver/server.go of etcd v3.6.16). Until then, etcd rejects its own requests to the cluster, including the
// one that publishes its name and makes it ready. proposeAfterSnapshot therefore proposes this entry directly to
// raft. Applying the entry twice is harmless. proposeAfterSnapshot returns when etcd stops.
func proposeAfterSnapshot(server *etcdserver.EtcdServer, config *embed.Config, log zerolog.Logger) {
	poll := time.NewTicker(catchUpPoll)
	defer poll.Stop()
	applied, pause, next := uint64(0), catchUpPoll, time.Time{}
	for {
		select {
		case <-server.StoppingNotify():
			return
		case now := <-poll.C:
			before := applied
			applied = server.AppliedIndex()
			if applied != before || server.CommittedIndex() <= applied+maxApplyLag {
				pause = catchUpPoll
				continue
			}
			if server.Leader() == 0 || now.Before(next) {
				continue
			}
			err := proposeAttributes(server, config)
			log.Info().AnErr("error", err).Uint64("applied", applied).Uint64("committed", server.CommittedIndex()).
				Msg("proposed a log entry, which etcd needs to become ready after it has installed a snapshot from the leader")
			pause = min(2*pause, catchUpPause)
			next = now.Add(pause)
		}
	}
}

// proposeAttributes proposes the entry with the member's name and client URLs that etcd proposes at its start.
func proposeAttributes(server *etcdserver.EtcdServer, config *embed.Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), catchUpPoll)
	defer cancel()
	return maintenance.Propose(ctx, server, etcdserverpb.InternalRaftRequest{
		ClusterMemberAttrSet: &membershippb.ClusterMemberAttrSetRequest{
			Member_ID:        uint64(server.MemberID()),
			MemberAttributes: &membershippb.Attributes{Name: config.Name, ClientUrls: types.URLs(config.AdvertiseClientUrls).StringSlice()},
		},
	})
}
