package peers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Remove takes this member out of the cluster, if it still is what the census says: a quorum is asked again. It may be
// repeated.
func (p *Peers) Remove(ctx context.Context, c *Census) error {
	return p.change(ctx, c, func(ctx context.Context, client *clientv3.Client, now []*etcdserverpb.Member) error {
		at := slices.IndexFunc(now, func(m *etcdserverpb.Member) bool { return m.ID == uint64(c.Own.ID) })
		if at < 0 {
			return nil
		}
		if !now[at].IsLearner && votes(now) < fewest {
			return fmt.Errorf("the cluster has %d voting members by now", votes(now))
		}
		_, err := client.MemberRemove(ctx, uint64(c.Own.ID))
		return err
	})
}

// Add has the cluster take this member in as a learner, unless it has: a quorum is asked. It may be repeated.
func (p *Peers) Add(ctx context.Context, c *Census) error {
	return p.change(ctx, c, func(ctx context.Context, client *clientv3.Client, now []*etcdserverpb.Member) error {
		for _, m := range now {
			if m.Name == p.name || slices.ContainsFunc(m.PeerURLs, p.isOwnURL) {
				return nil
			}
			if m.IsLearner || len(m.ClientURLs) == 0 {
				return errors.New("another member is about to join by now")
			}
		}
		_, err := client.MemberAddAsLearner(ctx, p.urls)
		return err
	})
}

func votes(members []*etcdserverpb.Member) (count int) {
	for _, m := range members {
		if !m.IsLearner {
			count++
		}
	}
	return count
}

// change asks the others for a change of the members, who answer as their quorum does.
func (p *Peers) change(ctx context.Context, c *Census, how func(context.Context, *clientv3.Client, []*etcdserverpb.Member) error) error {
	ctx, cancel := context.WithTimeout(ctx, changeWithin)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{
		Context: ctx, Endpoints: p.endpoints(c), TLS: p.clientTLS, Username: p.user, Password: p.password, DialTimeout: answerWithin, Logger: zap.NewNop(),
	})
	if err != nil {
		return explained(fmt.Errorf("cannot connect to the other members: %w", err))
	}
	defer client.Close() // nothing of it is needed any more
	list, err := client.MemberList(ctx)
	if err == nil && fmt.Sprintf("%x", list.Header.ClusterId) != c.Cluster {
		err = fmt.Errorf("cluster %x answers, and not %s", list.Header.ClusterId, c.Cluster)
	}
	if err == nil {
		err = how(ctx, client, list.Members)
	}
	return explained(err)
}

func (p *Peers) endpoints(c *Census) (urls []string) {
	for _, m := range c.Members {
		if m.ID != c.Own.ID && !m.IsLearner {
			urls = append(urls, m.ClientURLs...)
		}
	}
	return urls
}

// explained names the way out of what authentication forbids.
func explained(err error) error {
	for _, forbidden := range []error{
		rpctypes.ErrUserEmpty, rpctypes.ErrPermissionDenied, rpctypes.ErrAuthFailed, rpctypes.ErrUserNotFound, rpctypes.ErrInvalidAuthToken,
	} {
		if errors.Is(err, forbidden) {
			return fmt.Errorf("authentication is on, and only root changes the members: give ETCDCTL_USER=root and ETCDCTL_PASSWORD, "+
				"or a client certificate whose common name is root: %w", err)
		}
	}
	return err
}
