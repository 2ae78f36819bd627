package member

import (
	"context"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/membershippb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/member/maintenance"
)

// inspect refuses data that etcd would accept silently.
func (m *Member) inspect(found *datadir.Findings) error {
	return found.Inspect(datadir.Identity{
		Name:           m.config.Name,
		PeerURLs:       types.URLs(m.config.AdvertisePeerUrls).StringSlice(),
		InitialCluster: m.config.InitialCluster,
	}, m.options.Log)
}

const (
	// electPause is the pause between two attempts to be elected as the only voter.
	electPause = 2 * time.Millisecond
	// electPatience bounds these attempts. Raft's own election takes at most two election timeouts, a second each by
	// default.
	electPatience = 2 * time.Second
)

// electItself spares the only voter of a cluster raft's wait for other members: 0.1 to 1 s by default, most of a
// start. It sends raft what a leader sends a member to hand over to (MsgTimeoutNow), and ends with the first leader.
// Raft campaigns without a pre-vote then, which disturbs no other voter.
func (m *Member) electItself() {
	server := m.etcd.Server
	self := uint64(server.MemberID())
	ctx, cancel := context.WithTimeout(context.Background(), electPatience)
	defer cancel()
	again := time.NewTicker(electPause)
	defer again.Stop()
	for server.Leader() == 0 {
		if applied := server.AppliedIndex(); votesAlone(applied, maintenance.RaftStatus(server)) {
			_ = server.Process(ctx, raftpb.Message{Type: raftpb.MsgTimeoutNow, From: self, To: self}) // it is repeated
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

// founding is the index of the entry that founds a cluster of one.
const founding = 1

// votesAlone reports by raft's configuration whether the member is the only voter. etcd's list of members may be
// ahead of raft, or behind. etcd and raft must have applied everything that is committed: it may add another voter,
// and before it campaigns raft reads what it has not applied, which etcd may have dropped from memory already.
func votesAlone(applied uint64, status raft.Status) bool {
	voters := status.Config.Voters
	_, votes := voters[0][status.ID]
	if status.Commit == founding {
		applied = founding // etcd counts nothing as applied if there is nothing to apply
	}
	return min(applied, status.Applied) >= status.Commit && votes && len(voters[0]) == 1 && len(voters[1]) == 0
}

const (
	// refusesBehind is how far etcd may lag behind the committed index before it refuses its own requests with "too
	// many requests": maxGapBetweenApplyAndCommitIndex in etcd v3.6.16, etcdserver/v3_server.go.
	refusesBehind = 5000
	// catchUpLook is the pause between two checks of the lag.
	catchUpLook = 200 * time.Millisecond
	// catchUpPause is the longest pause between two entries that are proposed for a member that stays behind.
	catchUpPause = 5 * time.Second
)

// catchUp keeps an etcd from waiting for a writer that may never come. An etcd that takes over its leader's snapshot does not count
// the entries in it as applied: only an entry behind it moves the applied index (applySnapshot and setAppliedIndex in etcd v3.6.16,
// etcdserver/server.go). Until then everything that it asks of its cluster is refused, also that the others learn of it, which it asks
// without a pause; so in a cluster where nobody writes it never becomes ready. catchUp hands raft that very entry past the refusal.
// Applied once more it changes nothing. It ends when etcd stops.
func (m *Member) catchUp() {
	server := m.etcd.Server
	look := time.NewTicker(catchUpLook)
	defer look.Stop()
	applied, pause, next := uint64(0), catchUpLook, time.Time{}
	for {
		select {
		case <-server.StoppingNotify():
			return
		case now := <-look.C:
			was := applied
			applied = server.AppliedIndex()
			if applied != was || server.CommittedIndex() <= applied+refusesBehind {
				pause = catchUpLook
				continue
			}
			if server.Leader() == 0 || now.Before(next) {
				continue
			}
			m.proposeOwnAttributes()
			pause = min(2*pause, catchUpPause)
			next = now.Add(pause)
		}
	}
}

// proposeOwnAttributes proposes what etcd proposes when a member starts: its name and its client URLs.
func (m *Member) proposeOwnAttributes() {
	server := m.etcd.Server
	var urls []string
	for _, each := range m.config.AdvertiseClientUrls {
		urls = append(urls, each.String())
	}
	self := uint64(server.MemberID())
	request := etcdserverpb.InternalRaftRequest{
		Header: &etcdserverpb.RequestHeader{ID: rand.Uint64() | 1}, // nothing waits for the answer, and 0 means none
		ClusterMemberAttrSet: &membershippb.ClusterMemberAttrSetRequest{
			Member_ID: self, MemberAttributes: &membershippb.Attributes{Name: m.config.Name, ClientUrls: urls},
		},
	}
	data, err := request.Marshal()
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), catchUpLook)
		defer cancel()
		err = server.Process(ctx, raftpb.Message{Type: raftpb.MsgProp, From: self, To: self, Entries: []raftpb.Entry{{Data: data}}})
	}
	m.options.Log.Info().AnErr("error", err).Uint64("applied", server.AppliedIndex()).Uint64("committed", server.CommittedIndex()).
		Msg("etcd has taken over its leader's snapshot and waits for an entry behind it, which was proposed")
}
