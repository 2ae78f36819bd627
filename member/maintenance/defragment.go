package maintenance

import (
	"context"
	"errors"
	"time"

	"etcd-wrapper/internal/clock"
	"etcd-wrapper/member/state"
)

// request describes a requested defragmentation.
type request struct {
	origin   string
	schedule schedule     // coordinates turns; nil if no coordination is needed
	do       func() error // defragments the database; nil means etcd's Defragment
}

// failure is the error of a defragmentation that was started and whose result is already recorded.
type failure struct{ error }

// defragment defragments the database while there are no readers and no other member defragments. If the error is
// not a failure, the defragmentation was not started, and the error describes what to wait for.
func (k *Maintainer) defragment(ctx context.Context, f facts, r request) error {
	cluster := k.serving.Load().cluster
	open, err := k.options.Gate.Close("a defragmentation of member " + k.options.Name)
	if err != nil {
		return err
	}
	if r.schedule != nil {
		if err := r.schedule.acquire(ctx, f.members); err != nil {
			open()
			return err
		}
	}
	k.enter(HandingOff, "redirecting clients to other members", f)
	defer func() { k.enter(Idle, "", f) }() // runs last, because a waiting caller may then start the next defragmentation
	defer open()
	if r.schedule != nil {
		defer r.schedule.release(ctx)
		defer r.schedule.renew(ctx)()
	}
	if !f.isSingle() {
		defer k.redirecting.begin("the database is being defragmented")()
	}
	if err := k.handOff(ctx, cluster, f, r); err != nil {
		return err
	}
	if last := cluster.facts(); last.sending {
		return errors.New(last.readReason())
	}
	return k.runDefragmentation(ctx, cluster, f, r)
}

// handOff transfers leadership, or gives running requests time to finish. A defragmentation requested by a client
// does not transfer leadership, because the client may have chosen the leader on purpose.
func (k *Maintainer) handOff(ctx context.Context, cluster cluster, f facts, r request) error {
	switch {
	case f.isSingle():
		return nil
	case f.leader != f.self || r.origin == ByClient:
		return clock.Sleep(ctx, drainTime)
	}
	to, ok := cluster.successor()
	if !ok {
		return errors.New("this member is the leader, and no other member is up to date enough to take over")
	}
	k.enter(HandingOff, "transferring leadership to "+to.name, f)
	if r.schedule != nil {
		if err := r.schedule.proposeTransfer(ctx); err != nil {
			return err
		}
	}
	if err := cluster.handOver(ctx, to); err != nil {
		return err
	}
	k.options.Log.Info().Str("to", to.name).Msg("transferred leadership before the defragmentation")
	return nil
}

// runDefragmentation defragments the database, which blocks all reads and writes.
func (k *Maintainer) runDefragmentation(ctx context.Context, cluster cluster, f facts, r request) error {
	do := r.do
	if do == nil {
		do = cluster.Defragment
	}
	k.enter(Running, "copying the data in use to a new database file", f)
	k.options.Log.Info().Int64("size", f.size).Int64("in_use", f.inUse).Str("origin", r.origin).
		Stringer("expected", k.estimator.expected(f.inUse).Round(time.Millisecond)).Msg("defragmenting the database")
	began := time.Now()
	err := do()
	took := time.Since(began)
	after := cluster.facts()
	outcome := state.Defragmentation{At: time.Now(), Seconds: took.Seconds(), Origin: r.origin, BytesBefore: f.size, BytesAfter: after.size}
	if err != nil {
		outcome.Error = err.Error()
		k.record(outcome)
		return failure{err}
	}
	k.estimator.record(f.inUse, took)
	k.record(outcome)
	k.enter(CatchingUp, "applying entries that were committed during the defragmentation", after)
	within, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	if err := cluster.waitApplied(within); err != nil {
		k.options.Log.Warn().Err(err).Msg("the member has not caught up after the defragmentation; no longer redirecting clients")
	}
	return nil
}

// record stores and logs the result of a defragmentation.
func (k *Maintainer) record(o state.Defragmentation) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state.LastDefragmentation = &o
	if o.Error != "" {
		k.state.Failed++
		k.options.Log.Warn().Str("origin", o.Origin).Str("error", o.Error).Msg("cannot defragment the database")
		return
	}
	k.state.Completed++
	k.state.FreedBytes += max(0, o.BytesBefore-o.BytesAfter)
	k.options.Log.Info().Str("origin", o.Origin).Int64("before", o.BytesBefore).Int64("after", o.BytesAfter).Float64("took_ms", 1000*o.Seconds).
		Msgf("defragmented the database: %s before, %s after", formatSize(o.BytesBefore), formatSize(o.BytesAfter))
}

// enter sets the phase and logs when the member starts to wait.
func (k *Maintainer) enter(phase, reason string, f facts) {
	k.mu.Lock()
	before := k.state.Phase
	if before != phase {
		k.state.Since = time.Now()
	}
	k.state.Phase, k.state.Reason = phase, reason
	k.state.ExpectedSeconds = k.estimator.expected(f.inUse).Seconds()
	k.mu.Unlock()
	if phase == Waiting && before != Waiting {
		k.options.Log.Info().Msg("waiting to defragment the database: " + reason)
	}
}

// State returns the current state.
func (k *Maintainer) State() state.Maintenance {
	k.mu.Lock()
	current, serving := k.state, k.serving.Load()
	k.mu.Unlock()
	current.Readers = k.options.Gate.Inside()
	if current.Phase == Running && serving != nil {
		current.Progress = k.progress(current, serving.cluster.copySize())
	}
	return current
}

// progress estimates the progress from the size of the copy, which grows in steps of ten thousand keys, and from the
// elapsed time.
func (k *Maintainer) progress(running state.Maintenance, copied int64) float64 {
	expected := max(running.ExpectedSeconds, 0.001)
	written := float64(copied) / (expected * float64(k.estimator.perSecond()))
	return min(0.99, max(written, min(0.9, time.Since(running.Since).Seconds()/expected)))
}
