package maintenance

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// claim is what a member says to the others of its cluster: a lease with a reserved ID and no keys. The log brings it to every
// member, it ends by itself, and unlike a key it moves no revision, wakes no watcher and needs no user.
//
// The ID's hexadecimal digits are 65e7, one for the kind, three for the nonce, and the last eight of the member's ID. etcd makes IDs
// of a member's ID and the time: until 2041 none of them lies there, even where a member's ID ends in 65e7.
type claim struct {
	kind   kind
	nonce  uint16 // 12 bits; tells the claims of a member apart that are alike
	member uint32 // the end of the ID of who says it
}

type kind int64

const (
	wish      kind = iota + 1 // to defragment
	turn                      // to defragment
	handover                  // the member is about to give its leadership away
	quiet                     // the member holds its writes back for the handover with this nonce
	promotion                 // the learner with this name is to be given a vote; nonce and member are a hash of the name
	byHand                    // the learner with this name was added by a person, and is one again when it is back; named as a promotion is
)

const (
	reserved    int64 = 0x65e7 << 48
	kindShift         = 44
	nonceShift        = 32
	nonceMask         = 1<<(kindShift-nonceShift) - 1
	endOfClaims       = reserved + int64(byHand+1)<<kindShift
)

func (k kind) first() int64 { return reserved + int64(k)<<kindShift }

func (c claim) id() int64 { return c.kind.first() + int64(c.nonce)<<nonceShift + int64(c.member) }

func claimOf(id int64) claim {
	return claim{kind: kind(id >> kindShift & 0xf), nonce: uint16(id >> nonceShift & nonceMask), member: uint32(id)} //nolint:gosec // these bits
}

// names reports whether the claim is a member's.
func (c claim) names(id types.ID) bool { return c.member == uint32(id) } //nolint:gosec // its end

// isReserved reports whether a lease's ID is for claims only.
func isReserved(id int64) bool { return wish.first() <= id && id < endOfClaims }

// How long, in seconds, the cluster remembers what recovery has it know of a learner.
const (
	PromotionTTL = 10 * 365 * 24 * 60 * 60 // for it to catch up; what is dropped then is not missed
	ByHandTTL    = 60 * 60                 // for it to be added anew, once its former identity was removed
)

// Promotion is the ID of the lease by which the learner with that name is to be promoted. Recovery has the cluster grant it before it
// has the member added, so that nobody takes one that a person added for it, whatever either loses: the cluster itself remembers it,
// and under a name, as the member has no ID yet.
func Promotion(name string) int64 { return promotion.of(name).id() }

// ByHand is the ID of the lease by which a learner that recovery is about to remove stays one once it is added anew.
func ByHand(name string) int64 { return byHand.of(name).id() }

func (k kind) of(name string) claim {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(name))
	hash := sum.Sum64()
	return claim{k, uint16(hash >> nonceShift & nonceMask), uint32(hash)} //nolint:gosec // 44 bits
}

// IsToBePromoted reports whether a member of that name has its promotion granted, as far as the log has come here.
func IsToBePromoted(server *etcdserver.EtcdServer, name string) bool {
	return claims{server}.know(promotion.of(name))
}

// DropPromotion has the cluster forget it, once there is a vote, and that a person had added the member without one.
func DropPromotion(ctx context.Context, server *etcdserver.EtcdServer, name string) error {
	known := claims{server}
	for _, said := range []claim{promotion.of(name), byHand.of(name)} {
		if !known.know(said) {
			continue
		}
		if err := known.propose(ctx, said, 0); err != nil {
			return err
		}
		if err := known.await(ctx, said, false); err != nil {
			return err
		}
	}
	return nil
}

// refuseReserved is the answer to a client that asks for something with a reserved ID. In etcd whoever may connect may grant any lease.
// Who may promote a member may say of a learner whether it is to be promoted.
func (k *Maintainer) refuseReserved(ctx context.Context, asked any) error {
	if grant, ok := asked.(*etcdserverpb.LeaseGrantRequest); ok && promotion.first() <= grant.ID && grant.ID < endOfClaims {
		if s := k.served(); s != nil && s.cluster.permits(ctx) {
			return nil
		}
	}
	return refuseReserved(asked)
}

func refuseReserved(asked any) error {
	if !usesReserved(asked) {
		return nil
	}
	return status.Errorf(codes.InvalidArgument, "etcd-wrapper: lease IDs from %x to %x are reserved for what members say to each other: choose another ID, or none", wish.first(), endOfClaims-1)
}

