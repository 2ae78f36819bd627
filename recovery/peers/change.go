package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"etcd-wrapper/member/maintenance"
)

// Remove takes this member out of the cluster, if it still is what the survey says: a quorum is asked again. It may be
// repeated.
func (p *Peers) Remove(ctx context.Context, c *Survey) error {
	return p.change(ctx, c, func(ctx context.Context, client *clientv3.Client, now []*etcdserverpb.Member) error {
		at := slices.IndexFunc(now, func(m *etcdserverpb.Member) bool { return m.ID == uint64(c.Own.ID) })
		if at < 0 {
			return nil
		}
		if !now[at].IsLearner && votes(now) < fewest {
			return fmt.Errorf("the cluster has %d voting members by now", votes(now))
		}
		if now[at].IsLearner {
			promised, err := knows(ctx, client, maintenance.Promotion(p.name))
			if err == nil && !promised {
				err = tell(ctx, client, maintenance.ByHand(p.name), maintenance.ByHandTTL)
			}
			if err != nil {
				return fmt.Errorf("the cluster cannot say whether this learner is to be promoted: %w", err)
			}
		}
		_, err := client.MemberRemove(ctx, uint64(c.Own.ID))
		return err
	})
}

// Add has the cluster take this member in, unless it has: a quorum is asked. It may be repeated. The member is a learner that is promoted
// once it has caught up, or stays one if a person had added it as one.
func (p *Peers) Add(ctx context.Context, c *Survey) error {
	return p.change(ctx, c, func(ctx context.Context, client *clientv3.Client, now []*etcdserverpb.Member) error {
		for _, m := range now {
			if m.Name == p.name || slices.ContainsFunc(m.PeerURLs, p.isOwnURL) {
				return nil
			}
			if m.IsLearner || len(m.ClientURLs) == 0 {
				return errors.New("another member is about to join by now")
			}
		}
		byHand, err := knows(ctx, client, maintenance.ByHand(p.name))
		if err == nil && !byHand {
			err = tell(ctx, client, maintenance.Promotion(p.name), maintenance.PromotionTTL)
		}
		switch {
		case (errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, rpctypes.ErrCorrupt)) && votes(now)%2 == 0:
			// A cluster with one of these alarms grants no lease. An even number of voters needs no larger quorum with one more of them,
			// and nobody writes whom it could hold up while it has no data.
			_, err = client.MemberAdd(ctx, p.urls)
		case err == nil:
			_, err = client.MemberAddAsLearner(ctx, p.urls)
		}
		return err
	})
}

// knows asks whether the cluster has been told what the lease with that ID stands for.
func knows(ctx context.Context, client *clientv3.Client, id int64) (bool, error) {
	granted, err := client.TimeToLive(ctx, clientv3.LeaseID(id))
	return err == nil && granted.TTL >= 0, err
}

// tell has the cluster remember for ttl seconds what the lease with that ID stands for.
func tell(ctx context.Context, client *clientv3.Client, id, ttl int64) error {
	_, err := etcdserverpb.NewLeaseClient(client.ActiveConnection()).LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{ID: id, TTL: ttl})
	if err = rpctypes.Error(err); err != nil && !errors.Is(err, rpctypes.ErrLeaseExist) {
		return fmt.Errorf("the cluster takes in no lease: %w", err)
	}
	return nil
}

// Promote has the cluster of that survey give its own member a vote: a quorum is asked. It may be repeated. etcd grants it as soon as
// the member has caught up.
func (p *Peers) Promote(ctx context.Context, c *Survey) error {
	return p.change(ctx, c, func(ctx context.Context, client *clientv3.Client, _ []*etcdserverpb.Member) error {
		_, err := client.MemberPromote(ctx, uint64(c.Own.ID))
		return err
	})
}

func votes(members []*etcdserverpb.Member) int {
	return len(slices.DeleteFunc(slices.Clone(members), func(m *etcdserverpb.Member) bool { return m.IsLearner }))
}

