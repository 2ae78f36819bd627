package writer

import (
	"context"
	"fmt"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
)

// A writer knows the next position and reads nothing back, so it does not notice that objects behind it are deleted. It therefore
// checks from time to time, and once more at a stop, whether the segment that was the newest at the check before is still there: what
// was deleted since is then missing, even if newer segments follow. It asks for that instead of asking for a successor of the
// generation, which the store reports by itself when the next segment is put.

// checkTimeout bounds one check.
const checkTimeout = 30 * time.Second

// checkStored checks whether the store still has what was stored, if it is time.
func (w *Writer) checkStored(ctx context.Context) {
	if time.Since(w.remote.checkpointAt) < w.pace.check {
		return
	}
	w.remote.checkpointAt = time.Now()
	checkpoint, generation := w.remote.checkpoint, w.remote.generation.Number
	if checkpoint.IsZero() {
		w.remote.checkpoint = w.lastStored()
		return
	}
	w.job(ctx, checkTimeout, func(ctx context.Context) func() {
		_, err := w.options.Archive.Manifest(ctx, generation, checkpoint)
		return func() {
			switch {
			case w.core.State != writing || w.remote.checkpoint != checkpoint:
			case err == nil:
				w.remote.checkpoint = w.lastStored()
			case archive.Unusable(err):
				w.take(ctx, storeLost, payload{})
			}
		}
	})
}

// lastStored returns the position of the newest segment in the store; zero if there is none.
func (w *Writer) lastStored() format.Position {
	if w.remote.last.Compare(w.remote.stored) < 0 {
		return w.remote.last
	}
	return format.Position{}
}

// handleLostSegments starts another chain if a segment between the newest full snapshot and the end is gone, since
// the end cannot be restored then. If the end is gone as well, the rows are captured again.
func (w *Writer) handleLostSegments(head archive.Head) {
	lost := w.remote.lost
	w.remote.checkpoint, w.remote.checkpointAt = w.lastStored(), time.Now()
	if lost.IsZero() || lost.Compare(head.Full.Next) < 0 || lost.Compare(head.Position) >= 0 {
		w.remote.lost = format.Position{}
		return
	}
	if w.core.State != writing {
		return
	}
	w.options.Log.Error().Str("segment", lost.String()).Msg("backups: the store has lost segments; a full snapshot starts another chain")
	w.discard()
	next := head.Next(w.remote.generation)
	w.remote.link = &next
	w.post(broken, payload{err: fmt.Errorf("lost: segment %s is gone from the store", lost)})
}
