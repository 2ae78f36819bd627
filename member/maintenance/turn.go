package maintenance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/lease"
)

// The keys in etcd by which members take turns. Kubernetes keeps everything below /registry/, and an operator's own keys
// begin with a slash or a name of theirs. All of them belong to leases, so that a member that dies blocks nobody for long.
const (
	prefix  = "etcd-wrapper/defragmentation/"
	turnKey = prefix + "turn" // its value is the name of the member whose turn it is
	// handoverKey has the ID of a leader that gives its leadership away within a moment.
	handoverKey = prefix + "handover"
	quietKeys   = prefix + "quiet/"  // followed by the ID of a member that holds its writes back; its value is the handover's revision
	wishKeys    = prefix + "wanted/" // followed by the ID of a member that wants to defragment; its value is the name
)

const (
	// turnTTL is how long, in seconds, the turn of a member that died is kept.
	turnTTL = 60
	// renewal is how often a turn is kept alive.
	renewal = turnTTL * time.Second / 6
	// patience bounds one request to the cluster.
	patience = 5 * time.Second
)

// turn is a member's place among those that want to defragment. etcd's own objects are called, so neither certificates nor
// host names are needed; what they ask for passes etcd's authorization as root, as etcd's own expiry of leases does.
type turn struct {
	server *etcdserver.EtcdServer
	name   string
	active func(self types.ID) map[types.ID]bool // the members that there is a connection to
	lease  int64                                 // 0 if there is none
	log    zerolog.Logger
}

// root is a context whose requests may touch the keys where the cluster has authentication enabled.
func (t *turn) root(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	return t.server.AuthStore().WithRoot(ctx), cancel
}

// wish tells the cluster that this member wants to defragment, or goes on doing so. It is followers first: the leader looks
// at the wishes.
func (t *turn) wish(ctx context.Context) error {
	if t.renew(ctx) == nil {
		return nil
	}
	if err := t.begin(ctx); err != nil {
		return err
	}
	ctx, cancel := t.root(ctx)
	defer cancel()
	key := []byte(wishKeys + t.server.MemberID().String())
	if _, err := t.server.Put(ctx, &etcdserverpb.PutRequest{Key: key, Value: []byte(t.name), Lease: t.lease}); err != nil {
		return fmt.Errorf("the cluster was not told that %s wants to defragment: %w", t.name, err)
	}
	return nil
}

// wishes are the names of the other members that want to defragment.
func (t *turn) wishes(ctx context.Context) (names []string, err error) {
	ctx, cancel := t.root(ctx)
	defer cancel()
	reply, err := t.server.Range(ctx, &etcdserverpb.RangeRequest{Key: []byte(wishKeys), RangeEnd: endOf(wishKeys)})
	if err != nil {
		return nil, fmt.Errorf("it cannot be seen who else wants to defragment: %w", err)
	}
	for _, kv := range reply.Kvs {
		if strings.TrimPrefix(string(kv.Key), wishKeys) != t.server.MemberID().String() {
			names = append(names, string(kv.Value))
		}
	}
	return names, nil
}

// endOf is where the keys below a prefix end.
func endOf(below string) []byte { return []byte(clientv3.GetPrefixRangeEnd(below)) }

// errTaken says that it is another member's turn.
var errTaken = errors.New("is being defragmented: wait for its end")

// take makes it this member's turn. The error wraps errTaken, behind the name of the member whose turn it is.
func (t *turn) take(ctx context.Context) error {
	if t.renew(ctx) != nil {
		if err := t.begin(ctx); err != nil {
			return err
		}
	}
	ctx, cancel := t.root(ctx)
	defer cancel()
	reply, err := t.server.Txn(ctx, &etcdserverpb.TxnRequest{
		Compare: []*etcdserverpb.Compare{{
			Target: etcdserverpb.Compare_CREATE, Result: etcdserverpb.Compare_EQUAL, Key: []byte(turnKey),
			TargetUnion: &etcdserverpb.Compare_CreateRevision{CreateRevision: 0},
		}},
		Success: []*etcdserverpb.RequestOp{{Request: &etcdserverpb.RequestOp_RequestPut{
			RequestPut: &etcdserverpb.PutRequest{Key: []byte(turnKey), Value: []byte(t.name), Lease: t.lease},
		}}},
		Failure: []*etcdserverpb.RequestOp{{Request: &etcdserverpb.RequestOp_RequestRange{
			RequestRange: &etcdserverpb.RangeRequest{Key: []byte(turnKey)},
		}}},
	})
	switch {
	case err != nil:
		return fmt.Errorf("the cluster did not say whose turn it is to defragment: %w", err)
	case reply.Succeeded:
		return nil
	default:
		return fmt.Errorf("%s %w", holder(reply), errTaken)
	}
}

// holder is the member whose turn it is.
func holder(reply *etcdserverpb.TxnResponse) string {
	for _, kv := range reply.Responses[0].GetResponseRange().Kvs {
		return "member " + string(kv.Value)
	}
	return "another member"
}

// begin gets the lease that the keys belong to.
func (t *turn) begin(ctx context.Context) error {
	ctx, cancel := t.root(ctx)
	defer cancel()
	granted, err := t.server.LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{TTL: turnTTL})
	if err != nil {
		return fmt.Errorf("no lease for the keys of this member: %w", err)
	}
	t.lease = granted.ID
	return nil
}

// renew keeps the keys alive. It needs nothing of this member's own database.
func (t *turn) renew(ctx context.Context) error {
	if t.lease == 0 {
		return errors.New("there is no lease yet")
	}
	ctx, cancel := t.root(ctx)
	defer cancel()
	if _, err := t.server.LeaseRenew(ctx, lease.LeaseID(t.lease)); err != nil {
		t.lease = 0
		return fmt.Errorf("the lease of the turn to defragment could not be renewed: %w", err)
	}
	return nil
}

// farewell bounds what a member that stops still asks of its cluster.
const farewell = time.Second

// end gives the turn and the wish back. If that is not possible, they end with their lease.
func (t *turn) end(ctx context.Context) {
	if t.lease == 0 {
		return
	}
	defer func() { t.lease = 0 }()
	if t.server.Leader() == 0 {
		return
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer done()
	ctx, cancel := t.root(ctx)
	defer cancel()
	_, _ = t.server.LeaseRevoke(ctx, &etcdserverpb.LeaseRevokeRequest{ID: t.lease})
}

// keep renews the turn until what it returns is called.
func (t *turn) keep(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		clock := time.NewTicker(renewal)
		defer clock.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-clock.C:
				_ = t.renewOnce(ctx)
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// renewOnce renews the lease and keeps it in mind even if that fails: the next try may succeed.
func (t *turn) renewOnce(ctx context.Context) error {
	ctx, cancel := t.root(ctx)
	defer cancel()
	_, err := t.server.LeaseRenew(ctx, lease.LeaseID(t.lease))
	return err
}

// byClock says, where the alarm NOSPACE lets nobody write a key, whether it is this member's turn: each has a slot of its
// own in turns, by the order of IDs, and begins only early in it. Clocks that differ cost nothing but that two members
// may stand still at once, while writes are refused anyway.
func byClock(now time.Time, slot time.Duration, self types.ID, members []peer) bool {
	slot = max(slot, time.Minute)
	rank := 0
	for _, p := range members {
		if p.id < self {
			rank++
		}
	}
	since := now.UnixNano()
	return since/int64(slot)%int64(len(members)) == int64(rank) && since%int64(slot) < int64(slot)/3
}
