package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
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
func (p *Peers) Remove(ctx context.Context, s *Survey) error {
	return p.change(ctx, s, func(ctx context.Context, client *clientv3.Client, members []*etcdserverpb.Member) error {
		i := slices.IndexFunc(members, func(m *etcdserverpb.Member) bool { return m.ID == uint64(s.Own.ID) })
		if i < 0 {
			return nil
		}
		voting := slices.DeleteFunc(slices.Clone(members), func(m *etcdserverpb.Member) bool { return m.IsLearner })
		if !members[i].IsLearner && len(voting) < minVoters {
			return fmt.Errorf("the cluster has only %d voting members now", len(voting))
		}
		if members[i].IsLearner {
			promoted, err := hasLease(ctx, client, maintenance.PromoteLease(p.name))
			if err == nil && !promoted {
				err = grantLease(ctx, client, maintenance.ManualLease(p.name), maintenance.ManualLeaseTTL)
			}
			if err != nil {
				return fmt.Errorf("cannot read whether this learner is to be promoted: %w", err)
			}
		}
		_, err := client.MemberRemove(ctx, uint64(s.Own.ID))
		return err
	})
}

// Add adds this member to the cluster, unless it was added. It needs a quorum and may be repeated. The member is a
// learner that is promoted once it has caught up, or stays a learner if a user had added it as one.
func (p *Peers) Add(ctx context.Context, s *Survey) error {
	return p.change(ctx, s, func(ctx context.Context, client *clientv3.Client, members []*etcdserverpb.Member) error {
		for _, m := range members {
			if m.Name == p.name || slices.ContainsFunc(m.PeerURLs, p.isSelfURL) {
				return nil
			}
			if m.IsLearner || len(m.ClientURLs) == 0 {
				return errors.New("another member is about to join now")
			}
		}
		byHand, err := hasLease(ctx, client, maintenance.ManualLease(p.name))
		if err == nil && !byHand {
			err = grantLease(ctx, client, maintenance.PromoteLease(p.name), maintenance.PromoteLeaseTTL)
		}
		switch {
		case (errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, rpctypes.ErrCorrupt)) && len(members)%2 == 0: // all of them vote
			// With one of these alarms a cluster grants no lease. One more voter in an even number needs no larger
			// quorum, and no client writes that could be delayed while it has no data.
			_, err = client.MemberAdd(ctx, p.urls)
		case err == nil:
			_, err = client.MemberAddAsLearner(ctx, p.urls)
		}
		return err
	})
}

// hasLease reports whether the cluster has a lease with that ID, which stands for a fact about a learner.
func hasLease(ctx context.Context, client *clientv3.Client, id int64) (bool, error) {
	granted, err := client.TimeToLive(ctx, clientv3.LeaseID(id))
	return err == nil && granted.TTL >= 0, err
}

// grantLease grants such a lease for ttl seconds.
func grantLease(ctx context.Context, client *clientv3.Client, id, ttl int64) error {
	_, err := etcdserverpb.NewLeaseClient(client.ActiveConnection()).LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{ID: id, TTL: ttl})
	if err = rpctypes.Error(err); err != nil && !errors.Is(err, rpctypes.ErrLeaseExist) {
		return fmt.Errorf("the cluster grants no lease: %w", err)
	}
	return nil
}

// Promote gives the survey's own member a vote. It needs a quorum and may be repeated. etcd agrees as soon as the
// member has caught up.
func (p *Peers) Promote(ctx context.Context, s *Survey) error {
	return p.change(ctx, s, func(ctx context.Context, client *clientv3.Client, _ []*etcdserverpb.Member) error {
		_, err := client.MemberPromote(ctx, uint64(s.Own.ID))
		return err
	})
}