// change asks the others for a change of the members, who answer as their quorum does.
func (p *Peers) change(ctx context.Context, c *Survey, how func(context.Context, *clientv3.Client, []*etcdserverpb.Member) error) error {
	ctx, cancel := context.WithTimeout(ctx, changeWithin)
	defer cancel()
	config := clientv3.Config{Context: ctx, TLS: p.clientTLS, DialTimeout: answerWithin, Logger: zap.NewNop()}
	config.Endpoints, config.Username, config.Password = p.entrances(c)
	client, err := clientv3.New(config)
	if err != nil {
		return p.explained(fmt.Errorf("cannot connect to the other members: %w", err), config.Username)
	}
	defer client.Close() // nothing of it is needed any more
	list, err := client.MemberList(ctx)
	if err == nil && fmt.Sprintf("%x", list.Header.ClusterId) != c.Cluster {
		err = fmt.Errorf("cluster %x answers, and not %s", list.Header.ClusterId, c.Cluster)
	}
	for i := 0; err == nil && i < len(list.Members); i++ { // as inTheWay has, at the moment of the change
		err = p.known(list.Members[i].Name, list.Members[i].PeerURLs)
	}
	if err == nil {
		err = how(ctx, client, list.Members)
	}
	return p.explained(p.unreached(context.WithoutCancel(ctx), c, err), config.Username)
}

// unreached says why the others do not answer a client, of which gRPC tells no more than that it took too long.
func (p *Peers) unreached(ctx context.Context, c *Survey, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	for _, m := range c.Others() {
		if _, why := p.page(ctx, m, "/version"); why != nil {
			return fmt.Errorf("%w: %w%s", err, why, refused(why))
		}
	}
	return err
}

// refused names the way out where a server does not take what it is shown.
func refused(why error) string {
	var by *net.OpError
	if errors.As(why, &by) && by.Op == "remote error" {
		return "; a certificate that they take is given with --etcd-client-cert-path"
	}
	return ""
}

// entrances are where the others serve clients, with the user and the password that they may be told. The password goes nowhere
// where others could read it, and to nobody whom only an answer names that proves nothing: where that is so of all of the ways
// there, nobody is told.
func (p *Peers) entrances(c *Survey) (urls []string, user, password string) {
	var private []string
	for _, m := range voters(c.Others()) {
		urls = append(urls, m.ClientURLs...)
		private = append(private, slices.DeleteFunc(slices.Clone(m.ClientURLs), func(at string) bool {
			// It is a member's if its host stands in the configuration, or it was told by peers all of which have shown a certificate that was verified.
			isTrusted := p.hosts[hostOf(at)] || p.verified()
			return p.isOpen(at) || !isTrusted
		})...)
	}
	if p.User == "" || len(private) == 0 {
		return urls, "", ""
	}
	return private, p.User, p.Password
}

// verified says that every peer shows a certificate that is verified.
func (p *Peers) verified() bool {
	for _, urls := range p.others {
		if p.anyPeer || slices.ContainsFunc(urls, func(at string) bool { return !strings.HasPrefix(at, "https:") }) {
			return false
		}
	}
	return len(p.others) > 0
}

// isOpen says that what is sent to a URL could be read on its way, be it by whoever shows a certificate of his own making.
func (p *Peers) isOpen(at string) bool {
	parsed, err := url.Parse(at)
	if err != nil || parsed.Scheme == "https" && !p.anyServer {
		return err != nil
	}
	host := parsed.Hostname()
	return host != "localhost" && !net.ParseIP(host).IsLoopback()
}

// forbidden are etcd's answers to who may not change the members.
var forbidden = []error{
	rpctypes.ErrUserEmpty, rpctypes.ErrPermissionDenied, rpctypes.ErrAuthFailed, rpctypes.ErrUserNotFound, rpctypes.ErrInvalidAuthToken,
}

// explained names the way out of what authentication forbids to who came as that user. What a member has answered is cut to
// what people need.
func (p *Peers) explained(err error, user string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rpctypes.ErrUnhealthy), errors.Is(err, rpctypes.ErrMemberNotEnoughStarted):
		return fmt.Errorf("%w: enough voting members have to be connected for 5 s before etcd changes them: start those that do not run, "+
			"or remove one that is gone for good with etcdctl member remove", said{err})
	case !slices.ContainsFunc(forbidden, func(is error) bool { return errors.Is(err, is) }):
		return said{err}
	case p.User != "" && user == "":
		return fmt.Errorf("authentication is on, and ETCDCTL_PASSWORD is not sent to the others, whose client URLs are plain http or auto-tls, or have hosts that the configuration does not name: "+
			"give them https with certificates, or this member a client certificate whose common name is root: %w", said{err})
	default:
		return fmt.Errorf("authentication is on, and only root changes the members: give ETCDCTL_USER=root and ETCDCTL_PASSWORD, "+
			"or a client certificate whose common name is root: %w", said{err})
	}
}
