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

// retryPolicy contains the pause between two requests to the cluster and the timeout of a response. If raft drops a
// proposal, for example without a leader, there is no response.
type retryPolicy struct{ pause, timeout time.Duration }

var (
	patient = retryPolicy{2 * time.Second, 5 * time.Second}
	hurried = retryPolicy{500 * time.Millisecond, 2 * time.Second} // for the rest of a stop
)

// retry repeats an attempt until it succeeds or ctx is done, and logs each new reason for a failure once. aim is a
// clause.
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

// placement updates this member's peer URLs in the cluster. If the member is a learner that recovery added,
// placement also promotes it once it has caught up. It retries until it succeeds, even after a restart, because no
// other process would do so.
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
	p.retry(ctx, "remove the note about this learner's promotion from the cluster", func(ctx context.Context) error {
		return maintenance.RemovePromoteLease(ctx, p.server, p.config.Name)
	})
}

func (p placement) retry(ctx context.Context, aim string, try func(context.Context) error) {
	retry(ctx, p.server, p.options.Log, patient, aim, try)
}

// awaitPromotion returns true once the cluster has recorded that this learner should be promoted, and false once it
// has a vote or ctx is done. Recovery records this before it adds a member, so a member that serves without the
// record was added by a user.
func (p placement) awaitPromotion(ctx context.Context) bool {
	logged := false
	for p.server.IsLearner() {
		if maintenance.HasPromoteLease(p.server, p.config.Name) {
			return true
		}
		if !logged {
			p.options.Log.Info().Msgf("this learner was added by hand: it stays a learner until a user promotes it with etcdctl member promote %s", p.server.MemberID())
		}
		logged = true
		if clock.Sleep(ctx, patient.pause) != nil {
			return false
		}
	}
	if logged {
		p.options.Log.Info().Msg("this learner was promoted by hand: the member has a vote now")
	}
	return false
}

// updateURLs reports peer URLs that were changed in the configuration, because etcd uses the ones that the cluster
// knows. The member can reach the others from its new address, so it can report its URLs itself. The URLs that etcd
// uses without configured ones are ignored.
func (p placement) updateURLs(ctx context.Context) error {
	known := p.server.Cluster().Member(p.server.MemberID())
	urls := types.URLs(p.config.AdvertisePeerUrls).StringSlice()
	if known == nil || equalURLs(known.PeerURLs, urls) || slices.Equal(urls, []string{unconfiguredURL}) {
		return nil
	}
	changed := *known
	changed.RaftAttributes = membership.RaftAttributes{PeerURLs: urls, IsLearner: known.IsLearner}
	if _, err := p.server.UpdateMember(ctx, changed); err != nil {
		return fmt.Errorf("from %v to %v: %w", known.PeerURLs, urls, err)
	}
	p.options.Log.Info().Strs("before", known.PeerURLs).Strs("now", urls).Msg("the cluster has this member's new peer URLs")
	return nil
}

// unconfiguredURL is the peer URL that etcd reports for a member without a configured peer URL.
const unconfiguredURL = "http://localhost:2380"

func equalURLs(some, others []string) bool {
	some, others = slices.Sorted(slices.Values(some)), slices.Sorted(slices.Values(others))
	return slices.Equal(some, others)
}

// promote asks the leader, which knows whether the log is complete enough. With authentication, the leader does not
// trust this member to act for a user, and etcd would repeat the request continuously, so the request is sent as a
// client.
func (p placement) promote(ctx context.Context) (err error) {
	switch {
	case !p.server.IsLearner():
		return nil
	case !p.server.AuthStore().IsAuthEnabled():
		_, err = p.server.PromoteMember(ctx, uint64(p.server.MemberID()))
	case p.options.AskForVote == nil:
		return errors.New("authentication is on, and no root user is configured")
	default:
		var members []membership.Member
		for _, each := range p.server.Cluster().Members() {
			members = append(members, *each)
		}
		err = p.options.AskForVote(ctx, p.server.Cluster().ID(), p.server.MemberID(), members)
	}
	if err == nil {
		p.options.Log.Info().Msg("this learner was promoted: the member has a vote now")
	}
	return err
}