// change makes a change of the members through the client endpoints of the others.
func (p *Peers) change(ctx context.Context, s *Survey, apply func(context.Context, *clientv3.Client, []*etcdserverpb.Member) error) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	config := clientv3.Config{
		Context: ctx, TLS: p.client.Transport.(*http.Transport).TLSClientConfig, DialTimeout: requestTimeout, Logger: zap.NewNop(),
	}
	config.Endpoints, config.Username, config.Password = p.endpoints(s)
	client, err := clientv3.New(config)
	if err != nil {
		return p.withHint(fmt.Errorf("cannot connect to the other members: %w", err), config.Username)
	}
	defer client.Close() // nothing needs it after this
	list, err := client.MemberList(ctx)
	if err == nil && fmt.Sprintf("%x", list.Header.ClusterId) != s.Cluster {
		err = fmt.Errorf("cluster %x answers instead of %s", list.Header.ClusterId, s.Cluster)
	}
	for i := 0; err == nil && i < len(list.Members); i++ { // checked as by checkReplacement, at the time of the change
		err = p.checkURLs(list.Members[i].Name, list.Members[i].PeerURLs)
	}
	if err == nil {
		err = apply(ctx, client, list.Members)
	}
	return p.withHint(p.withCause(context.WithoutCancel(ctx), s, err), config.Username)
}

// withCause adds why the others do not answer a client, for which gRPC reports only a timeout.
func (p *Peers) withCause(ctx context.Context, s *Survey, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	for _, m := range s.Others() {
		_, cause := p.fetchPage(ctx, m, "/version")
		var failed *net.OpError
		switch {
		case cause == nil:
		case errors.As(cause, &failed) && failed.Op == "remote error":
			return fmt.Errorf("%w: %w; give a certificate that they accept with --etcd-client-cert-path", err, cause)
		default:
			return fmt.Errorf("%w: %w", err, cause)
		}
	}
	return err
}

// endpoints returns the client URLs of the others, and the user and password to send. A password is sent only where
// others cannot read it, and only to members that the configuration names or whose peers have shown verified
// certificates. If no URL qualifies, it is not sent.
func (p *Peers) endpoints(s *Survey) (urls []string, user, password string) {
	for _, m := range voters(s.Others()) {
		urls = append(urls, m.ClientURLs...)
	}
	private := slices.DeleteFunc(slices.Clone(urls), func(raw string) bool {
		// A URL belongs to a member if its host is in the configuration, or if it came from peers that have all
		// shown verified certificates.
		isTrusted := p.hosts[hostOf(raw)] || p.hasVerifiedPeers()
		return p.isReadable(raw) || !isTrusted
	})
	if p.User == "" || len(private) == 0 {
		return urls, "", ""
	}
	return private, p.User, p.Password
}

// hasVerifiedPeers reports whether every peer's certificate is verified.
func (p *Peers) hasVerifiedPeers() bool {
	isPlain := func(raw string) bool { return !strings.HasPrefix(raw, "https:") }
	return len(p.others) > 0 && !p.anyPeer && !slices.ContainsFunc(p.otherURLs(), isPlain)
}

// isReadable reports whether others could read what is sent to a URL, if only by showing a certificate of their own.
func (p *Peers) isReadable(raw string) bool {
	parsed, err := url.Parse(raw)
	if err != nil || parsed.Scheme == "https" && !p.anyServer {
		return err != nil
	}
	host := parsed.Hostname()
	return host != "localhost" && !net.ParseIP(host).IsLoopback()
}

// authErrors lists etcd's errors for a user that may not change the members.
var authErrors = []error{
	rpctypes.ErrUserEmpty, rpctypes.ErrPermissionDenied, rpctypes.ErrAuthFailed, rpctypes.ErrUserNotFound, rpctypes.ErrInvalidAuthToken,
}

// withHint adds the way out to an authentication error. Text from a member is cut to what users need.
func (p *Peers) withHint(err error, user string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rpctypes.ErrUnhealthy), errors.Is(err, rpctypes.ErrMemberNotEnoughStarted):
		return fmt.Errorf("%w: enough voting members have to be connected for 5 s before etcd changes them: start those that do not run, "+
			"or remove one that is gone for good with etcdctl member remove", remoteError{err})
	case !slices.ContainsFunc(authErrors, func(each error) bool { return errors.Is(err, each) }):
		return remoteError{err}
	case p.User != "" && user == "":
		return fmt.Errorf("authentication is on, and ETCDCTL_PASSWORD is not sent to the others, whose client URLs are plain http or auto-tls, or have hosts that the configuration does not name: "+
			"give them https with certificates, or this member a client certificate whose common name is root: %w", remoteError{err})
	default:
		return fmt.Errorf("authentication is on, and only root changes the members: give ETCDCTL_USER=root and ETCDCTL_PASSWORD, "+
			"or a client certificate whose common name is root: %w", remoteError{err})
	}
}
