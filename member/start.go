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
	// electPause is the pause between two attempts to be elected as the only voter.
	electPause = 2 * time.Millisecond
	// electPatience bounds these attempts. Without them, an election takes at most two election timeouts, which are
	// 1 s each by default.
	electPatience = 2 * time.Second
)

// electSelf elects the only voter of a cluster without the usual wait for other members, which takes 0.1 to 1 s by
// default, most of a start. It sends raft the message that a leader sends to transfer its leadership
// (MsgTimeoutNow), and ends once there is a leader. Raft then campaigns without a pre-vote, which cannot disturb
// any other voter.
func electSelf(server *etcdserver.EtcdServer) {
	self := uint64(server.MemberID())
	ctx, cancel := context.WithTimeout(context.Background(), electPatience)
	defer cancel()
	retry := time.NewTicker(electPause)
	defer retry.Stop()
	for server.Leader() == 0 {
		if isOnlyVoter(server.AppliedIndex(), maintenance.RaftStatus(server)) {
			_ = server.Process(ctx, raftpb.Message{Type: raftpb.MsgTimeoutNow, From: self, To: self}) // the message is repeated
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

// firstIndex is the index of the log entry that creates a cluster of one member.
const firstIndex = 1

// isOnlyVoter reports whether the member is the only voter according to raft's configuration. etcd's member list
// may be ahead of raft or behind it. Both must have applied all committed entries, because one of these entries may
// add another voter. Also, raft reads its unapplied entries before it campaigns, and etcd may already have dropped
// them from memory.
func isOnlyVoter(applied uint64, status raft.Status) bool {
	voters := status.Config.Voters
	_, votes := voters[0][status.ID]
	if status.Commit == firstIndex {
		applied = firstIndex // etcd reports nothing as applied if there is nothing to apply
	}
	return min(applied, status.Applied) >= status.Commit && votes && len(voters[0]) == 1 && len(voters[1]) == 0
}

const (
	// maxApplyLag is the lag behind the commit index at which etcd rejects its own requests with "too many
	// requests": maxGapBetweenApplyAndCommitIndex in etcd v3.6.16, etcdserver/v3_server.go.
	maxApplyLag = 5000
	// catchUpPoll is the pause between two checks of the lag.
	catchUpPoll = 200 * time.Millisecond
	// catchUpPause is the longest pause between two entries that are proposed for a member that does not catch up.
	catchUpPause = 5 * time.Second
)

// proposeAfterSnapshot prevents an etcd from waiting for a write that may never happen. When etcd installs a
// snapshot from its leader, it does not count the entries in it as applied: only a later entry advances the applied
// index (applySnapshot and setAppliedIndex in etcd v3.6.16, etcdserver/server.go). Until then, etcd rejects its own
// requests to the cluster. One of them publishes its name and is retried continuously, so in a cluster without
// writes, etcd never becomes ready. proposeAfterSnapshot proposes the same entry to raft directly. Applying it
// twice changes nothing. It returns when etcd stops.
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
				Msg("etcd has installed its leader's snapshot and waits for an entry after it, which was proposed")
			pause = min(2*pause, catchUpPause)
			next = now.Add(pause)
		}
	}
}

// proposeAttributes proposes the same entry as etcd at the start of a member: its name and its client URLs.
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
