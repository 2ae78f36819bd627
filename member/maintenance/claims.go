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

// claim is a message of a member to its cluster: a lease with a reserved ID and no keys. The log delivers it to every
// member, it expires on its own, and unlike a key it changes no revision, wakes no watcher and needs no user.
//
// The ID's hexadecimal digits are 65e7, one for the kind, three for the nonce, and the last eight of the member's ID.
// etcd generates IDs from a member's ID and the time: none of them falls into this range until 2041, even if a
// member's ID ends in 65e7.
type claim struct {
	kind   kind
	nonce  uint16 // 12 bits; distinguishes claims of one kind and member
	member uint32 // the last 32 bits of the ID of the member that made it
}

type kind int64

const (
	wish      kind = iota + 1 // the member wants to defragment
	turn                      // the member defragments
	handover                  // the leader is about to move leadership
	quiet                     // the member holds its writes for the handover with this nonce
	promotion                 // the learner with this name is to be promoted; nonce and member are a hash of the name
	byHand                    // a user added the learner with this name, and it stays one when it is added again; hashed like promotion
)

const (
	reserved    int64 = 0x65e7 << 48
	kindShift         = 44
	nonceShift        = 32
	nonceMask         = 1<<(kindShift-nonceShift) - 1
	endOfClaims       = reserved + int64(byHand+1)<<kindShift
)

func (k kind) firstID() int64 { return reserved + int64(k)<<kindShift }

func (c claim) id() int64 { return c.kind.firstID() + int64(c.nonce)<<nonceShift + int64(c.member) }

func claimOf(id int64) claim {
	return claim{kind: kind(id >> kindShift & 0xf), nonce: uint16(id >> nonceShift & nonceMask), member: uint32(id)} //nolint:gosec // these bits
}

// names reports whether the claim was made by the member with this ID.
func (c claim) names(id types.ID) bool { return c.member == uint32(id) } //nolint:gosec // its end

// isReserved reports whether a lease ID is reserved for claims.
func isReserved(id int64) bool { return wish.firstID() <= id && id < endOfClaims }

// How long, in seconds, the cluster keeps the claims that recovery makes about learners.
const (
	PromotionTTL = 10 * 365 * 24 * 60 * 60 // bounds how long the learner may take to catch up
	ByHandTTL    = 60 * 60                 // bounds the time between the removal of the previous identity and the new one
)

// Promotion returns the ID of the lease that marks the learner with that name for promotion. Recovery grants it
// before it adds the member, so that a learner that a user added is never promoted by mistake, even if a member loses
// its memory. The lease has the name because the member has no ID yet.
func Promotion(name string) int64 { return promotion.forName(name).id() }

// ByHand returns the ID of the lease that keeps a learner a learner when recovery removes it and adds it again.
func ByHand(name string) int64 { return byHand.forName(name).id() }

func (k kind) forName(name string) claim {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(name))
	hash := sum.Sum64()
	return claim{k, uint16(hash >> nonceShift & nonceMask), uint32(hash)} //nolint:gosec // 44 bits
}

// IsToBePromoted reports whether the member with that name is marked for promotion in the log as applied here.
func IsToBePromoted(server *etcdserver.EtcdServer, name string) bool {
	return claims{server}.isKnown(promotion.forName(name))
}

// DropPromotion revokes both marks of the member with that name, once it has a vote.
func DropPromotion(ctx context.Context, server *etcdserver.EtcdServer, name string) error {
	known := claims{server}
	for _, said := range []claim{promotion.forName(name), byHand.forName(name)} {
		if !known.isKnown(said) {
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

// refuseReserved returns the error for a request that uses a reserved ID. In etcd any client may grant any lease. A
// client that may promote members may also mark a learner for promotion.
func (k *Maintainer) refuseReserved(ctx context.Context, asked any) error {
	if grant, ok := asked.(*etcdserverpb.LeaseGrantRequest); ok && promotion.firstID() <= grant.ID && grant.ID < endOfClaims {
		if s := k.served(); s != nil && s.cluster.isAdmin(ctx) {
			return nil
		}
	}
	return refuseReserved(asked)
}

func refuseReserved(asked any) error {
	if !usesReserved(asked) {
		return nil
	}
	return status.Errorf(codes.InvalidArgument, "etcd-wrapper: lease IDs from %x to %x are reserved for messages between members: choose another ID, or none", wish.firstID(), endOfClaims-1)
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
		return operationsUseReserved(r.GetSuccess()) || operationsUseReserved(r.GetFailure()) // the getters accept a nil r
	case interface{ GetLease() int64 }: // a put, lock or campaign
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

// reservedFilter is a client's stream that fails at the first request with a reserved ID.
type reservedFilter struct{ grpc.ServerStream }

// RecvMsg implements grpc.ServerStream.
func (s reservedFilter) RecvMsg(asked any) error {
	if err := s.ServerStream.RecvMsg(asked); err != nil {
		return err
	}
	return refuseReserved(asked)
}

// claims reads and writes the claims of a cluster through one of its members.
type claims struct{ server *etcdserver.EtcdServer }

// newClaim returns a claim of this member with a random nonce.
func (c claims) newClaim(kind kind) claim {
	return claim{kind, uint16(rand.IntN(nonceMask + 1)), uint32(c.server.MemberID())} //nolint:gosec // 12 bits; the ID's end
}

// propose proposes a claim for that duration, or its revocation if that is 0, and does not wait for it to be applied.
// It calls raft directly: etcd's own method requires a user while authentication is enabled, and fails while the
// member is far behind, as it is during a defragmentation.
func (c claims) propose(ctx context.Context, said claim, lasts time.Duration) error {
	request := etcdserverpb.InternalRaftRequest{Header: &etcdserverpb.RequestHeader{ID: rand.Uint64() | 1}} // never 0, which means no ID; nothing waits for the response
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

// pollInterval is the pause between two polls for an event that is about to happen.
const pollInterval = time.Millisecond

// await returns once a claim is known here, or no longer known.
func (c claims) await(ctx context.Context, said claim, known bool) error {
	clock := time.NewTicker(pollInterval)
	defer clock.Stop()
	for c.isKnown(said) != known {
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

func (c claims) isKnown(said claim) bool { return slices.Contains(c.list(said.kind), said) }

// list returns the claims of a kind. It reads the leases in the database, because etcd does not export its lessor.
// Usually there are no claims: then it reads a single key, however many leases exist.
func (c claims) list(of kind) (found []claim) {
	defer func() { _ = recover() }() // a snapshot from the leader may replace the database and close this one before the lock
	tx := c.server.Backend().ReadTx()
	tx.RLock()
	defer tx.RUnlock()
	if one, _ := tx.UnsafeRange(schema.Lease, leaseKey(of.firstID()), leaseKey((of + 1).firstID()), 1); len(one) == 0 {
		return nil
	}
	_ = tx.UnsafeForEach(schema.Lease, func(key, _ []byte) error {
		id := int64(binary.BigEndian.Uint64(key)) //nolint:gosec // as etcd writes it
		if of.firstID() <= id && id < (of+1).firstID() {
			found = append(found, claimOf(id))
		}
		return nil
	})
	return found
}

func leaseKey(id int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(id)) } //nolint:gosec // as etcd writes it
