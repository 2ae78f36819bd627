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
	// electPatience bounds these attempts. Raft's own election takes at most two election timeouts, a second each by
	// default.
	electPatience = 2 * time.Second
)

// electSelf spares the only voter of a cluster raft's wait for other members: 0.1 to 1 s by default, most of a
// start. It sends raft what a leader sends a member to hand over to (MsgTimeoutNow), and ends with the first leader.
// Raft campaigns without a pre-vote then, which disturbs no other voter.
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

// firstIndex is the index of the entry that creates a cluster of one.
const firstIndex = 1

// isOnlyVoter reports by raft's configuration whether the member is the only voter. etcd's list of members may be
// ahead of raft, or behind. etcd and raft must have applied everything that is committed: it may add another voter,
// and before it campaigns raft reads what it has not applied, which etcd may have dropped from memory already.
func isOnlyVoter(applied uint64, status raft.Status) bool {
	voters := status.Config.Voters
	_, votes := voters[0][status.ID]
	if status.Commit == firstIndex {
		applied = firstIndex // etcd reports nothing as applied if there is nothing to apply
	}
	return min(applied, status.Applied) >= status.Commit && votes && len(voters[0]) == 1 && len(voters[1]) == 0
}

const (
	// maxApplyLag is the lag behind the committed index from which etcd refuses its own requests with "too many
	// requests": maxGapBetweenApplyAndCommitIndex in etcd v3.6.16, etcdserver/v3_server.go.
	maxApplyLag = 5000
	// catchUpPoll is the pause between two checks of the lag.
	catchUpPoll = 200 * time.Millisecond
	// catchUpPause is the longest pause between two entries that are proposed for a member that stays behind.
	catchUpPause = 5 * time.Second
)

// proposeAfterSnapshot keeps an etcd from waiting for a writer that may never come. An etcd that installs its leader's
// snapshot does not count the entries in it as applied: only an entry after it advances the applied index
// (applySnapshot and setAppliedIndex in etcd v3.6.16, etcdserver/server.go). Until then etcd refuses its own requests
// to the cluster, among them the one that publishes its name, which it repeats without a pause; so in a cluster
// without writes it never becomes ready. It hands raft that very entry past the refusal. Applied once more it changes
// nothing. It ends when etcd stops.
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

// proposeAttributes proposes what etcd proposes when a member starts: its name and its client URLs.
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
