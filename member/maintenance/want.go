package maintenance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
)

// want is the Maintainer's own goroutine's: what it wants, and since when.
type want struct {
	*Maintainer
	*service
	seat  seat
	since time.Time // since when a defragmentation is wanted and nothing of this member's own is in its way
}

// look finds out whether the database should be defragmented, and does it when nothing is in the way. It returns how long
// to wait before the next look.
func (w *want) look(ctx context.Context) time.Duration {
	f := w.cluster.facts()
	w.notice(f)
	f = w.liftAlarms(ctx, f)
	worth := f.worth(w.options.Threshold)
	if worth == "" {
		w.rest(ctx, Idle, "", f)
		return w.until(w.options.Interval, f)
	}
	if obstacle := f.obstacle(w.limits()); obstacle != "" {
		w.rest(ctx, Waiting, worth+", but "+obstacle, f)
		return w.options.Interval
	}
	if w.since.IsZero() {
		w.since = time.Now()
	}
	err := w.comply(ctx, f)
	if ctx.Err() != nil {
		return 0
	}
	if err != nil {
		w.enter(Waiting, worth+", but "+err.Error(), f)
	}
	return w.until(w.options.Interval/waiting, f)
}

// until is how long to wait before the next look, which comes soon while writes are refused: the slot of this member is short.
func (w *want) until(usual time.Duration, f facts) time.Duration {
	if f.noSpace() {
		return min(usual, shortestSlot/3)
	}
	return usual
}

// rest gives up the member's place, as there is nothing to do or nothing that could be done.
func (w *want) rest(ctx context.Context, phase Phase, reason string, f facts) {
	w.since = time.Time{}
	w.seat.end(ctx)
	w.enter(phase, reason, f)
}

// comply defragments if it is this member's turn, and says otherwise what it waits for.
func (w *want) comply(ctx context.Context, f facts) error {
	if f.alone() {
		return w.defragment(ctx, f, request{origin: ByThreshold})
	}
	if f.noSpace() {
		if !byClock(time.Now(), f) {
			return errors.New("its turn has not come, which goes by the clock while no turn can be claimed")
		}
		return w.defragment(ctx, f, request{origin: ByThreshold})
	}
	if err := w.seat.wish(ctx); err != nil {
		return err
	}
	if err := w.othersFirst(f); err != nil {
		return err
	}
	return w.defragment(ctx, f, request{origin: ByThreshold, seat: w.seat})
}

// othersFirst lets those go first that precede this member. They notice their need a moment later, perhaps.
func (w *want) othersFirst(f facts) error {
	leads := f.leader == f.self
	if leads && time.Since(w.since) < 2*w.options.Interval {
		return errors.New("this member leads, and gives the others time to go first")
	}
	var names []string
	for _, p := range w.seat.wishing(f.members) {
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

// obey does what a person has asked for. Whatever comes of it is an outcome.
func (w *want) obey(ctx context.Context) {
	f := w.cluster.facts()
	r := request{origin: ByCommand}
	if !f.alone() && !f.noSpace() {
		r.seat = w.seat
	}
	err := errors.New(f.obstacle(w.limits()))
	if err.Error() == "" {
		err = w.defragment(ctx, f, r)
	}
	var failed failure
	if err != nil && !errors.As(err, &failed) {
		w.note(Outcome{At: time.Now(), Origin: ByCommand, Before: f.size, After: f.size, Error: err.Error()})
	}
}

// liftAlarms ends this member's alarm NOSPACE when its file has become small enough, and returns the facts as they are then. The one
// that leads ends those of members that are gone, as nobody else would: recovery has replaced them, or they have left.
// etcd compares the whole file with the quota, and not what is in use of it, so that a compaction alone is no reason.
func (w *want) liftAlarms(ctx context.Context, f facts) facts {
	if !f.noSpace() {
		return f
	}
	if f.noSpaceHere() && f.relieved(f.size) {
		w.lift(ctx, f.self, fmt.Sprintf("the database has %s, which is below %.0f%% of its quota of %s", inWords(f.size), 100*relief, inWords(f.quota)))
	}
	if f.leader == f.self {
		for _, id := range f.gone() {
			w.lift(ctx, id, fmt.Sprintf("member %s, which had raised it, is no member any more", id))
		}
	}
	return w.cluster.facts()
}

func (w *want) lift(ctx context.Context, of types.ID, why string) {
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	switch err := w.cluster.lift(within, of); {
	case err == nil:
		w.options.Log.Info().Msg("the alarm NOSPACE is lifted: " + why)
		w.mu.Lock()
		w.state.Lifted++
		w.mu.Unlock()
	case ctx.Err() == nil:
		w.options.Log.Warn().Err(err).Msg("the alarm NOSPACE could not be lifted, although " + why)
	}
}
