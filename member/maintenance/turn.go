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

// seat is a member's place among those that take turns.
type seat interface {
	wish(ctx context.Context) error                 // tells the others that this member wants to defragment, or goes on doing so
	wishing(members []peer) []peer                  // the others that want to
	take(ctx context.Context, members []peer) error // makes it this member's turn; the error wraps errTaken if it is another's
	announce(ctx context.Context) error             // a change of leadership; returns when no write is on its way any more
	keep(ctx context.Context) (stop func())         // holds on to the turn until stop is called
	end(ctx context.Context)                        // gives turn and wish back
}

const (
	// claimed is how long wish and turn of a member that died are kept.
	claimed = 10 * time.Second
	// renewal is how often they are said again by one that lives.
	renewal = claimed / 3
	// patience bounds one request to the cluster.
	patience = 5 * time.Second
	// farewell bounds what a member that stops still asks of its cluster.
	farewell = time.Second
)

// place is a seat in a cluster. One goroutine at a time uses it, beside the one that keep begins.
type place struct {
	claims
	active func(self types.ID) map[types.ID]bool // the members that there is a connection to
	log    zerolog.Logger
	wished time.Time // when the last wish was made; zero if there is none since the last end

	mu   sync.Mutex
	made []claim // since the last end
}

// mostMade is how many of a place's claims may last at a time: what is made before these has ended by itself.
const mostMade = 16

func newPlace(server *etcdserver.EtcdServer, options *Options) *place {
	return &place{claims: claims{server}, active: options.Active, log: options.Log}
}

// say makes a claim and returns when it is known.
func (p *place) say(ctx context.Context, said claim, lasts time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := p.make(ctx, said, lasts); err != nil {
		return err
	}
	return p.await(ctx, said, true)
}

// make makes a claim and does not wait for it.
func (p *place) make(ctx context.Context, said claim, lasts time.Duration) error {
	p.mu.Lock()
	p.made = append(p.made[max(0, len(p.made)+1-mostMade):], said)
	p.mu.Unlock()
	return p.propose(ctx, said, lasts)
}

func (p *place) wish(ctx context.Context) error {
	if time.Since(p.wished) < renewal {
		return nil
	}
	if err := p.say(ctx, p.own(wish), claimed); err != nil {
		return fmt.Errorf("the cluster was not told that this member wants to defragment: %w", err)
	}
	p.wished = time.Now()
	return nil
}

func (p *place) wishing(members []peer) []peer { return p.others(wish, members) }

// others are the other members that claim something. A claim that names no member is nobody's.
func (p *place) others(of kind, members []peer) (who []peer) {
	all := p.all(of)
	for _, m := range members {
		if m.id != p.server.MemberID() && slices.ContainsFunc(all, func(c claim) bool { return c.names(m.id) }) {
			who = append(who, m)
		}
	}
	return who
}

// errTaken says that it is another member's turn.
var errTaken = errors.New("is being defragmented: wait for its end")

// lag is how long the end of a turn may take to be known here.
const lag = time.Second

// free returns once nobody else has the turn, or soon: whoever has just heard that another member is done may ask before this one knows.
func (p *place) free(ctx context.Context, members []peer) error {
	clock, over := time.NewTicker(lookAgain), time.After(lag)
	defer clock.Stop()
	for {
		taken := p.taken(members)
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

func (p *place) take(ctx context.Context, members []peer) error {
	if err := p.free(ctx, members); err != nil {
		return err
	}
	said := p.own(turn)
	err := p.say(ctx, said, claimed)
	if err != nil {
		err = fmt.Errorf("the cluster did not say whose turn it is to defragment: %w", err)
	} else {
		err = p.taken(members) // of two that claim it at once, the later one sees the other, if not both
	}
	if err != nil {
		p.drop(ctx, said)
	}
	return err
}

func (p *place) taken(members []peer) error {
	if others := p.others(turn, members); len(others) > 0 {
		return fmt.Errorf("member %s %w", others[0].name, errTaken)
	}
	return nil
}

func (p *place) keep(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var keeping sync.WaitGroup
	keeping.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(renewal):
				_ = p.make(ctx, p.own(turn), claimed) // its own apply, which would tell whether it is known, may stand still
			}
		}
	})
	return func() {
		cancel()
		keeping.Wait()
	}
}

func (p *place) end(ctx context.Context) {
	p.mu.Lock()
	made := p.made
	p.made, p.wished = nil, time.Time{}
	p.mu.Unlock()
	p.drop(ctx, made...)
}

// drop takes claims back. Those that it cannot end by themselves.
func (p *place) drop(ctx context.Context, all ...claim) {
	if p.server.Leader() == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	there := slices.DeleteFunc(all, func(c claim) bool { return !p.know(c) })
	for _, said := range there {
		_ = p.propose(ctx, said, 0)
	}
	for _, said := range there {
		_ = p.await(ctx, said, false)
	}
}

// shortestSlot is that of a member whose database has little in use.
const shortestSlot = 3 * time.Second

// byClock says, where the alarm NOSPACE lets nobody claim anything, whether it is this member's turn: those that have raised it have slots
// of the clock in turns, by the order of IDs, each at least twice as long as the work and begun only early. Whoever has lifted it leaves
// the round. Clocks that differ cost nothing but that two members may stand still at once, while writes are refused anyway.
func byClock(now time.Time, f facts) bool {
	slot := shortestSlot
	for slot < 2*new(pace).expected(f.inUse) { // in steps, so that members come to the same
		slot *= 2
	}
	rank := slices.Index(f.full, f.self)
	since := now.UnixNano()
	return rank >= 0 && since/int64(slot)%int64(len(f.full)) == int64(rank) && since%int64(slot) < int64(slot)/2
}
