package lifecycle_test

import (
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	. "etcd-wrapper/lifecycle"
)

// stimulus comes from outside, after a pause.
type stimulus struct {
	After time.Duration
	Kind  string
}

// schedule is everything that chance decides about a run, so that a counterexample can be read and played again.
type schedule struct {
	Calls   []behaviour
	Stimuli []stimulus
	Log     bool // etcd has a log
}

var schedules = rapid.Custom(func(t *rapid.T) schedule {
	takes := rapid.SampledFrom([]time.Duration{0, 0, 0, time.Millisecond, time.Second, time.Minute})
	word := rapid.SampledFrom(append(declared[bootstrap.InitializationStatus](), bootstrap.Successful, unknownWord))
	call := rapid.Custom(func(t *rapid.T) behaviour {
		return behaviour{
			Fails: rapid.IntRange(0, 4).Draw(t, "fails") == 4, Takes: takes.Draw(t, "takes"),
			Stubborn: rapid.IntRange(0, 5).Draw(t, "stubborn") == 5, Panics: rapid.IntRange(0, 60).Draw(t, "panics") == 60,
			Word: word.Draw(t, "word"), Single: rapid.Bool().Draw(t, "single"),
		}
	})
	pushed := rapid.Custom(func(t *rapid.T) stimulus {
		return stimulus{
			After: rapid.SampledFrom([]time.Duration{0, time.Millisecond, 150 * time.Millisecond, time.Second, time.Minute}).Draw(t, "after"),
			Kind:  rapid.SampledFrom([]string{"SIGTERM", "SIGTERM", "SIGINT", "POST", "crash"}).Draw(t, "kind"),
		}
	})
	return schedule{
		Log:     rapid.Bool().Draw(t, "log"),
		Calls:   rapid.SliceOfN(call, 1, 25).Draw(t, "calls"),
		Stimuli: rapid.SliceOfN(pushed, 1, 4).Draw(t, "stimuli"),
	}
})

// play runs a schedule to its end and returns the promises that were broken.
func play(t *testing.T, plan schedule) []string {
	c := &chaos{plan: plan, truth: truth{recorded: true}, asked: map[string]time.Time{}, log: plan.Log}
	synctest.Test(t, func(*testing.T) {
		driver := NewDriver(Options{World: c.world(), Log: zerolog.Nop()})
		var outcome Outcome
		var at time.Time
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			outcome, at = driver.Run(), time.Now()
		}()
		asked := push(driver, plan.Stimuli)
		<-ended
		c.know(func(now *truth) {
			budget := StopBudget - TakingDown
			if !c.starts {
				budget = AbortBudget - TakingDown
			}
			c.expect(at.Sub(asked) <= budget, "the end took "+at.Sub(asked).String())
			c.expect(!now.recorded || !now.opened || now.closed, "a clean record without a close")
			c.expect(outcome.Status != exitcode.Clean || now.recorded != now.stranger, "status 0 without a record, or with one that was forfeited")
		})
		pass(time.Hour) // until what is stubborn has ended
	})
	return c.broken
}

// push lets the stimuli come, and two signals in the end. It returns when the first of them came.
func push(driver *Driver, stimuli []stimulus) (first time.Time) {
	for i, s := range append(stimuli, stimulus{time.Minute, "SIGTERM"}, stimulus{time.Minute, "SIGTERM"}) {
		pass(s.After)
		if i == 0 {
			first = time.Now()
		}
		switch s.Kind {
		case "SIGINT":
			driver.Signal(syscall.SIGINT)
		case "POST":
			driver.Stop()
		case "crash":
			driver.Crash(fmt.Errorf("by the schedule"))
		default:
			driver.Signal(syscall.SIGTERM)
		}
	}
	return first
}

func TestNoScheduleBreaksAPromise(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		plan := schedules.Draw(rt, "schedule")
		if broken := play(t, plan); len(broken) > 0 {
			rt.Fatalf("broken: %q", broken)
		}
	})
}
