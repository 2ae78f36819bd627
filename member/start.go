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

const (
	// refusesBehind is how far an etcd may be behind what is committed before it refuses its own requests with "too many requests":
	// maxGapBetweenApplyAndCommitIndex in etcd v3.6.16, etcdserver/v3_server.go.
	refusesBehind = 5000
	// catchUpLook is how often the member looks at how far it is behind.
	catchUpLook = 200 * time.Millisecond
	// catchUpPause is the longest pause between two entries that are proposed for a member that stays behind.
	catchUpPause = 5 * time.Second
)

// electionLook is the pause between two looks whether a member can lead at once.
const electionLook = 2 * time.Millisecond

// electSoleVoter has a member lead at once that needs nobody's vote. raft waits for up to its whole election timeout, alone as the
// member is; what a leader sends that hands its leadership over ends that wait. Afterwards raft asks for the election by itself.
func (m *Member) electSoleVoter() {
	server := m.etcd.Server
	self := uint64(server.MemberID())
	clock := time.NewTicker(electionLook)
	defer clock.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(server.Cfg.ElectionTicks)*time.Duration(server.Cfg.TickMs)*time.Millisecond)
	defer cancel()
	for server.Leader() == 0 {
		if status, ok := maintenance.RaftStatus(server); ok && needsNobody(status) {
			_ = server.Process(ctx, raftpb.Message{Type: raftpb.MsgTimeoutNow, From: self, To: self})
		}
		select {
		case <-clock.C:
		case <-server.StoppingNotify():
			return
		case <-ctx.Done():
			return
		}
	}
}

// needsNobody reports whether raft's own configuration has this member as its only voter, with everything applied that is known to be
// committed: while a log is replayed, a cluster of several passes through the time when it was of one.
func needsNobody(status raft.Status) bool {
	voters := status.Config.Voters
	_, votes := voters[0][status.ID]
	return votes && len(voters[0]) == 1 && len(voters[1]) == 0 && status.Commit > 0 && status.Applied >= status.Commit
}

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

// proposeOwnAttributes proposes what etcd proposes when a member starts: its name and where its clients find it.
func (m *Member) proposeOwnAttributes() {
	server := m.etcd.Server
	var urls []string
	for _, each := range m.config.AdvertiseClientUrls {
		urls = append(urls, each.String())
	}
	self := uint64(server.MemberID())
	request := etcdserverpb.InternalRaftRequest{
		Header: &etcdserverpb.RequestHeader{ID: rand.Uint64() | 1}, // nobody waits for its answer, and 0 stands for none
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

// inspect refuses data that etcd would take without a word.
func (m *Member) inspect(found *datadir.Findings) error {
	return found.Inspect(datadir.Identity{
		Name:           m.config.Name,
		PeerURLs:       types.URLs(m.config.AdvertisePeerUrls).StringSlice(),
		InitialCluster: m.config.InitialCluster,
	}, m.options.Log)
}
