package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/membershippb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"etcd-wrapper/internal/clock"
	"etcd-wrapper/member/maintenance"
)

const (
	// electPause is the pause between the only voter's attempts to start an election.
	electPause = 2 * time.Millisecond
	// electTimeout limits the time for all attempts. After that, etcd has held a normal election, which takes at most
	// two election timeouts (1 s each by default).
	electTimeout = 2 * time.Second
)

// electSelf makes a cluster's only voter the leader without waiting for the election timeout, which would account for
// most of the startup time. Until there is a leader, electSelf sends MsgTimeoutNow to raft, as a leader does to
// transfer leadership. raft then campaigns without a pre-vote, which is safe because there are no other voters.
func electSelf(server *etcdserver.EtcdServer) {
	self := uint64(server.MemberID())
	ctx, cancel := context.WithTimeout(context.Background(), electTimeout)
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

// firstIndex is the index of the log entry that adds the only member of a new cluster.
const firstIndex = 1

// isOnlyVoter reports whether this member is the only voter in raft's configuration. raft and etcd must both have
// applied all committed entries, because a committed entry may add another voter. In addition, raft reads unapplied
// entries before it campaigns, and etcd may already have removed them from memory.
func isOnlyVoter(applied uint64, status raft.Status) bool {
	voters := status.Config.Voters
	_, votes := voters[0][status.ID]
	if status.Commit == firstIndex {
		applied = firstIndex // etcd reports 0 if it has nothing to apply
	}
	return min(applied, status.Applied) >= status.Commit && votes && len(voters[0]) == 1 && len(voters[1]) == 0
}

const (
	// maxApplyLag is the lag behind the commit index beyond which etcd rejects requests with "too many requests"
	// (maxGapBetweenApplyAndCommitIndex in etcdserver/v3_server.go of etcd v3.6.16).
	maxApplyLag = 5000
	// catchUpPoll is the interval between checks of the lag.
	catchUpPoll = 200 * time.Millisecond
	// catchUpPause is the maximum pause between proposals while the member does not catch up.
	catchUpPause = 5 * time.Second
)

// proposeAfterSnapshot helps a member become ready after it has installed a snapshot from the leader in a cluster
// without writes. A snapshot does not advance the applied index; only a later entry does (applySnapshot and
// setAppliedIndex in etcdserver/server.go of etcd v3.6.16). Until then, etcd rejects its own requests to the cluster,
// including the one that publishes its name and makes it ready. proposeAfterSnapshot therefore proposes that entry
// directly to raft; applying it twice is harmless. proposeAfterSnapshot returns when etcd stops.
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

// proposeAttributes proposes the same entry that etcd proposes at startup, with the member's name and client URLs.
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

// retryPolicy contains the pause between requests to the cluster and the timeout for each request. The timeout is
// needed because a request that raft drops never gets a response.
type retryPolicy struct{ pause, timeout time.Duration }

var (
	defaultPolicy  = retryPolicy{2 * time.Second, 5 * time.Second}
	stoppingPolicy = retryPolicy{500 * time.Millisecond, 2 * time.Second} // while the member stops
)

// retry calls try until it succeeds or ctx is done, and logs each error that differs from the previous one. aim
// completes the sentence "cannot … yet".
func retry(ctx context.Context, server *etcdserver.EtcdServer, log zerolog.Logger, policy retryPolicy, aim string, try func(context.Context) error) {
	logged := ""
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(server.AuthStore().WithRoot(ctx), policy.timeout)
		err := try(attempt)
		cancel()
		if err == nil {
			return
		}
		if err.Error() != logged && ctx.Err() == nil {
			logged = err.Error()
			log.Info().Str("reason", logged).Msg("cannot " + aim + " yet; retrying")
		}
		_ = clock.Sleep(ctx, policy.pause)
	}
}

