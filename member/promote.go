package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/auth"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"google.golang.org/grpc/metadata"

	"etcd-wrapper/member/maintenance"
)

// A tempo is the pause between two requests to the cluster, and how long an answer may take. A proposal that raft
// drops, as without a leader, gets none.
type tempo struct{ pause, answer time.Duration }

var (
	patient = tempo{2 * time.Second, 5 * time.Second}
	hurried = tempo{500 * time.Millisecond, 2 * time.Second} // within the rest of a stop
)

// findPlace reports this member's address to the cluster and, if it is a learner that recovery has added, gets it a
// vote once it has caught up. It asks until it succeeds, also after a restart: nothing else may ever ask again.
func (m *Member) findPlace(ctx context.Context) {
	m.until(ctx, "the cluster is to know this member's peer URLs", m.tellURLs)
	if m.awaitWord(ctx) {
		m.until(ctx, "this learner is to be promoted to a voting member", m.askForVote)
	}
	m.until(ctx, "the cluster is to forget that this member is to be promoted", m.dropPromotion)
}

// awaitWord returns true when the cluster has recorded that this learner is to be promoted, and false once it has a
// vote or ctx ends. Recovery records it before it adds a member, so a member that has served without the record was
// added by a user.
func (m *Member) awaitWord(ctx context.Context) bool {
	server := m.etcd.Server
	said := false
	for server.IsLearner() {
		if maintenance.IsToBePromoted(server, m.config.Name) {
			return true
		}
		if !said {
			m.options.Log.Info().Msgf("this learner was added by hand: it stays a learner until somebody gives it a vote with etcdctl member promote %s", server.MemberID())
		}
		said = true
		select {
		case <-ctx.Done():
			return false
		case <-time.After(patient.pause):
		}
	}
	if said {
		m.options.Log.Info().Msg("this learner was promoted by hand: the member has a vote now")
	}
	return false
}

func (m *Member) dropPromotion(ctx context.Context) error {
	return maintenance.DropPromotion(ctx, m.etcd.Server, m.config.Name)
}

// until repeats an attempt, and logs each new reason for its failure once.
func (m *Member) until(ctx context.Context, aim string, try func(context.Context) error) {
	m.insist(ctx, patient, aim, try)
}

func (m *Member) insist(ctx context.Context, tempo tempo, aim string, try func(context.Context) error) {
	said := ""
	for ctx.Err() == nil {
		within, cancel := context.WithTimeout(m.etcd.Server.AuthStore().WithRoot(ctx), tempo.answer)
		err := try(within)
		cancel()
		if err == nil {
			return
		}
		if err.Error() != said && ctx.Err() == nil {
			said = err.Error()
			m.options.Log.Info().Str("reason", said).Msg(aim + "; it is asked for until it is granted")
		}
		select {
		case <-ctx.Done():
		case <-time.After(tempo.pause):
		}
	}
}

// tellURLs is for a member whose peer URLs were changed in its configuration: etcd uses the ones that the cluster
// knows. The member reaches the others from its new address, so it can report them itself. The URLs that etcd uses if
// none are configured do not count.
func (m *Member) tellURLs(ctx context.Context) error {
	server := m.etcd.Server
	known := server.Cluster().Member(server.MemberID())
	urls := types.URLs(m.config.AdvertisePeerUrls).StringSlice()
	if known == nil || sameURLs(known.PeerURLs, urls) || slices.Equal(urls, []string{unconfiguredURL}) {
		return nil
	}
	changed := *known
	changed.RaftAttributes = membership.RaftAttributes{PeerURLs: urls, IsLearner: known.IsLearner}
	if _, err := server.UpdateMember(ctx, changed); err != nil {
		return fmt.Errorf("from %v to %v: %w", known.PeerURLs, urls, err)
	}
	m.options.Log.Info().Strs("before", known.PeerURLs).Strs("now", urls).Msg("the cluster was told this member's new peer URLs")
	return nil
}

// unconfiguredURL is the peer URL that etcd reports for a member without a configured one.
const unconfiguredURL = "http://localhost:2380"

func sameURLs(some, others []string) bool {
	some, others = slices.Sorted(slices.Values(some)), slices.Sorted(slices.Values(others))
	return slices.Equal(some, others)
}

// asRoot adds a token to a request to another member, which does not trust this one to name a user. Otherwise etcd
// would ask it again without a pause.
func (m *Member) asRoot(ctx context.Context) (context.Context, error) {
	server := m.etcd.Server
	if !server.AuthStore().IsAuthEnabled() {
		return ctx, nil
	}
	reply, err := server.Authenticate(ctx, &etcdserverpb.AuthenticateRequest{Name: m.options.User, Password: m.options.Password})
	if err == nil {
		err = server.AuthStore().IsAdminPermitted(&auth.AuthInfo{Username: m.options.User, Revision: server.AuthStore().Revision()})
	}
	if err != nil {
		return nil, fmt.Errorf("cannot become %s: %w", m.options.User, err)
	}
	return metadata.NewIncomingContext(ctx, metadata.Pairs(rpctypes.TokenFieldNameGRPC, reply.Token)), nil
}

// askForVote asks the leader, which knows whether the log is complete enough.
func (m *Member) askForVote(ctx context.Context) error {
	server := m.etcd.Server
	if !server.IsLearner() {
		return nil
	}
	ask := m.askAsMember
	if server.AuthStore().IsAuthEnabled() && m.options.User == "" {
		ask = m.askAsClient
	}
	if err := ask(ctx); err != nil {
		return err
	}
	m.options.Log.Info().Msg("this learner was promoted: the member has a vote now")
	return nil
}

func (m *Member) askAsMember(ctx context.Context) error {
	ctx, err := m.asRoot(ctx)
	if err != nil {
		return err
	}
	_, err = m.etcd.Server.PromoteMember(ctx, uint64(m.etcd.Server.MemberID()))
	return err
}

// askAsClient asks the others with a client's credentials.
func (m *Member) askAsClient(ctx context.Context) error {
	server := m.etcd.Server
	if m.options.AskForVote == nil {
		return errors.New("authentication is on, and nobody has said who root is")
	}
	var members []membership.Member
	for _, each := range server.Cluster().Members() {
		members = append(members, *each)
	}
	return m.options.AskForVote(ctx, server.Cluster().ID(), server.MemberID(), members)
}
