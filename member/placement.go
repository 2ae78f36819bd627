package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"

	"etcd-wrapper/internal/clock"
	"etcd-wrapper/member/maintenance"
)

// retryPolicy contains the pause between two requests to the cluster and the timeout of each request. A request that
// raft drops never gets a response.
type retryPolicy struct{ pause, timeout time.Duration }

var (
	patient = retryPolicy{2 * time.Second, 5 * time.Second}
	hurried = retryPolicy{500 * time.Millisecond, 2 * time.Second} // while the member stops
)

// retry calls try until it succeeds or ctx is done, and logs an error when it differs from the previous one. aim
// completes the sentence "cannot … yet".
func retry(ctx context.Context, server *etcdserver.EtcdServer, log zerolog.Logger, tempo retryPolicy, aim string, try func(context.Context) error) {
	logged := ""
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(server.AuthStore().WithRoot(ctx), tempo.timeout)
		err := try(attempt)
		cancel()
		if err == nil {
			return
		}
		if err.Error() != logged && ctx.Err() == nil {
			logged = err.Error()
			log.Info().Str("reason", logged).Msg("cannot " + aim + " yet; retrying")
		}
		_ = clock.Sleep(ctx, tempo.pause)
	}
}

// placement updates this member's peer URLs in the cluster and promotes a learner that recovery added once it has
// caught up. placement retries until it succeeds, even after a restart, because nothing else does these updates.
type placement struct {
	server  *etcdserver.EtcdServer
	config  *embed.Config
	options *Options
}

func (p placement) run(ctx context.Context) {
	p.retry(ctx, "update this member's peer URLs in the cluster", p.updateURLs)
	if p.awaitPromotion(ctx) {
		p.retry(ctx, "promote this learner to a voting member", p.promote)
	}
	p.retry(ctx, "revoke this learner's promotion lease", func(ctx context.Context) error {
		return maintenance.RemovePromoteLease(ctx, p.server, p.config.Name)
	})
}

func (p placement) retry(ctx context.Context, aim string, try func(context.Context) error) {
	retry(ctx, p.server, p.options.Log, patient, aim, try)
}

// awaitPromotion returns true once this learner is marked for promotion, and false once it is a voting member or ctx
// is done. Recovery marks a learner before it adds the member, so a learner without a mark was added by a user.
func (p placement) awaitPromotion(ctx context.Context) bool {
	logged := false
	for p.server.IsLearner() {
		if maintenance.HasPromoteLease(p.server, p.config.Name) {
			return true
		}
		if !logged {
			p.options.Log.Info().Msgf("this learner was added manually and is not promoted automatically: run etcdctl member promote %s", p.server.MemberID())
		}
		logged = true
		if clock.Sleep(ctx, patient.pause) != nil {
			return false
		}
	}
	if logged {
		p.options.Log.Info().Msg("this learner was promoted manually and is now a voting member")
	}
	return false
}

// updateURLs updates the peer URLs in the cluster if they were changed in the configuration, because etcd ignores
// the changed configuration. The member can still reach the other members, so it can update its own URLs. etcd's
// default URLs are ignored.
func (p placement) updateURLs(ctx context.Context) error {
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
// authentication is enabled, the leader rejects requests without a user and etcd would retry them continuously, so
// promote sends the request as a client.
func (p placement) promote(ctx context.Context) (err error) {
	switch {
	case !p.server.IsLearner():
		return nil
	case !p.server.AuthStore().IsAuthEnabled():
		_, err = p.server.PromoteMember(ctx, uint64(p.server.MemberID()))
	case p.options.AskForVote == nil:
		return errors.New("authentication is enabled, but no root user is configured")
	default:
		var members []membership.Member
		for _, each := range p.server.Cluster().Members() {
			members = append(members, *each)
		}
		err = p.options.AskForVote(ctx, p.server.Cluster().ID(), p.server.MemberID(), members)
	}
	if err == nil {
		p.options.Log.Info().Msg("this learner was promoted to a voting member")
	}
	return err
}
