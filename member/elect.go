package member

import (
	"context"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"etcd-wrapper/member/maintenance"
)

const (
	// electPause is how long a member waits before it looks again whether it is the only voter, and asks again for its election.
	electPause = 2 * time.Millisecond
	// electPatience is how long it asks. Raft's own election comes within two election timeouts, a second each by default.
	electPatience = 2 * time.Second
)

// electItself spares a member that nobody else votes with raft's wait, which is there for other members to be heard: 0.1 to 1 s by
// default, most of a start. It asks raft for what a leader asks the member for that it hands over to (MsgTimeoutNow), and ends with the
// first leader. Raft campaigns without a pre-vote then; a single voter disturbs nobody with that.
func (m *Member) electItself() {
	server := m.etcd.Server
	self := uint64(server.MemberID())
	ctx, cancel := context.WithTimeout(context.Background(), electPatience)
	defer cancel()
	again := time.NewTicker(electPause)
	defer again.Stop()
	for server.Leader() == 0 {
		if applied := server.AppliedIndex(); votesAlone(applied, maintenance.RaftStatus(server)) {
			_ = server.Process(ctx, raftpb.Message{Type: raftpb.MsgTimeoutNow, From: self, To: self}) // it is asked again
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		case <-server.StoppingNotify():
			return
		}
	}
}

// votesAlone tells by raft's own configuration whether the member is its cluster's only voter. etcd's list of members would not do: it
// may be ahead of raft, or behind. As far as the log is committed, etcd and raft must have applied it: it may still bring another voter,
// and before it campaigns raft reads what it has not applied, which etcd may have dropped from memory already.
func votesAlone(applied uint64, status raft.Status) bool {
	voters := status.Config.Voters
	_, votes := voters[0][status.ID]
	return min(applied, status.Applied) >= status.Commit && votes && len(voters[0]) == 1 && len(voters[1]) == 0
}
