package writer

import (
	"context"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/merge"
)

// mergePatience is how long one round may take.
const mergePatience = 15 * time.Minute

// merging is what this member does about small objects.
type merging struct {
	merger  *merge.Merger
	of      *archive.Archive
	running bool
	at      time.Time // of the last run
	stored  int64     // how many segments there were then
	left    bool      // something waits for its time
}

// merge has small objects merged once in a while, if there are new ones.
func (s *Shipper) merge(ctx context.Context) {
	m := &s.merging
	if m.running || !s.writes() || s.generation.Number == 0 || !s.well() || s.full != nil || time.Since(m.at) < s.pace.merge ||
		!m.left && m.stored == s.statistic.Segments {
		return
	}
	if m.of != s.archive {
		m.merger, m.of = merge.New(s.archive, s.options.Now), s.archive
	}
	m.running, m.at, m.stored = true, time.Now(), s.statistic.Segments
	merger, generation := m.merger, s.generation.Number
	s.job(func() func() {
		ctx, cancel := context.WithTimeout(ctx, mergePatience)
		defer cancel()
		done, err := merger.Run(ctx, generation)
		return func() { s.merged(done, err) }
	})
}

func (s *Shipper) merged(done merge.Done, err error) {
	s.merging.running, s.merging.left = false, done.Left || err != nil
	s.statistic.Merged += int64(done.Merged)
	s.statistic.Holes += int64(done.Holes)
	if err != nil && !s.ending {
		s.statistic.Failures++
		s.options.Log.Warn().Err(err).Msg("backups: small segments stay as they are for now")
	}
}
