package kubernetes

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/rs/zerolog"
)

// LeaseOptions configure Leases. All fields but Backups are required.
type LeaseOptions struct {
	Account Account
	Cluster string // what the leases of snapshots are named after: the StatefulSet's name
	// Member is the member as it is now; false while it knows no leader, so that its lease goes stale. It answers from memory.
	Member func() (LeasedMember, bool)
	// Backups is how far backups are; false while another member makes them, or nobody can. It answers from memory. nil if
	// none are made.
	Backups func() (LeasedBackups, bool)
	Log     zerolog.Logger
}

// Leases are those of one run, which a member without a backup-restore sidecar renews as a sidecar would, for the operator's tools: how
// long ago a member was seen, whether it leads, and how far the backups are. The command begins them when etcd has become ready and ends
// them before etcd is closed; one goroutine asks the API server. Begin and End are called one after the other, each at most once; Facts may be called from any
// goroutine at any time.
type Leases struct {
	options LeaseOptions
	server  *Server // of the one goroutine

	stop context.CancelFunc // nil before Begin
	over chan struct{}

	mu    sync.Mutex
	facts map[LeaseKind]LeaseFact
}

// LeaseFact is what there is to know of one lease.
type LeaseFact struct {
	Kind    LeaseKind
	Name    string        // empty until it is known
	Holder  string        // what it says, as this process wrote or found it last
	Renewed time.Time     // when this process wrote it last, or found it to be right; zero if it never did
	Trouble *LeaseProblem // nil while all is well
}

// LeaseProblem describes why a lease is not renewed.
type LeaseProblem struct {
	Since     time.Time
	Count     int
	Message   string // a clause
	NextRetry time.Time
}

// NewLeases returns leases that are not renewed before Begin.
func NewLeases(options LeaseOptions) *Leases {
	return &Leases{options: options, server: NewServer(options.Account), facts: map[LeaseKind]LeaseFact{}}
}

// Begin renews the leases until End.
func (l *Leases) Begin() {
	ctx, stop := context.WithCancel(context.Background())
	l.stop, l.over = stop, make(chan struct{})
	go func() {
		defer close(l.over)
		l.run(ctx)
	}()
}

// End returns when nothing is asked of anybody any more. It takes no longer than a request takes to be given up.
func (l *Leases) End() {
	if l.stop != nil {
		l.stop()
		<-l.over
	}
}

// Facts are what there is to know now of each lease that this member is to renew.
func (l *Leases) Facts() (all []LeaseFact) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, kind := range []LeaseKind{OfMember, OfFull, OfDelta} {
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

// perform renews one lease and returns how long that has time now.
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
	// firstPause and longestPause bound the pause after a failure. A member must not be taken for lost because of it.
	firstPause   = time.Second
	longestPause = 20 * time.Second
)

func newPause() backoff.BackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(firstPause), backoff.WithMultiplier(2), backoff.WithRandomizationFactor(0.3),
		backoff.WithMaxInterval(longestPause), backoff.WithMaxElapsedTime(0),
	)
}

// tryAgainAfter is a pause that the API server may have a word in.
func (d *duty) tryAgainAfter(err error) time.Duration {
	pause := d.pause.NextBackOff()
	var refused *Refusal
	if errors.As(err, &refused) {
		pause = max(pause, refused.After)
	}
	return min(pause, longestPause)
}

// forget drops what is known of a lease that has become another member's business.
func (l *Leases) forget(kind LeaseKind) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.facts, kind)
}

// troubled keeps why a lease could not be renewed, and says it if it was another reason before.
func (l *Leases) troubled(kind LeaseKind, now written, err error, pause time.Duration) {
	l.mu.Lock()
	fact := l.facts[kind]
	before := fact.Trouble
	trouble := &LeaseProblem{Since: time.Now(), Count: 1, Message: err.Error(), NextRetry: time.Now().Add(pause)}
	if before != nil {
		trouble.Since, trouble.Count = before.Since, before.Count+1
	}
	fact.Kind, fact.Name, fact.Trouble = kind, now.name, trouble
	l.facts[kind] = fact
	l.mu.Unlock()
	if before == nil || before.Message != trouble.Message {
		l.options.Log.Warn().Str("lease", now.name).Str("reason", trouble.Message).
			Msg("a lease is not renewed: the operator's tools see less than there is; etcd serves all the same")
	}
}

func (l *Leases) renewed(kind LeaseKind, now written) {
	l.mu.Lock()
	before := l.facts[kind]
	l.facts[kind] = LeaseFact{Kind: kind, Name: now.name, Holder: now.holder, Renewed: time.Now()}
	l.mu.Unlock()
	switch {
	case before.Trouble != nil:
		l.options.Log.Info().Str("lease", now.name).Int("times", before.Trouble.Count).Msg("a lease is renewed again")
	case before.Renewed.IsZero():
		l.options.Log.Info().Str("lease", now.name).Str("holder", now.holder).Msg("a lease is renewed")
	}
}