func usesReserved(asked any) bool {
	switch r := asked.(type) {
	case *etcdserverpb.LeaseGrantRequest:
		return isReserved(r.ID)
	case *etcdserverpb.LeaseRevokeRequest:
		return isReserved(r.ID)
	case *etcdserverpb.LeaseKeepAliveRequest:
		return isReserved(r.ID)
	case *etcdserverpb.TxnRequest:
		return operationsUseReserved(r.GetSuccess()) || operationsUseReserved(r.GetFailure()) // r may be nil
	case interface{ GetLease() int64 }: // a put, a lock, or a candidacy
		return isReserved(r.GetLease())
	default:
		return false
	}
}

func operationsUseReserved(all []*etcdserverpb.RequestOp) bool {
	for _, operation := range all {
		if isReserved(operation.GetRequestPut().GetLease()) || usesReserved(operation.GetRequestTxn()) {
			return true
		}
	}
	return false
}

// unreserved is a client's stream that ends with a request for a reserved ID.
type unreserved struct{ grpc.ServerStream }

// RecvMsg is grpc.ServerStream's.
func (s unreserved) RecvMsg(asked any) error {
	if err := s.ServerStream.RecvMsg(asked); err != nil {
		return err
	}
	return refuseReserved(asked)
}

// claims are those of a cluster, as one member of it knows them.
type claims struct{ server *etcdserver.EtcdServer }

// own is a claim of this member's with a nonce of its own.
func (c claims) own(kind kind) claim {
	return claim{kind, uint16(rand.IntN(nonceMask + 1)), uint32(c.server.MemberID())} //nolint:gosec // 12 bits; the ID's end
}

// propose has the cluster take a claim on for that long, or drop it where that is 0, and does not wait for it. It goes to raft
// directly: etcd's own method needs a user where authentication is enabled, which nobody can speak for without the key that signs
// tokens, and refuses while the member is far behind, as it is while it defragments.
func (c claims) propose(ctx context.Context, said claim, lasts time.Duration) error {
	request := etcdserverpb.InternalRaftRequest{Header: &etcdserverpb.RequestHeader{ID: rand.Uint64() | 1}} // nobody waits for its answer, and 0 stands for none
	if lasts > 0 {
		request.LeaseGrant = &etcdserverpb.LeaseGrantRequest{ID: said.id(), TTL: int64(lasts / time.Second)}
	} else {
		request.LeaseRevoke = &etcdserverpb.LeaseRevokeRequest{ID: said.id()}
	}
	data, err := request.Marshal()
	if err != nil {
		return fmt.Errorf("cannot write lease %x: %w", said.id(), err)
	}
	self := uint64(c.server.MemberID())
	err = c.server.Process(ctx, raftpb.Message{Type: raftpb.MsgProp, From: self, To: self, Entries: []raftpb.Entry{{Data: data}}})
	if err != nil {
		return fmt.Errorf("cannot propose lease %x: %w", said.id(), err)
	}
	return nil
}

// lookAgain is the pause between two looks for what is about to come.
const lookAgain = time.Millisecond

// await returns when a claim is known here, or not any more.
func (c claims) await(ctx context.Context, said claim, known bool) error {
	clock := time.NewTicker(lookAgain)
	defer clock.Stop()
	for c.know(said) != known {
		select {
		case <-clock.C:
		case <-c.server.StoppingNotify():
			return errNotServing
		case <-ctx.Done():
			return fmt.Errorf("the cluster has not answered: %w", ctx.Err())
		}
	}
	return nil
}

func (c claims) know(said claim) bool { return slices.Contains(c.all(said.kind), said) }

// all are the claims of a kind. It looks at the leases where etcd keeps them, as it shows nobody its lessor. While there are no
// claims, as nearly always, it looks at one place, however many leases there are.
func (c claims) all(of kind) (found []claim) {
	defer func() { _ = recover() }() // a leader's snapshot has replaced the database, and this one was closed before it was locked
	tx := c.server.Backend().ReadTx()
	tx.RLock()
	defer tx.RUnlock()
	if one, _ := tx.UnsafeRange(schema.Lease, leaseKey(of.first()), leaseKey((of + 1).first()), 1); len(one) == 0 {
		return nil
	}
	_ = tx.UnsafeForEach(schema.Lease, func(key, _ []byte) error {
		id := int64(binary.BigEndian.Uint64(key)) //nolint:gosec // as etcd writes it
		if of.first() <= id && id < (of+1).first() {
			found = append(found, claimOf(id))
		}
		return nil
	})
	return found
}

func leaseKey(id int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(id)) } //nolint:gosec // as etcd writes it
