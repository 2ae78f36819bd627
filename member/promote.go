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

// tempo is how often the cluster is asked for what it has not granted, and how long an answer may take. A proposal that raft drops, as
// while nobody leads, has none.
type tempo struct{ pause, answer time.Duration }

var (
	patient = tempo{2 * time.Second, 5 * time.Second}
	hurried = tempo{500 * time.Millisecond, 2 * time.Second} // in what is left of a stop
)

// findPlace has the cluster know where this member is and, if it is a learner that recovery has added, gives it a vote once it has
// caught up. It asks until it is granted, also after a restart: nobody else may ever ask again.
func (m *Member) findPlace(ctx context.Context) {
	m.until(ctx, "the cluster is to know this member's peer URLs", m.tellURLs)
	if m.awaitWord(ctx) {
		m.until(ctx, "this learner is to be promoted to a voting member", m.askForVote)
	}
	m.until(ctx, "the cluster is to forget that this member is to be promoted", m.dropPromotion)
}

// awaitWord returns true as soon as the cluster has been told that this learner is to be promoted, and false once it has a vote or ctx
// ends. Recovery tells it before it has a member added, so that a member that has served without it was added by a person.
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

// until tries something again and again, and says each new reason why it was not possible once.
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

// tellURLs is for a member whose peer URLs were changed in its configuration: etcd itself goes by what the cluster knows. The
// member reaches the others wherever it is, so that it can tell them itself. The URLs that etcd puts where none are
// configured say nothing.
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

// unconfiguredURL is where etcd says that a member is whose configuration does not.
const unconfiguredURL = "http://localhost:2380"

func sameURLs(some, others []string) bool {
	some, others = slices.Sorted(slices.Values(some)), slices.Sorted(slices.Values(others))
	return slices.Equal(some, others)
}

// asRoot is for what another member is asked: it does not take this one's word for who asks, and needs a token. Where it refuses,
// etcd would ask it again without a pause.
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

// askAsClient has the others asked with what a client has to show.
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
