package maintenance

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"etcd-wrapper/internal/clock"
)

// claim is a message from a member to the cluster, in the form of a lease with a reserved ID and no keys. The raft
// log delivers it to every member, and it expires automatically. Unlike a key, a claim does not change the revision,
// trigger watches or require a user.
//
// In hexadecimal, the lease ID consists of 65e7, one digit for the kind, three digits for the nonce, and the last
// eight digits of the member ID. etcd derives the lease IDs that it generates from the member ID and the time, and
// cannot generate a reserved ID before 2041, even if the member ID ends in 65e7.
type claim struct {
	kind   kind
	nonce  uint16 // 12 bits; distinguishes claims of the same kind and member
	member uint32 // low 32 bits of the ID of the member that made the claim
}

type kind int64

const (
	turnRequest  kind = iota + 1 // the member wants to defragment its database
	turn                         // the member is defragmenting
	handover                     // the leader is about to transfer leadership
	writesPaused                 // the member has paused its writes for the handover that has the same nonce
	promoteMark                  // the learner with this name must be promoted; nonce and member contain a hash of the name
	manualMark                   // a user added the learner with this name, so it must remain a learner if recovery re-adds it; hashed like promoteMark
)

const (
	reserved    int64 = 0x65e7 << 48
	kindShift         = 44
	nonceShift        = 32
	nonceMask         = 1<<(kindShift-nonceShift) - 1
	endOfClaims       = reserved + int64(manualMark+1)<<kindShift
)

func (k kind) firstID() int64 { return reserved + int64(k)<<kindShift }

func (c claim) id() int64 { return c.kind.firstID() + int64(c.nonce)<<nonceShift + int64(c.member) }

func claimOf(id int64) claim {
	return claim{kind: kind(id >> kindShift & 0xf), nonce: uint16(id >> nonceShift & nonceMask), member: uint32(id)} //nolint:gosec // each part is extracted by truncation
}

// names reports whether the claim was made by the member with this ID.
func (c claim) names(id types.ID) bool { return c.member == uint32(id) } //nolint:gosec // a claim contains only the low 32 bits of the ID

// isReserved reports whether a lease ID is reserved for claims.
func isReserved(id int64) bool { return turnRequest.firstID() <= id && id < endOfClaims }

// TTLs, in seconds, of the claims that recovery makes about learners.
const (
	PromoteLeaseTTL = 10 * 365 * 24 * 60 * 60 // maximum time that a learner may take to catch up
	ManualLeaseTTL  = 60 * 60                 // maximum time between removing the old identity and adding the new one
)

// PromoteLease returns the ID of the lease that marks the learner with this name for promotion. Recovery grants the
// lease before it adds the member, so that a learner added by a user is never promoted by mistake. The lease ID is
// based on the name, because the member has no ID at that point.
func PromoteLease(name string) int64 { return promoteMark.forName(name).id() }

// ManualLease returns the ID of the lease for a learner that must remain a learner when recovery removes and re-adds
// it.
func ManualLease(name string) int64 { return manualMark.forName(name).id() }

func (k kind) forName(name string) claim {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(name))
	hash := sum.Sum64()
	return claim{k, uint16(hash >> nonceShift & nonceMask), uint32(hash)} //nolint:gosec // a claim contains only 44 bits of the hash
}

// HasPromoteLease reports whether the member with this name is marked for promotion, according to the entries applied
// so far.
func HasPromoteLease(server *etcdserver.EtcdServer, name string) bool {
	return claims{server}.isKnown(promoteMark.forName(name))
}

// RemovePromoteLease revokes both leases for the member with this name. Call it once the member can vote.
func RemovePromoteLease(ctx context.Context, server *etcdserver.EtcdServer, name string) error {
	leases := claims{server}
	for _, target := range []claim{promoteMark.forName(name), manualMark.forName(name)} {
		if !leases.isKnown(target) {
			continue
		}
		if err := leases.propose(ctx, target, 0); err != nil {
			return err
		}
		if err := leases.await(ctx, target, false); err != nil {
			return err
		}
	}
	return nil
}

