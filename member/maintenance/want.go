package maintenance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"etcd-wrapper/member/state"

	"go.etcd.io/etcd/client/pkg/v3/types"
)

// worker is the state of Run's goroutine.
type worker struct {
	*Maintainer
	*service
	seat  seat
	since time.Time // when a defragmentation became due without a blocker on this member; zero if none is
}

// check defragments the database if it should be and nothing is in the way. It returns the pause before the next
// check.
func (w *worker) check(ctx context.Context) time.Duration {
	f := w.cluster.facts()
	w.setVolume(f)
	f = w.disarmAlarms(ctx, f)
	worth := f.reason(w.options.Threshold)
	if worth == "" {
		w.setIdle(ctx, Idle, "", f)
		return w.nextCheck(w.options.Interval, f)
	}
	if obstacle := f.blocker(w.limits()); obstacle != "" {
		w.setIdle(ctx, Waiting, worth+", but "+obstacle, f)
		return w.options.Interval
	}
	if w.since.IsZero() {
		w.since = time.Now()
	}
	err := w.tryDefragment(ctx, f)
	if ctx.Err() != nil {
		return 0
	}
	if err != nil {
		w.enter(Waiting, worth+", but "+err.Error(), f)
	}
	return w.nextCheck(w.options.Interval/waitingFactor, f)
}

// nextCheck returns the pause before the next check, which is short while writes are refused: this member's slot is
// short.
func (w *worker) nextCheck(usual time.Duration, f facts) time.Duration {
	if f.noSpace() {
		return min(usual, shortestSlot/3)
	}
	return usual
}

// setIdle releases the member's claims, because there is nothing to do or it is blocked.
func (w *worker) setIdle(ctx context.Context, phase, reason string, f facts) {
	w.since = time.Time{}
	w.seat.release(ctx)
	w.enter(phase, reason, f)
}

// tryDefragment defragments if it is this member's turn. Otherwise the error is what it waits for.
func (w *worker) tryDefragment(ctx context.Context, f facts) error {
	if f.isAlone() {
		return w.defragment(ctx, f, request{origin: ByThreshold})
	}
	if f.noSpace() {
		if !byClock(time.Now(), f) {
			return errors.New("its turn has not come, which goes by the clock while no turn can be claimed")
		}
		return w.defragment(ctx, f, request{origin: ByThreshold})
	}
	if err := w.seat.requestTurn(ctx); err != nil {
		return err
	}
	if err := w.checkPrecedence(f); err != nil {
		return err
	}
	return w.defragment(ctx, f, request{origin: ByThreshold, seat: w.seat})
}

// checkPrecedence returns an error while another member precedes this one. Others may notice a moment later that they
// should defragment.
func (w *worker) checkPrecedence(f facts) error {
	leads := f.leader == f.self
	if leads && time.Since(w.since) < 2*w.options.Interval {
		return errors.New("this member leads, and gives the others time to go first")
	}
	var names []string
	for _, p := range w.seat.candidates(f.members) {
		if leads || p.id != f.leader && p.id < f.self {
			names = append(names, p.name)
		}
	}
	switch {
	case len(names) == 0:
		return nil
	case leads:
		return fmt.Errorf("this member leads, and %s goes first", strings.Join(names, ", "))
	default:
		return fmt.Errorf("%s goes first", strings.Join(names, ", "))
	}
}

// runCommand runs a defragmentation that a user requested. Every error is recorded as a result.
func (w *worker) runCommand(ctx context.Context) {
	f := w.cluster.facts()
	r := request{origin: ByCommand}
	if !f.isAlone() && !f.noSpace() {
		r.seat = w.seat
	}
	err := errors.New(f.blocker(w.limits()))
	if err.Error() == "" {
		err = w.defragment(ctx, f, r)
	}
	var failed failure
	if err != nil && !errors.As(err, &failed) {
		w.note(state.Defragmentation{At: time.Now(), Origin: ByCommand, BytesBefore: f.size, BytesAfter: f.size, Error: err.Error()})
	}
}

// disarmAlarms disarms this member's alarm NOSPACE once its file is small enough, and returns the facts after that.
// The leader also disarms the alarms of former members: recovery has replaced them, or they have left. etcd compares
// the size of the file with the quota, not the bytes in use, so a compaction alone is not enough.
func (w *worker) disarmAlarms(ctx context.Context, f facts) facts {
	if !f.noSpace() {
		return f
	}
	if f.hasOwnAlarm() && f.isBelowRelief(f.size) {
		w.disarm(ctx, f.self, fmt.Sprintf("the database has %s, which is below %.0f%% of its quota of %s", formatSize(f.size), 100*reliefRatio, formatSize(f.quota)))
	}
	if f.leader == f.self {
		for _, id := range f.removedMembers() {
			w.disarm(ctx, id, fmt.Sprintf("member %s, which had raised it, is no member any more", id))
		}
	}
	return w.cluster.facts()
}

func (w *worker) disarm(ctx context.Context, of types.ID, why string) {
	within, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	switch err := w.cluster.disarm(within, of); {
	case err == nil:
		w.options.Log.Info().Msg("the alarm NOSPACE is lifted: " + why)
		w.mu.Lock()
		w.state.NoSpaceDisarmed++
		w.mu.Unlock()
	case ctx.Err() == nil:
		w.options.Log.Warn().Err(err).Msg("the alarm NOSPACE could not be lifted, although " + why)
	}
}