// membershipUpdater updates this member's peer URLs in the cluster. If this member is a learner that recovery added,
// membershipUpdater also requests its promotion until it has caught up and is promoted. It makes these requests after
// each start and retries them until they succeed, because nothing else does this.
type membershipUpdater struct {
	server  *etcdserver.EtcdServer
	config  *embed.Config
	options *Options
}

func (p membershipUpdater) run(ctx context.Context) {
	p.retry(ctx, "update this member's peer URLs in the cluster", p.updateURLs)
	if p.awaitPromotion(ctx) {
		p.retry(ctx, "promote this learner to a voting member", p.promote)
	}
	p.retry(ctx, "revoke this learner's promotion lease", func(ctx context.Context) error {
		return maintenance.RemovePromoteLease(ctx, p.server, p.config.Name)
	})
}

func (p membershipUpdater) retry(ctx context.Context, aim string, try func(context.Context) error) {
	retry(ctx, p.server, p.options.Log, defaultPolicy, aim, try)
}

// awaitPromotion returns true once this learner is marked for promotion, and false once it is a voting member or ctx
// is done. Recovery marks a learner before it adds the member, so a learner without a mark was added by a user.
func (p membershipUpdater) awaitPromotion(ctx context.Context) bool {
	logged := false
	for p.server.IsLearner() {
		if maintenance.HasPromoteLease(p.server, p.config.Name) {
			return true
		}
		if !logged {
			p.options.Log.Info().Msgf("this learner was added manually and is not promoted automatically: run \"etcdctl member promote %s\"", p.server.MemberID())
		}
		logged = true
		if clock.Sleep(ctx, defaultPolicy.pause) != nil {
			return false
		}
	}
	if logged {
		p.options.Log.Info().Msg("this learner was promoted manually and is now a voting member")
	}
	return false
}

// updateURLs updates this member's peer URLs in the cluster if the configuration has changed, because etcd itself
// ignores such a change. This works because the member can still reach the others. etcd's default URLs are ignored.
func (p membershipUpdater) updateURLs(ctx context.Context) error {
	known := p.server.Cluster().Member(p.server.MemberID())
	urls := types.URLs(p.config.AdvertisePeerUrls).StringSlice()
	if known == nil || equalURLs(known.PeerURLs, urls) || slices.Equal(urls, []string{unconfiguredURL}) {
		return nil
	}
	changed := *known
	changed.RaftAttributes = membership.RaftAttributes{PeerURLs: urls, IsLearner: known.IsLearner}
	if _, err := p.server.UpdateMember(ctx, changed); err != nil {
		return fmt.Errorf("changing the peer URLs from %v to %v: %w", known.PeerURLs, urls, err)
	}
	p.options.Log.Info().Strs("before", known.PeerURLs).Strs("now", urls).Msg("updated this member's peer URLs in the cluster")
	return nil
}

// unconfiguredURL is etcd's default peer URL.
const unconfiguredURL = "http://localhost:2380"

func equalURLs(some, others []string) bool {
	some, others = slices.Sorted(slices.Values(some)), slices.Sorted(slices.Values(others))
	return slices.Equal(some, others)
}

// promote asks the leader for a promotion, because the leader knows whether the learner has caught up. If
// authentication is enabled, promote sends the request as a client, because the leader rejects requests without a
// user and etcd would retry them in a tight loop.
func (p membershipUpdater) promote(ctx context.Context) (err error) {
	switch {
	case !p.server.IsLearner():
		return nil
	case !p.server.AuthStore().IsAuthEnabled():
		_, err = p.server.PromoteMember(ctx, uint64(p.server.MemberID()))
	case p.options.RequestPromotion == nil:
		return errors.New("authentication is enabled, but no root user is configured")
	default:
		var members []membership.Member
		for _, each := range p.server.Cluster().Members() {
			members = append(members, *each)
		}
		err = p.options.RequestPromotion(ctx, p.server.Cluster().ID(), p.server.MemberID(), members)
	}
	if err == nil {
		p.options.Log.Info().Msg("this learner was promoted to a voting member")
	}
	return err
}