// checkReserved returns an error if a request uses a reserved lease ID. The check is needed because etcd lets any
// client choose the ID of a lease. As an exception, clients that are allowed to promote members may mark a learner for
// promotion.
func (k *Maintainer) checkReserved(ctx context.Context, request any) error {
	if !usesReserved(request) {
		return nil
	}
	if grant, ok := request.(*etcdserverpb.LeaseGrantRequest); ok && grant.ID >= promoteMark.firstID() {
		if s := k.serving.Load(); s != nil && s.cluster.isAdmin(ctx) {
			return nil
		}
	}
	return status.Errorf(codes.InvalidArgument, "etcd-wrapper: lease IDs from %x to %x are reserved for internal use: choose another ID or let etcd choose one", turnRequest.firstID(), endOfClaims-1)
}

func usesReserved(request any) bool {
	inOperation := func(op *etcdserverpb.RequestOp) bool {
		return isReserved(op.GetRequestPut().GetLease()) || usesReserved(op.GetRequestTxn())
	}
	switch r := request.(type) {
	case *etcdserverpb.LeaseGrantRequest:
		return isReserved(r.ID)
	case *etcdserverpb.LeaseRevokeRequest:
		return isReserved(r.ID)
	case *etcdserverpb.LeaseKeepAliveRequest:
		return isReserved(r.ID)
	case *etcdserverpb.TxnRequest:
		return slices.ContainsFunc(slices.Concat(r.GetSuccess(), r.GetFailure()), inOperation) // the getters work on a nil r
	case interface{ GetLease() int64 }: // a put, lock or campaign
		return isReserved(r.GetLease())
	default:
		return false
	}
}

// reservedFilter is a client stream that fails on the first request with a reserved lease ID.
type reservedFilter struct {
	grpc.ServerStream
	check func(ctx context.Context, request any) error
}

// RecvMsg implements grpc.ServerStream.
func (s reservedFilter) RecvMsg(request any) error {
	if err := s.ServerStream.RecvMsg(request); err != nil {
		return err
	}
	return s.check(s.Context(), request)
}

// claims reads and writes the claims of a cluster.
type claims struct{ server *etcdserver.EtcdServer }

// newClaim returns a claim of this member with a random nonce.
func (c claims) newClaim(kind kind) claim {
	return claim{kind, uint16(rand.IntN(nonceMask + 1)), uint32(c.server.MemberID())} //nolint:gosec // the nonce has 12 bits, and the low 32 bits of the ID are enough
}

// propose proposes a claim with the given TTL, or its revocation if ttl is 0, and does not wait until the proposal is
// applied. It bypasses etcd's LeaseGrant and LeaseRevoke, which require a user if authentication is enabled and fail
// if the member lags, for example during a defragmentation.
func (c claims) propose(ctx context.Context, target claim, ttl time.Duration) error {
	var request etcdserverpb.InternalRaftRequest
	if ttl > 0 {
		request.LeaseGrant = &etcdserverpb.LeaseGrantRequest{ID: target.id(), TTL: int64(ttl / time.Second)}
	} else {
		request.LeaseRevoke = &etcdserverpb.LeaseRevokeRequest{ID: target.id()}
	}
	if err := Propose(ctx, c.server, request); err != nil {
		return fmt.Errorf("cannot propose lease %x: %w", target.id(), err)
	}
	return nil
}

// Propose proposes a request directly to raft. It bypasses etcd's checks and does not wait until the request is
// applied.
func Propose(ctx context.Context, server *etcdserver.EtcdServer, request etcdserverpb.InternalRaftRequest) error {
	request.Header = &etcdserverpb.RequestHeader{ID: rand.Uint64() | 1} // not 0, which means no ID
	data, err := request.Marshal()
	if err != nil {
		return err
	}
	self := uint64(server.MemberID())
	return server.Process(ctx, raftpb.Message{Type: raftpb.MsgProp, From: self, To: self, Entries: []raftpb.Entry{{Data: data}}})
}

