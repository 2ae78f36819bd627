package backup

import (
	"fmt"
	"time"
)

const (
	// maxDrift bounds how far the wall clock may move against the monotonic one before it counts as a jump.
	maxDrift = time.Minute
	// afterJump is the time without deletions after a jump: by a wrong clock, new backups may look old.
	afterJump = time.Hour
)

// A clock detects jumps of the wall clock. A suspended machine looks like a jump, which only delays deletions.
type clock struct {
	now     func() time.Time // the wall clock
	first   time.Time        // what it showed at the start
	started time.Time        // by the monotonic clock
	drift   time.Duration    // of the wall clock, at the last jump
	jump    time.Duration    // the last jump; 0 if there was none
	jumped  time.Time        // when it was detected, by the monotonic clock
}

func newClock(now func() time.Time) clock { return clock{now: now, first: now(), started: time.Now()} }

// check returns why nothing may be deleted now; empty if the wall clock has not jumped within the last hour.
func (c *clock) check() string {
	drift := c.now().Round(0).Sub(c.first.Round(0)) - time.Since(c.started)
	if jump := drift - c.drift; jump.Abs() > maxDrift {
		c.drift, c.jump, c.jumped = drift, jump, time.Now()
	}
	if c.jump == 0 || time.Since(c.jumped) >= afterJump {
		return ""
	}
	return fmt.Sprintf("this machine's clock jumped by %s %s ago; nothing is deleted for %s after that",
		c.jump.Round(time.Second), time.Since(c.jumped).Round(time.Minute), afterJump)
}
