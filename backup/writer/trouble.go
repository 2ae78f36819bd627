package writer

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"

	"etcd-wrapper/backup/store"
)

// about is what failed.
type about int

const (
	aboutLook        about = iota // finding out what the store has
	aboutSegment                  // storing a segment
	aboutFull                     // making or storing a full
	aboutReservation              // keeping the reservation ahead
	abouts
)

// trouble is why something does not go on.
type trouble struct {
	began time.Time // by the monotonic clock
	since time.Time // for people
	text  string
	next  time.Time // for people: when it is tried again
	times int       // in a row
	waits *backoff.ExponentialBackOff
}

const (
	// longestWait is how long the store is left alone at most, unless it asks for more.
	longestWait = 30 * time.Second
	// silence is how long an answer may take before it is told.
	silence = 5 * time.Second
)

// failed notes that something did not succeed, and returns how long it is to be left alone. The log has the first of a row
// of failures, and each that is another.
func (s *Shipper) failed(about about, doing string, err error) time.Duration {
	if s.ending {
		return 0 // it was given up
	}
	if s.troubles[about] == nil {
		s.endure()
	}
	t := s.trouble(about)
	s.statistic.Failures++
	wait := max(t.waits.NextBackOff(), store.RetryAfter(err))
	if len(s.flushes) > 0 {
		wait = min(wait, time.Second) // there may be no later
	}
	text := doing + ": " + err.Error()
	if t.text != text {
		s.options.Log.Warn().Msgf("backups: %s; it is tried again, and etcd serves all the same", text)
	}
	t.text, t.next = text, s.options.Now().Add(wait)
	if about == aboutLook || about == aboutSegment {
		s.patience = time.Now().Add(wait)
	}
	return wait
}

// trouble adds to a row of failures, or begins one.
func (s *Shipper) trouble(about about) *trouble {
	if s.troubles[about] == nil {
		waits := backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(s.pace.retry), backoff.WithMaxInterval(longestWait), backoff.WithMaxElapsedTime(0))
		s.troubles[about] = &trouble{began: time.Now(), since: s.options.Now(), waits: waits}
	}
	s.troubles[about].times++
	return s.troubles[about]
}

// endure makes what waits survive a machine that is switched off, now that it may have to wait for long.
func (s *Shipper) endure() {
	if err := s.spool.Sync(); err != nil {
		s.options.Log.Warn().Err(err).Msg("backups: what waits for the store may not survive the machine")
	}
}

// succeeded notes that something went well. Who can write can read as well, but not the other way round.
func (s *Shipper) succeeded(what about) {
	var began time.Time
	for about := range what + 1 {
		if s.troubles[about] != nil && (about == what || what != aboutReservation) {
			began = s.troubles[about].began
			s.troubles[about] = nil
		}
	}
	if began.IsZero() {
		return
	}
	s.patience = time.Time{}
	if s.well() {
		s.options.Log.Info().Dur("after_ms", time.Since(began)).Msg("backups: they go on")
	}
}

// well tells whether nothing is wrong with the store.
func (s *Shipper) well() bool { return s.troubles == [abouts]*trouble{} }

// may tells whether the store may be asked about the chain now.
func (s *Shipper) may() bool { return !s.busy && s.left == nil && !time.Now().Before(s.patience) }

// ask notes that it is.
func (s *Shipper) ask() { s.busy, s.asked = true, time.Now() }

// away is whether the store has not answered well for a while.
func (s *Shipper) away() bool {
	for _, about := range []about{aboutLook, aboutSegment} {
		if t := s.troubles[about]; t != nil && time.Since(t.began) > cmp.Or(s.options.Interval, time.Second) {
			return true
		}
	}
	return s.silent()
}

// silent is whether an answer is overdue.
func (s *Shipper) silent() bool { return s.busy && time.Since(s.asked) > silence }

// stuck notes that nothing can be captured. etcd has what is not captured, until it is compacted.
func (s *Shipper) stuck(err error) {
	text := "what changes cannot be captured, and will be lost to backups when etcd compacts it: " + err.Error()
	if s.local == nil {
		s.options.Log.Warn().Msg("backups: " + text)
		s.local = &Trouble{Since: s.options.Now()}
	}
	s.local.Times++
	s.local.Text = text
}

// troubleNow puts together all that is wrong.
func (s *Shipper) troubleNow() *Trouble {
	var told Trouble
	var texts []string
	add := func(text string, since, next time.Time, times int) {
		texts = append(texts, text)
		if told.Since.IsZero() || since.Before(told.Since) {
			told.Since = since
		}
		if told.NextTry.IsZero() || next.Before(told.NextTry) && !next.IsZero() {
			told.NextTry = next
		}
		told.Times = max(told.Times, times)
	}
	for _, t := range s.troubles {
		if t != nil {
			add(t.text, t.since, t.next, t.times)
		}
	}
	if s.silent() {
		waited := time.Since(s.asked).Truncate(time.Second)
		add(fmt.Sprintf("the store has not answered for %s", waited), s.options.Now().Add(-waited), time.Time{}, 1)
	}
	if s.local != nil {
		add(s.local.Text, s.local.Since, time.Time{}, s.local.Times)
	}
	if len(texts) == 0 {
		return nil
	}
	told.Text, told.Fatal = strings.Join(texts, "; "), s.foreign
	return &told
}
