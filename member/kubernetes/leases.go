package kubernetes

import (
	"context"
	"errors"
	"sync"
	"time"

	"etcd-wrapper/member/state"

	"github.com/cenkalti/backoff/v4"
	"github.com/rs/zerolog"
)

// LeaseOptions configure Leases. All fields but Backups are required.
type LeaseOptions struct {
	Account Account
	Cluster string // the StatefulSet's name, the prefix of the leases of snapshots
	// Member returns the current member, or false while it knows no leader, so that its lease expires. It answers
	// from memory.
	Member func() (LeasedMember, bool)
	// Backups returns the state of the backups, or false if this member does not write them. It answers from memory.
	// nil if no backups are made.
	Backups func() (LeasedBackups, bool)
	Log     zerolog.Logger
}

// Leases renews the leases that a backup-restore sidecar would renew, for the operator's tools: when a member was
// last active, whether it leads, and how current the backups are. The command calls Begin when etcd is ready and End
// before etcd is closed, each at most once. One goroutine talks to the API server. Facts is safe for concurrent use.
type Leases struct {
	options LeaseOptions
	server  *Server // used by the goroutine only

	stop context.CancelFunc // nil before Begin
	over chan struct{}

	mu    sync.Mutex
	facts map[string]state.Lease
}

// NewLeases returns leases that are not renewed before Begin.
func NewLeases(options LeaseOptions) *Leases {
	return &Leases{options: options, server: NewServer(options.Account), facts: map[string]state.Lease{}}
}

// Begin starts to renew the leases.
func (l *Leases) Begin() {
	ctx, stop := context.WithCancel(context.Background())
	l.stop, l.over = stop, make(chan struct{})
	go func() {
		defer close(l.over)
		l.run(ctx)
	}()
}

// End stops the renewals and returns once no request is running, after at most Patience.
func (l *Leases) End() {
	if l.stop != nil {
		l.stop()
		<-l.over
	}
}

// Facts returns the state of each lease that this member renews.
func (l *Leases) Facts() (all []state.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, kind := range []string{OfMember, OfFull, OfDelta} {
		if fact, known := l.facts[kind]; known {
			all = append(all, fact)
		}
	}
	return all
}

func (l *Leases) run(ctx context.Context) {
	duties := l.duties()
	for ctx.Err() == nil {
		next := time.Now().Add(heartbeat)
		for _, d := range duties {
			if !time.Now().Before(d.due) {
				d.due = time.Now().Add(l.perform(ctx, d))
			}
			if d.due.Before(next) {
				next = d.due
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(next)):
		}
	}
}

// perform renews one lease and returns the time until it is due again.
func (l *Leases) perform(ctx context.Context, d *duty) (pause time.Duration) {
	within, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	now, err := d.renew(within)
	switch {
	case ctx.Err() != nil:
		return 0
	case errors.Is(err, errNotOurs):
		l.forget(d.kind)
		return d.every
	case err != nil:
		pause = d.tryAgainAfter(err)
		l.troubled(d.kind, now, err, pause)
		return pause
	default:
		d.pause.Reset()
		l.renewed(d.kind, now)
		return d.every
	}
}

const (
	// firstPause and longestPause bound the pause after a failure. It must be short enough that a member is not
	// considered lost.
	firstPause   = time.Second
	longestPause = 20 * time.Second
)

func newPause() backoff.BackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(firstPause), backoff.WithMultiplier(2), backoff.WithRandomizationFactor(0.3),
		backoff.WithMaxInterval(longestPause), backoff.WithMaxElapsedTime(0),
	)
}

// tryAgainAfter returns the pause after err, which the API server may extend.
func (d *duty) tryAgainAfter(err error) time.Duration {
	pause := d.pause.NextBackOff()
	var refused *Refusal
	if errors.As(err, &refused) {
		pause = max(pause, refused.After)
	}
	return min(pause, longestPause)
}

// forget removes the state of a lease that another member renews now.
func (l *Leases) forget(kind string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.facts, kind)
}

// troubled stores why a lease could not be renewed, and logs a new reason.
func (l *Leases) troubled(kind string, now written, err error, pause time.Duration) {
	l.mu.Lock()
	fact := l.facts[kind]
	before := fact.Problem
	trouble := &state.LeaseProblem{Since: time.Now(), Count: 1, Message: err.Error(), NextRetry: time.Now().Add(pause)}
	if before != nil {
		trouble.Since, trouble.Count = before.Since, before.Count+1
	}
	fact.Kind, fact.Name, fact.Problem = kind, now.name, trouble
	l.facts[kind] = fact
	l.mu.Unlock()
	if before == nil || before.Message != trouble.Message {
		l.options.Log.Warn().Str("lease", now.name).Str("reason", trouble.Message).
			Msg("renewing a lease failed: the operator's tools see an outdated state; retrying, etcd keeps serving")
	}
}

func (l *Leases) renewed(kind string, now written) {
	l.mu.Lock()
	before := l.facts[kind]
	l.facts[kind] = state.Lease{Kind: kind, Name: now.name, Holder: now.holder, Renewed: time.Now()}
	l.mu.Unlock()
	switch {
	case before.Problem != nil:
		l.options.Log.Info().Str("lease", now.name).Int("times", before.Problem.Count).Msg("a lease is renewed again")
	case before.Renewed.IsZero():
		l.options.Log.Info().Str("lease", now.name).Str("holder", now.holder).Msg("a lease is renewed")
	}
}
