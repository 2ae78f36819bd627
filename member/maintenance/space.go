package maintenance

import "context"

// liftAlarm ends this member's alarm NOSPACE when its file has become small enough, and returns the facts as they are then.
// etcd compares the whole file with the quota, and not what is in use of it, so that a compaction alone is no reason.
func (w *want) liftAlarm(ctx context.Context, f facts) facts {
	if !f.ownNoSpace || !f.relieved(f.size) {
		return f
	}
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := w.cluster.lift(within); err != nil {
		if ctx.Err() == nil {
			w.options.Log.Warn().Err(err).Msg("there is room again, and the alarm NOSPACE could not be lifted")
		}
		return f
	}
	w.options.Log.Info().Int64("size", f.size).Int64("quota", f.quota).
		Msgf("the alarm NOSPACE is lifted: the database has %s, which is below %.0f%% of its quota of %s", inWords(f.size), 100*relief, inWords(f.quota))
	w.mu.Lock()
	w.state.Lifted++
	w.mu.Unlock()
	return w.cluster.facts()
}
