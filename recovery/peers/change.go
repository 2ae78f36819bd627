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

// Remove removes this member from the cluster, provided that the survey still holds. It needs a quorum and may be
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

// Add adds this member to the cluster, unless it was added. It needs a quorum and may be repeated. The member is a
// learner that is promoted once it has caught up, or stays a learner if a user had added it as one.
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
			// With one of these alarms a cluster grants no lease. One more voter in an even number needs no larger
			// quorum, and no client writes that could be delayed while it has no data.
			_, err = client.MemberAdd(ctx, p.urls)
		case err == nil:
			_, err = client.MemberAddAsLearner(ctx, p.urls)
		}
		return err
	})
}

// knows reports whether the cluster was given the fact that a lease with that ID stands for.
func knows(ctx context.Context, client *clientv3.Client, id int64) (bool, error) {
	granted, err := client.TimeToLive(ctx, clientv3.LeaseID(id))
	return err == nil && granted.TTL >= 0, err
}

// tell stores, for ttl seconds, the fact that a lease with that ID stands for.
func tell(ctx context.Context, client *clientv3.Client, id, ttl int64) error {
	_, err := etcdserverpb.NewLeaseClient(client.ActiveConnection()).LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{ID: id, TTL: ttl})
	if err = rpctypes.Error(err); err != nil && !errors.Is(err, rpctypes.ErrLeaseExist) {
		return fmt.Errorf("the cluster takes in no lease: %w", err)
	}
	return nil
}

// Promote gives the survey's own member a vote. It needs a quorum and may be repeated. etcd agrees as soon as the
// member has caught up.
func (p *Peers) Promote(ctx context.Context, c *Survey) error {
	return p.change(ctx, c, func(ctx context.Context, client *clientv3.Client, _ []*etcdserverpb.Member) error {
		_, err := client.MemberPromote(ctx, uint64(c.Own.ID))
		return err
	})
}

func votes(members []*etcdserverpb.Member) int {
	return len(slices.DeleteFunc(slices.Clone(members), func(m *etcdserverpb.Member) bool { return m.IsLearner }))
}

// change makes a change of the members through the others' clients' endpoints.
func (p *Peers) change(ctx context.Context, c *Survey, how func(context.Context, *clientv3.Client, []*etcdserverpb.Member) error) error {
	ctx, cancel := context.WithTimeout(ctx, changeWithin)
	defer cancel()
	config := clientv3.Config{Context: ctx, TLS: p.clientTLS, DialTimeout: answerWithin, Logger: zap.NewNop()}
	config.Endpoints, config.Username, config.Password = p.entrances(c)
	client, err := clientv3.New(config)
	if err != nil {
		return p.explained(fmt.Errorf("cannot connect to the other members: %w", err), config.Username)
	}
	defer client.Close() // nothing needs it after this
	list, err := client.MemberList(ctx)
	if err == nil && fmt.Sprintf("%x", list.Header.ClusterId) != c.Cluster {
		err = fmt.Errorf("cluster %x answers, and not %s", list.Header.ClusterId, c.Cluster)
	}
	for i := 0; err == nil && i < len(list.Members); i++ { // checked as in inTheWay, at the moment of the change
		err = p.known(list.Members[i].Name, list.Members[i].PeerURLs)
	}
	if err == nil {
		err = how(ctx, client, list.Members)
	}
	return p.explained(p.unreached(context.WithoutCancel(ctx), c, err), config.Username)
}

// unreached returns why the others do not answer a client, for which gRPC reports only a timeout.
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

// refused returns the way out if a server rejects a certificate.
func refused(why error) string {
	var by *net.OpError
	if errors.As(why, &by) && by.Op == "remote error" {
		return "; a certificate that they take is given with --etcd-client-cert-path"
	}
	return ""
}

// entrances returns the client URLs of the others, and the user and password to send. A password is sent only where
// others cannot read it, and only to members that the configuration names or whose peers have shown verified
// certificates. If one of the URLs does not qualify, it is sent to none.
func (p *Peers) entrances(c *Survey) (urls []string, user, password string) {
	var private []string
	for _, m := range voters(c.Others()) {
		urls = append(urls, m.ClientURLs...)
		private = append(private, slices.DeleteFunc(slices.Clone(m.ClientURLs), func(at string) bool {
			// A URL belongs to a member if its host is in the configuration, or if it came from peers that have all
			// shown verified certificates.
			isTrusted := p.hosts[hostOf(at)] || p.verified()
			return p.isOpen(at) || !isTrusted
		})...)
	}
	if p.User == "" || len(private) == 0 {
		return urls, "", ""
	}
	return private, p.User, p.Password
}

// verified reports whether every peer's certificate is verified.
func (p *Peers) verified() bool {
	for _, urls := range p.others {
		if p.anyPeer || slices.ContainsFunc(urls, func(at string) bool { return !strings.HasPrefix(at, "https:") }) {
			return false
		}
	}
	return len(p.others) > 0
}

// isOpen reports whether others could read what is sent to a URL, if only by showing a certificate of their own.
func (p *Peers) isOpen(at string) bool {
	parsed, err := url.Parse(at)
	if err != nil || parsed.Scheme == "https" && !p.anyServer {
		return err != nil
	}
	host := parsed.Hostname()
	return host != "localhost" && !net.ParseIP(host).IsLoopback()
}

// forbidden lists etcd's errors for a user that may not change the members.
var forbidden = []error{
	rpctypes.ErrUserEmpty, rpctypes.ErrPermissionDenied, rpctypes.ErrAuthFailed, rpctypes.ErrUserNotFound, rpctypes.ErrInvalidAuthToken,
}

// explained adds the way out to an authentication error. Text from a member is cut to what users need.
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
