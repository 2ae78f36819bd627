package shipper

import (
	"time"

	"github.com/cenkalti/backoff/v4"

	"etcd-wrapper/bootstrap/backup/store"
)

// about is what failed. Only that, or more than that, shows that it goes on.
type about int

const (
	aboutLook about = iota // reading shows nothing about writing
	aboutSegment
	aboutFull
)

// trouble is why backups don't reach the store.
type trouble struct {
	about about
	began time.Time // by the monotonic clock
	since time.Time // for people
	text  string
	next  time.Time
	waits *backoff.ExponentialBackOff
}

// longestWait is how long the store is left alone at most, unless it asks for more.
const longestWait = 30 * time.Second

func newWaits() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithMaxInterval(longestWait), backoff.WithMaxElapsedTime(0))
}

// failed notes that something did not succeed, and when it may be tried again. The log has the first of a row of failures,
// and each that is another.
func (s *Shipper) failed(about about, doing string, err error) {
	if s.ending {
		return // it was given up
	}
	if s.trouble == nil {
		s.trouble = &trouble{began: time.Now(), since: s.options.Now(), waits: newWaits()}
		s.endure()
	}
	s.statistic.Failures++
	wait := max(s.trouble.waits.NextBackOff(), store.RetryAfter(err))
	if len(s.flushes) > 0 {
		wait = min(wait, time.Second) // there may be no later
	}
	text := doing + ": " + err.Error()
	if s.trouble.text != text {
		s.options.Log.Warn().Msgf("backups: %s; it is tried again, and etcd serves all the same", text)
	}
	s.trouble.about, s.trouble.text, s.trouble.next = max(about, s.trouble.about), text, s.options.Now().Add(wait)
	s.patience = time.Now().Add(wait)
}

// endure makes what waits survive a machine that is switched off, now that it may have to wait for long.
func (s *Shipper) endure() {
	if err := s.spool.Sync(); err != nil {
		s.options.Log.Warn().Err(err).Msg("backups: what waits for the store may not survive the machine")
	}
}

// succeeded notes that something went well, and so does all that is less.
func (s *Shipper) succeeded(about about) {
	if s.trouble == nil || s.trouble.about > about {
		return
	}
	s.options.Log.Info().Dur("after", time.Since(s.trouble.began)).Msg("backups: they go on")
	s.trouble, s.patience = nil, time.Time{}
}

// may tells whether the store may be asked for something now.
func (s *Shipper) may() bool { return !s.busy && !time.Now().Before(s.patience) }

// stuck notes that nothing can be captured. etcd has what is not captured, until it is compacted.
func (s *Shipper) stuck(err error) {
	text := "what changes cannot be captured, and will be lost to backups when etcd compacts it: " + err.Error()
	if s.local == nil {
		s.options.Log.Warn().Msg("backups: " + text)
		s.local = &Trouble{Since: s.options.Now()}
	}
	s.local.Text = text
}