// await waits until the claim exists on this member if known is true, or no longer exists if known is false.
func (c claims) await(ctx context.Context, target claim, known bool) error {
	err := poll(ctx, pollInterval, c.server.StoppingNotify(), func() bool { return c.isKnown(target) == known })
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("no response from the cluster: %w", err)
	}
	return err
}

func (c claims) isKnown(target claim) bool { return slices.Contains(c.list(target.kind), target) }

// list returns the claims of the given kind. It reads them from the database, because etcd does not export its
// lessor. If there are no claims, which is usual, it reads at most one key, regardless of the number of leases.
func (c claims) list(wanted kind) (found []claim) {
	defer func() { _ = recover() }() // reading panics if a snapshot from the leader replaces the database before RLock
	tx := c.server.Backend().ReadTx()
	tx.RLock()
	defer tx.RUnlock()
	if one, _ := tx.UnsafeRange(schema.Lease, leaseKey(wanted.firstID()), leaseKey((wanted + 1).firstID()), 1); len(one) == 0 {
		return nil
	}
	_ = tx.UnsafeForEach(schema.Lease, func(key, _ []byte) error {
		id := int64(binary.BigEndian.Uint64(key)) //nolint:gosec // etcd encodes lease IDs this way
		if wanted.firstID() <= id && id < (wanted+1).firstID() {
			found = append(found, claimOf(id))
		}
		return nil
	})
	return found
}

func leaseKey(id int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(id)) } //nolint:gosec // etcd encodes lease IDs this way

// schedule makes the members of a cluster take turns.
type schedule interface {
	request(ctx context.Context) error                 // announces that this member wants to defragment, or renews the announcement
	candidates(members []peer) []peer                  // returns the other members that want to defragment
	acquire(ctx context.Context, members []peer) error // claims the turn; the error wraps errTaken if it is another member's turn
	proposeTransfer(ctx context.Context) error         // pauses all members' writes for a leadership transfer; returns once no write is in progress
	renew(ctx context.Context) (stop func())           // renews the turn until stop is called
	release(ctx context.Context)                       // gives up the turn and withdraws the announcement
}

const (
	// claimTTL limits how long a crashed member's claims remain valid.
	claimTTL = 10 * time.Second
	// renewals is the number of times that a claim is renewed within its TTL.
	renewals = 3
	// requestTimeout is the timeout for each request to the cluster.
	requestTimeout = 5 * time.Second
	// releaseTimeout is the timeout for releasing all claims.
	releaseTimeout = time.Second
)

// claimSchedule implements schedule with claims. Apart from the goroutine started by renew, only one goroutine may
// use it.
type claimSchedule struct {
	claims
	active    func(self types.ID) map[types.ID]bool // returns the members to which self is connected
	log       zerolog.Logger
	requested time.Time     // time of the last turnRequest; zero after release
	ttl       time.Duration // TTL of turnRequest and turn claims

	mu   sync.Mutex
	made []claim // claims made since the last release
}

// maxClaims is the maximum number of claims that release revokes; any older claims have expired.
const maxClaims = 16

func newClaimSchedule(server *etcdserver.EtcdServer, options *Options) *claimSchedule {
	return &claimSchedule{claims: claims{server}, active: options.Active, log: options.Log, ttl: claimTTL}
}

// grant makes a claim and waits until this member has applied it.
func (p *claimSchedule) grant(ctx context.Context, target claim, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := p.proposeClaim(ctx, target, ttl); err != nil {
		return err
	}
	return p.await(ctx, target, true)
}

// proposeClaim makes a claim without waiting until this member has applied it.
func (p *claimSchedule) proposeClaim(ctx context.Context, target claim, ttl time.Duration) error {
	p.mu.Lock()
	p.made = append(p.made[max(0, len(p.made)+1-maxClaims):], target)
	p.mu.Unlock()
	return p.propose(ctx, target, ttl)
}

func (p *claimSchedule) request(ctx context.Context) error {
	if time.Since(p.requested) < p.ttl/renewals {
		return nil
	}
	if err := p.grant(ctx, p.newClaim(turnRequest), p.ttl); err != nil {
		return fmt.Errorf("cannot request a turn to defragment: %w", err)
	}
	p.requested = time.Now()
	return nil
}

