package backup

import (
	"fmt"
	"time"
)

const (
	// maxDrift bounds how far the wall clock may move against the monotonic one before it counts as a jump.
	maxDrift = time.Minute
	// afterJump is how long nothing is deleted after a jump: what a wrong clock takes for old may be new.
	afterJump = time.Hour
)

// A clock detects jumps of the wall clock. A suspended machine looks like a jump, which only delays deletions.
type clock struct {
	now     func() time.Time // the wall clock
	started time.Time        // by the monotonic clock
	drift   time.Duration    // of the wall clock, at the last jump
	jump    time.Duration    // the last jump; 0 if there was none
	jumped  time.Time        // when it was detected, by the monotonic clock
}

func newClock(now func() time.Time) clock {
	c := clock{now: now, started: time.Now()}
	c.drift = c.measure()
	return c
}

// measure returns how far the wall clock is ahead of where it was at the start.
func (c *clock) measure() time.Duration {
	return c.now().Round(0).Sub(c.started.Round(0)) - time.Since(c.started)
}

// check returns why nothing may be deleted now; empty if the wall clock has not jumped within the last hour.
func (c *clock) check() string {
	drift := c.measure()
	if jump := drift - c.drift; jump.Abs() > maxDrift {
		c.drift, c.jump, c.jumped = drift, jump, time.Now()
	}
	if c.jump == 0 || time.Since(c.jumped) >= afterJump {
		return ""
	}
	return fmt.Sprintf("this machine's clock jumped by %s %s ago; nothing is deleted for %s after that",
		c.jump.Round(time.Second), time.Since(c.jumped).Round(time.Minute), afterJump)
}
