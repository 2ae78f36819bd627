package maintenance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
)

// seat coordinates the turns of the members of a cluster.
type seat interface {
	requestTurn(ctx context.Context) error             // claims or renews this member's wish to defragment
	candidates(members []peer) []peer                  // the other members that want to
	acquire(ctx context.Context, members []peer) error // claims the turn; the error wraps errTaken if another member has it
	announceHandover(ctx context.Context) error        // holds all members' writes for a change of leadership; returns once none is running
	renew(ctx context.Context) (stop func())           // renews the turn until stop is called
	release(ctx context.Context)                       // releases turn and wish
}

const (
	// claimTTL bounds how long the claims of a crashed member last.
	claimTTL = 10 * time.Second
	// renewInterval is the interval at which claims are renewed.
	renewInterval = claimTTL / 3
	// requestTimeout bounds one request to the cluster.
	requestTimeout = 5 * time.Second
	// releaseTimeout bounds the requests of a stopping member.
	releaseTimeout = time.Second
)

// place implements seat with claims. It is used by one goroutine at a time, in addition to the one that renew starts.
type place struct {
	claims
	active func(self types.ID) map[types.ID]bool // the connected members
	log    zerolog.Logger
	wished time.Time // time of the last wish; zero if released

	mu   sync.Mutex
	made []claim // since the last release
}

// maxClaims bounds the claims that release revokes: older ones have expired.
const maxClaims = 16

func newPlace(server *etcdserver.EtcdServer, options *Options) *place {
	return &place{claims: claims{server}, active: options.Active, log: options.Log}
}

// grant makes a claim and returns once it is known here.
func (p *place) grant(ctx context.Context, said claim, lasts time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := p.proposeClaim(ctx, said, lasts); err != nil {
		return err
	}
	return p.await(ctx, said, true)
}

// proposeClaim makes a claim and does not wait for it.
func (p *place) proposeClaim(ctx context.Context, said claim, lasts time.Duration) error {
	p.mu.Lock()
	p.made = append(p.made[max(0, len(p.made)+1-maxClaims):], said)
	p.mu.Unlock()
	return p.propose(ctx, said, lasts)
}

func (p *place) requestTurn(ctx context.Context) error {
	if time.Since(p.wished) < renewInterval {
		return nil
	}
	if err := p.grant(ctx, p.newClaim(wish), claimTTL); err != nil {
		return fmt.Errorf("cannot request a turn to defragment: %w", err)
	}
	p.wished = time.Now()
	return nil
}

func (p *place) candidates(members []peer) []peer { return p.membersWith(wish, members) }

// membersWith returns the other members that have a claim of a kind. Claims of former members are ignored.
func (p *place) membersWith(of kind, members []peer) (who []peer) {
	all := p.list(of)
	for _, m := range members {
		if m.id != p.server.MemberID() && slices.ContainsFunc(all, func(c claim) bool { return c.names(m.id) }) {
			who = append(who, m)
		}
	}
	return who
}

// errTaken is the error while another member has the turn.
var errTaken = errors.New("is being defragmented: wait for its end")

// turnLag bounds how late the end of a turn becomes known here.
const turnLag = time.Second

// waitForTurn waits up to turnLag until no other member has the turn: a caller may know of its end before this member
// does.
func (p *place) waitForTurn(ctx context.Context, members []peer) error {
	clock, over := time.NewTicker(pollInterval), time.After(turnLag)
	defer clock.Stop()
	for {
		taken := p.checkTurn(members)
		if taken == nil {
			return nil
		}
		select {
		case <-clock.C:
		case <-over:
			return taken
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *place) acquire(ctx context.Context, members []peer) error {
	if err := p.waitForTurn(ctx, members); err != nil {
		return err
	}
	said := p.newClaim(turn)
	err := p.grant(ctx, said, claimTTL)
	if err != nil {
		err = fmt.Errorf("cannot claim the turn to defragment: %w", err)
	} else {
		err = p.checkTurn(members) // of two members that claim it at once, at least the later one sees the other
	}
	if err != nil {
		p.revoke(ctx, said)
	}
	return err
}

func (p *place) checkTurn(members []peer) error {
	if others := p.membersWith(turn, members); len(others) > 0 {
		return fmt.Errorf("member %s %w", others[0].name, errTaken)
	}
	return nil
}

func (p *place) renew(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var keeping sync.WaitGroup
	keeping.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(renewInterval):
				_ = p.proposeClaim(ctx, p.newClaim(turn), claimTTL) // not awaited: applying may be blocked here
			}
		}
	})
	return func() {
		cancel()
		keeping.Wait()
	}
}

func (p *place) release(ctx context.Context) {
	p.mu.Lock()
	made := p.made
	p.made, p.wished = nil, time.Time{}
	p.mu.Unlock()
	p.revoke(ctx, made...)
}

// revoke revokes claims. Those that it cannot revoke expire.
func (p *place) revoke(ctx context.Context, all ...claim) {
	if p.server.Leader() == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	there := slices.DeleteFunc(all, func(c claim) bool { return !p.isKnown(c) })
	for _, said := range there {
		_ = p.propose(ctx, said, 0)
	}
	for _, said := range there {
		_ = p.await(ctx, said, false)
	}
}

// shortestSlot is the slot of a member whose database has little in use.
const shortestSlot = 3 * time.Second

// byClock reports whether it is this member's turn while the alarm NOSPACE prevents claims. The members that raised
// it take turns by the clock, in the order of their IDs. A slot is at least twice as long as the work, which starts
// only in its first half. A member that disarms its alarm leaves the rotation. If clocks differ, two members may be
// blocked at once, while writes are refused anyway.
func byClock(now time.Time, f facts) bool {
	slot := shortestSlot
	for slot < 2*new(pace).expected(f.inUse) { // in powers of two, so that members agree
		slot *= 2
	}
	rank := slices.Index(f.full, f.self)
	since := now.UnixNano()
	return rank >= 0 && since/int64(slot)%int64(len(f.full)) == int64(rank) && since%int64(slot) < int64(slot)/2
}