func (p *claimSchedule) candidates(members []peer) []peer { return p.membersWith(turnRequest, members) }

// membersWith returns the members, except this one, that have a claim of the wanted kind. Claims of removed members
// are ignored, because they are not in members.
func (p *claimSchedule) membersWith(wanted kind, members []peer) (found []peer) {
	all := p.list(wanted)
	for _, m := range members {
		if m.id != p.server.MemberID() && slices.ContainsFunc(all, func(c claim) bool { return c.names(m.id) }) {
			found = append(found, m)
		}
	}
	return found
}

// errTaken is returned while it is another member's turn.
var errTaken = errors.New("is being defragmented; wait for it to finish")

// turnLag is the maximum time that this member takes to notice that another member's turn is over.
const turnLag = time.Second

// waitUntilFree waits for up to turnLag until it is no other member's turn. A client that defragments one member after
// another may send the next request before this member has noticed that the previous turn is over.
func (p *claimSchedule) waitUntilFree(ctx context.Context, members []peer) (taken error) {
	within, cancel := context.WithTimeout(ctx, turnLag)
	defer cancel()
	_ = poll(within, pollInterval, nil, func() bool {
		taken = p.checkFree(members)
		return taken == nil
	})
	return cmp.Or(ctx.Err(), taken)
}

func (p *claimSchedule) acquire(ctx context.Context, members []peer) error {
	if err := p.waitUntilFree(ctx, members); err != nil {
		return err
	}
	target := p.newClaim(turn)
	err := p.grant(ctx, target, p.ttl)
	if err != nil {
		err = fmt.Errorf("cannot claim the turn to defragment: %w", err)
	} else {
		err = p.checkFree(members) // if two members claim the turn at the same time, at least the second sees the other's claim
	}
	if err != nil {
		p.revoke(ctx, target)
	}
	return err
}

func (p *claimSchedule) checkFree(members []peer) error {
	if others := p.membersWith(turn, members); len(others) > 0 {
		return fmt.Errorf("member %s %w", others[0].name, errTaken)
	}
	return nil
}

func (p *claimSchedule) renew(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var keeping sync.WaitGroup
	keeping.Go(func() {
		for clock.Sleep(ctx, p.ttl/renewals) == nil {
			_ = p.proposeClaim(ctx, p.newClaim(turn), p.ttl) // not awaited, because a member that is defragmenting applies no entries
		}
	})
	return func() {
		cancel()
		keeping.Wait()
	}
}

func (p *claimSchedule) release(ctx context.Context) {
	p.mu.Lock()
	made := p.made
	p.made, p.requested = nil, time.Time{}
	p.mu.Unlock()
	p.revoke(ctx, made...)
}

// revoke revokes claims. A claim that cannot be revoked expires.
func (p *claimSchedule) revoke(ctx context.Context, all ...claim) {
	if p.server.Leader() == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	valid := slices.DeleteFunc(all, func(c claim) bool { return !p.isKnown(c) })
	for _, target := range valid {
		_ = p.propose(ctx, target, 0)
	}
	for _, target := range valid {
		_ = p.await(ctx, target, false)
	}
}

// shortestSlot is the minimum length of a time slot.
const shortestSlot = 3 * time.Second

// byClock reports whether it is this member's turn while the NOSPACE alarm prevents claims. The members that raised
// the alarm take turns in time slots, ordered by ID. A slot is at least twice as long as a defragmentation is
// expected to take, and a defragmentation may start only in the first half. A member leaves the rotation when its
// alarm is disarmed. If the members' clocks differ, two of them may be blocked at the same time, which is acceptable
// because writes are rejected anyway.
func byClock(now time.Time, f facts) bool {
	slot := shortestSlot
	for slot < 2*new(estimator).expected(f.inUse) { // grows in powers of two, so that members with databases of similar size agree
		slot *= 2
	}
	rank := slices.Index(f.full, f.self)
	since := now.UnixNano()
	return rank >= 0 && since/int64(slot)%int64(len(f.full)) == int64(rank) && since%int64(slot) < int64(slot)/2
}
