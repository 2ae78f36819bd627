package writer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"etcd-wrapper/backup/format"
)

// Flush uploads everything that etcd has acknowledged until now and returns nil once it is stored. At an orderly stop
// it is called after the last client request has ended and before etcd is closed, with all the time that remains. An
// error describes what is missing; whatever was captured stays in the spool. While etcd runs, ErrNotWriter means that
// another member uploads it.
func (w *Writer) Flush(ctx context.Context) error {
	flushed, err := ask(ctx, w, w.requestFlush)
	if err != nil && !errors.Is(err, ErrEnded) {
		err = fmt.Errorf("%w: %s", err, w.missing())
	}
	return cmp.Or(err, flushed)
}

// ask runs a request in the owner's goroutine and waits for the answer, or for Run or ctx to end.
func ask[T any](ctx context.Context, w *Writer, request func(answer chan<- T)) (answer T, err error) {
	answers := make(chan T, 1)
	select {
	case w.events <- func() { request(answers) }:
	case <-w.ended:
		return answer, ErrEnded
	case <-ctx.Done():
		return answer, context.Cause(ctx)
	}
	select {
	case answer = <-answers:
		return answer, nil
	case <-w.ended:
		return answer, ErrEnded
	case <-ctx.Done():
		return answer, context.Cause(ctx)
	}
}

// missing returns a clause about what is not stored.
func (w *Writer) missing() string {
	facts := w.Facts()
	text := "it is not known whether everything is stored"
	if facts.Behind > 0 {
		text = fmt.Sprintf("revisions %d to %d are not in the store", facts.Revision-facts.Behind+1, facts.Revision)
	}
	if full := facts.FullRunning; full != nil {
		text += fmt.Sprintf(", and the full snapshot started %s ago %s", w.options.Now().Sub(full.Since).Round(time.Millisecond), full.Step)
	}
	if facts.Trouble != nil {
		text += ": " + facts.Trouble.Message
	}
	return text
}

// resetFlushTargets makes waiting flushes compute their target position again: their chain has ended.
func (w *Writer) resetFlushTargets() {
	for i := range w.flushes {
		w.flushes[i].target = format.Position{}
	}
}

// requestFlush adds a flush and ends all waits that only save requests.
func (w *Writer) requestFlush(done chan<- error) {
	w.flushes = append(w.flushes, flush{revision: w.options.Etcd.Revision(), at: time.Now(), done: done})
	w.chain.captureNow, w.remote.notBefore, w.fulls.notBefore = true, time.Time{}, time.Time{}
}

// answerFlushes answers the flushes that are complete or cannot complete here.
func (w *Writer) answerFlushes() {
	waiting, notWriter := w.flushes[:0], w.notWriterError()
	for _, flush := range w.flushes {
		if flush.target.IsZero() && w.chain.tail != nil && w.chain.tail.Position.Revision > flush.revision && w.chain.examined.After(flush.at) {
			flush.target = w.chain.tail.Position
		}
		switch {
		case w.core.State == drained, w.core.State == ended:
			flush.done <- w.result
		case !w.chain.released.IsZero() && w.remote.stored.Compare(w.chain.released) >= 0:
			flush.done <- nil
		case !flush.target.IsZero() && w.remote.stored.Compare(flush.target) >= 0 && !w.remote.storedAt.IsZero():
			if w.captureRelease() {
				flush.target = w.chain.released
				waiting = append(waiting, flush)
				continue
			}
			flush.done <- nil
		case notWriter != nil && (!errors.Is(notWriter, ErrNotWriter) || len(w.spool.Entries()) == 0):
			flush.done <- notWriter
		default:
			waiting = append(waiting, flush)
		}
	}
	w.flushes = waiting
}

// notWriterError returns why this member makes no backups; nil if it does or if that is not known yet.
func (w *Writer) notWriterError() error {
	switch {
	case w.isRefused() && w.problems[opInspect] != nil:
		return errors.New(w.problems[opInspect].Message)
	case w.remote.generation.Number != 0 && !w.isWriter():
		return ErrNotWriter
	default:
		return nil
	}
}

// captureRelease spools the last object of an orderly stop, once, and reports whether it did.
func (w *Writer) captureRelease() bool {
	if !w.options.Release || w.core.State != writing || !w.chain.released.IsZero() {
		return false
	}
	identity := w.options.Etcd.Identity()
	builder, err := format.NewSegmentBuilder(w.options.Archive.Keys(), *w.chain.tail)
	if err == nil {
		err = w.enqueue(builder, format.Source{Term: identity.Term, Member: identity.MemberID, Session: w.options.Session, Released: true})
	}
	if err != nil {
		w.options.Log.Warn().Err(err).Msg("backups: a restore elsewhere will wait to see whether this cluster is active")
		return false
	}
	w.chain.released = w.chain.tail.Position
	w.again = true
	return true
}

// failFlushes answers all waiting flushes with ErrEnded.
func (w *Writer) failFlushes() {
	for _, flush := range w.flushes {
		flush.done <- ErrEnded
	}
	w.flushes = nil
}

// BeforeCompaction captures what etcd has, so that a compaction up to the current revision leaves no gap in the
// chain. It is called before a compaction is passed to etcd, and returns when the capture is done or ctx ends, which
// bounds the delay of the compaction. It never waits for the store.
func (w *Writer) BeforeCompaction(ctx context.Context) {
	_, _ = ask(ctx, w, func(captured chan<- struct{}) { // without a capture the compaction proceeds all the same
		w.revision = w.options.Etcd.Revision()
		w.chain.captureNow = true
		for w.again = true; w.again; {
			w.again = false
			w.capture()
		}
		close(captured)
	})
}

// FullNow makes a full snapshot and returns when it is stored. If one is in progress already, another one follows it. It returns
// ErrNotWriter if another member writes the backups, or becomes the writer meanwhile. Any other error describes a problem that has
// lasted for half a minute. The full snapshot is still made once the problem is over, or if ctx ends.
func (w *Writer) FullNow(ctx context.Context, reason string) (FullDone, error) {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	go w.cancelWhenStuck(ctx, giveUp)
	result, err := ask(ctx, w, func(done chan<- fullResult) { w.requestFull(fullRequest{reason, done}) })
	return result.FullDone, cmp.Or(err, result.err)
}

// cancelWhenStuck cancels a wait for a full snapshot if a problem has lasted for too long and no bytes of a full
// snapshot were sent.
func (w *Writer) cancelWhenStuck(ctx context.Context, giveUp context.CancelCauseFunc) {
	ticker := time.NewTicker(w.pace.tick)
	defer ticker.Stop()
	for since, sent := time.Now(), int64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		facts := w.Facts()
		if full := facts.FullRunning; full != nil && full.SentBytes != sent {
			since, sent = time.Now(), full.SentBytes
		}
		if facts.Trouble == nil {
			since = time.Now()
		}
		if time.Since(since) > w.pace.fullPatience {
			giveUp(fmt.Errorf("no full snapshot while this lasts, but one when it is over: %s", facts.Trouble.Message))
			return
		}
	}
}
