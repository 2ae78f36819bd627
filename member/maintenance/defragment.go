package maintenance

import (
	"context"
	"errors"
	"time"
)

// request is somebody's wish to have the database defragmented.
type request struct {
	origin string
	seat   seat         // by which members take turns; nil where there is none to take
	do     func() error // what defragments; nil for etcd's own method
}

// failure is a defragmentation that was begun and failed; its outcome is noted.
type failure struct{ error }

// defragment has the database defragmented, beside nobody who reads it and no other member. An error that is no failure says
// what to wait for: nothing has been done.
func (k *Maintainer) defragment(ctx context.Context, f facts, r request) error {
	cluster := k.served().cluster
	open, err := k.options.Gate.Close("a defragmentation of member " + k.options.Name)
	if err != nil {
		return err
	}
	if r.seat != nil {
		if err := r.seat.take(ctx, f.members); err != nil {
			open()
			return err
		}
	}
	k.enter(HandingOff, "clients are sent to other members", f)
	defer func() { k.enter(Idle, "", f) }() // last: whoever hears of it may have the next one begun
	defer open()
	if r.seat != nil {
		defer r.seat.end(ctx)
		defer r.seat.keep(ctx)()
	}
	if !f.alone() {
		defer k.away.begin("the database is being defragmented")()
	}
	if err := k.handOff(ctx, f, r); err != nil {
		return err
	}
	if last := cluster.facts(); last.sending {
		return errors.New(last.beingRead())
	}
	return k.standStill(ctx, f, r)
}

// handOff sends clients to others and gives leadership away. A client that defragments has chosen the member itself, and may
// go by who leads: it loses no leadership.
func (k *Maintainer) handOff(ctx context.Context, f facts, r request) error {
	if f.alone() {
		return nil
	}
	if f.leader == f.self && r.origin != ByClient {
		return k.giveLeadershipAway(ctx, f, r)
	}
	return breathe(ctx)
}

// breathe gives clients' requests the time to be answered that are under way.
func breathe(ctx context.Context) error {
	select {
	case <-time.After(breath):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *Maintainer) giveLeadershipAway(ctx context.Context, f facts, r request) error {
	cluster := k.served().cluster
	to, ok := cluster.successor()
	if !ok {
		return errors.New("this member leads, and no other one is up to date enough to take its leadership over")
	}
	k.enter(HandingOff, "leadership is moved to "+to.name, f)
	if r.seat != nil {
		if err := r.seat.announce(ctx); err != nil {
			return err
		}
	}
	if err := cluster.handOver(ctx, to); err != nil {
		return err
	}
	k.options.Log.Info().Str("to", to.name).Msg("leadership was moved before the defragmentation")
	return nil
}

// standStill is the time in which nothing can be read nor written.
func (k *Maintainer) standStill(ctx context.Context, f facts, r request) error {
	cluster := k.served().cluster
	do := r.do
	if do == nil {
		do = cluster.defragment
	}
	k.enter(Running, "etcd copies what is in use of its database", f)
	k.options.Log.Info().Int64("size", f.size).Int64("in_use", f.inUse).Str("origin", r.origin).
		Stringer("expected", rounded(k.pace.expected(f.inUse))).Msg("the database is defragmented")
	began := time.Now()
	err := do()
	outcome := Outcome{At: time.Now(), Took: time.Since(began), Origin: r.origin, Before: f.size}
	after := cluster.facts()
	outcome.After = after.size
	if err != nil {
		outcome.Error = err.Error()
		k.note(outcome)
		return failure{err}
	}
	k.pace.learn(f.inUse, outcome.Took)
	k.note(outcome)
	k.enter(CatchingUp, "what was committed meanwhile is applied", after)
	within, cancel := context.WithTimeout(ctx, catchingUp)
	defer cancel()
	if err := cluster.catchUp(within); err != nil {
		k.options.Log.Warn().Err(err).Msg("the member has not caught up after its defragmentation; clients may come back all the same")
	}
	return nil
}

// note keeps how a defragmentation ended, and says it.
func (k *Maintainer) note(o Outcome) {
	k.mu.Lock()
	k.state.Last = &o
	if o.Error == "" {
		k.state.Done++
		k.state.Freed += max(0, o.Before-o.After)
	} else {
		k.state.Failed++
	}
	k.mu.Unlock()
	if o.Error != "" {
		k.options.Log.Warn().Str("origin", o.Origin).Str("error", o.Error).Msg("the database was not defragmented")
		return
	}
	k.options.Log.Info().Str("origin", o.Origin).Int64("before", o.Before).Int64("after", o.After).Dur("took_ms", o.Took).
		Msgf("the database was defragmented: %s are %s now", inWords(o.Before), inWords(o.After))
}

// enter makes a phase the present one, and says why the member waits if it is for another reason than before.
func (k *Maintainer) enter(phase Phase, reason string, f facts) {
	k.mu.Lock()
	before := k.state.Phase
	if before != phase {
		k.state.Since = time.Now()
	}
	k.state.Phase, k.state.Reason = phase, reason
	k.state.Expected = k.pace.expected(f.inUse)
	k.mu.Unlock()
	if phase == Waiting && before != Waiting {
		k.options.Log.Info().Msg("the database should be defragmented: " + reason)
	}
}

// State is what there is to know now.
func (k *Maintainer) State() State {
	k.mu.Lock()
	state, serving := k.state, k.serving
	k.mu.Unlock()
	state.Readers = k.options.Gate.Inside()
	if state.Phase == Running && serving != nil {
		state.Progress = k.progress(state, serving.cluster.copied())
	}
	return state
}

// progress goes by what has been copied, which etcd writes in steps of ten thousand keys, and between the steps by the clock.
func (k *Maintainer) progress(running State, copied int64) float64 {
	expected := max(running.Expected.Seconds(), 0.001)
	written := float64(copied) / (expected * float64(k.pace.perSecond()))
	return min(0.99, max(written, min(0.9, time.Since(running.Since).Seconds()/expected)))
}
