package lifecycle_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
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

// behaviour describes how a call to the runtime behaves.
type behaviour struct {
	Fails    bool
	Takes    time.Duration // duration of the call
	Stubborn bool          // the call ignores its context
	Panics   bool
	Word     bootstrap.InitializationStatus // result of a status call
	Single   bool                           // the configuration is for a new single-member cluster
}

// chaos is a runtime that follows a schedule and checks the invariants.
type chaos struct {
	mu     sync.Mutex
	plan   schedule
	calls  int
	truth  truth
	starts bool // whether etcd is starting or the record is being removed
	broken []string

	asked  map[string]time.Time // request time of each configuration
	result time.Time            // time when Successful was read
	log    bool                 // whether the member had a log from the start
}

func (c *chaos) expect(kept bool, promise string) {
	if !kept {
		c.broken = append(c.broken, promise)
	}
}

// next performs the next call in the schedule. Once the schedule has ended, every call succeeds.
func (c *chaos) next(ctx context.Context) (behaviour, error) {
	c.mu.Lock()
	is := behaviour{Word: bootstrap.Successful}
	if c.calls < len(c.plan.Calls) {
		is = c.plan.Calls[c.calls]
	}
	c.calls++
	c.mu.Unlock()
	if is.Stubborn {
		ctx = context.Background()
	}
	select {
	case <-time.After(is.Takes):
	case <-ctx.Done():
		return is, ctx.Err()
	}
	if is.Panics {
		panic("by the schedule")
	}
	if is.Fails {
		return is, errStage
	}
	return is, nil
}

// know calls look with the lock held, so look may read and change the truth.
func (c *chaos) know(look func(*truth)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	look(&c.truth)
}

func (c *chaos) Lock() error {
	_, err := c.next(context.Background())
	c.know(func(t *truth) { t.locked = t.locked || err == nil })
	return err
}

func (c *chaos) Probe() error {
	_, err := c.next(context.Background())
	if err != nil {
		return fmt.Errorf("%w: %w", bootstrap.ErrDataInUse, err)
	}
	return nil
}

func (c *chaos) Logs() []string {
	if c.log {
		return []string{"/chaos/member/wal"}
	}
	return nil
}

func (c *chaos) LockData() error { return c.Probe() }

func (c *chaos) Invalidate() error {
	_, err := c.next(context.Background())
	c.know(func(t *truth) {
		t.another = true
		t.recorded = t.recorded && err != nil
	})
	return err
}

func (c *chaos) Invalid() (is bool) {
	c.know(func(t *truth) { is = t.another })
	return is
}

func (c *chaos) Status(ctx context.Context) (bootstrap.InitializationStatus, error) {
	c.know(func(t *truth) { c.expect(t.locked, "asked without the volume's lock") })
	reaction, err := c.next(ctx)
	if err != nil {
		return "", err
	}
	c.know(func(t *truth) { t.word, t.triggered, c.result = reaction.Word, false, time.Now() })
	return reaction.Word, nil
}

func (c *chaos) WhyFailed() error { return nil }

func (c *chaos) Trigger(ctx context.Context, _ bootstrap.Mode) error {
	c.know(func(t *truth) {
		c.expect(t.locked && !t.opened, "initialization without the lock, or with an etcd")
		t.triggered = true
	})
	_, err := c.next(ctx)
	return err
}

func (c *chaos) Config(ctx context.Context) ([]byte, error) {
	asked := time.Now()
	reaction, err := c.next(ctx)
	yaml := "{data-dir: /chaos, initial-cluster: 'a=http://a,b=http://b', initial-cluster-state: new}"
	if reaction.Single {
		yaml = "{data-dir: /chaos, initial-cluster: 'a=http://a', initial-cluster-state: new}"
	}
	c.know(func(*truth) {
		yaml += fmt.Sprintf(" # %d", len(c.asked))
		c.asked[yaml] = asked
	})
	return []byte(yaml), err
}

func (c *chaos) Configure(yaml []byte) error {
	c.know(func(t *truth) {
		c.expect(t.word == bootstrap.Successful, "configured without Successful")
		age, single := c.result.Sub(c.asked[string(yaml)]), !strings.Contains(string(yaml), "b=")
		c.expect(age <= 0 || age <= 10*time.Second && single || age <= time.Minute && c.log, "configured with what was asked for "+age.String()+" before the result")
	})
	_, err := c.next(context.Background())
	return err
}

func (*chaos) Expose() error { return nil }

func (c *chaos) Remove() error {
	c.know(func(*truth) { c.starts = true })
	if _, err := c.next(context.Background()); err != nil {
		return err
	}
	c.know(func(t *truth) { t.removed, t.recorded = t.removed || t.recorded, false })
	return nil
}

func (c *chaos) Open(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	c.know(func(t *truth) {
		c.expect(t.word == bootstrap.Successful && !t.triggered, "opened without Successful")
		c.expect(!t.recorded, "opened with a clean record on the volume")
		t.opened = true
	})
	_, err := c.next(ctx)
	return err
}

func (c *chaos) Watch(ctx context.Context) error {
	reaction, err := c.next(ctx)
	if err == nil && !reaction.Stubborn {
		<-ctx.Done() // etcd runs until it is closed
	}
	return err
}

func (c *chaos) Close() (opened bool, err error) {
	c.know(func(t *truth) { opened = t.opened })
	if !opened {
		return false, nil
	}
	if _, err = c.next(context.Background()); err == nil {
		c.know(func(t *truth) { t.closed = true })
	}
	return true, err
}

func (c *chaos) Write(exitcode.Word) error {
	c.know(func(t *truth) { c.expect(t.opened && t.closed, "written before the close had returned") })
	if _, err := c.next(context.Background()); err != nil {
		return err
	}
	c.know(func(t *truth) { t.recorded = !t.another })
	return nil
}

func (c *chaos) Restore() error {
	c.know(func(t *truth) {
		c.expect(!t.opened, "restored although etcd was opened")
		t.recorded = !t.another && (t.recorded || t.removed)
	})
	return nil
}

func (c *chaos) runtime() Runtime {
	return Runtime{
		Sidecar: c, Volume: c, Record: c, Member: c, Server: c,
		Mode:        func() (bootstrap.Mode, string) { return bootstrap.Full, "chance" },
		LeaveReason: func(string) error { return nil },
	}
}

// A stimulus is an external event after a pause.
type stimulus struct {
	After time.Duration
	Kind  string
}

// A schedule contains all random decisions of a run, so that a counterexample can be read and repeated.
type schedule struct {
	Calls   []behaviour
	Stimuli []stimulus
	Log     bool // there is a log
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

// play runs a schedule to the end and returns the violated invariants.
func play(t *testing.T, plan schedule) []string {
	c := &chaos{plan: plan, truth: truth{recorded: true}, asked: map[string]time.Time{}, log: plan.Log}
	synctest.Test(t, func(*testing.T) {
		driver := NewDriver(Options{Runtime: c.runtime(), Log: zerolog.Nop()})
		var outcome Outcome
		var at time.Time
		done := make(chan struct{})
		go func() {
			defer close(done)
			outcome, at = driver.Run(), time.Now()
		}()
		asked := push(driver, plan.Stimuli)
		<-done
		c.know(func(now *truth) {
			budget := StopBudget - TakingDown
			if !c.starts {
				budget = AbortBudget - TakingDown
			}
			c.expect(at.Sub(asked) <= budget, "the end took "+at.Sub(asked).String())
			c.expect(!now.recorded || !now.opened || now.closed, "a clean record without a close")
			c.expect(outcome.Status != exitcode.Clean || now.recorded != now.another, "status 0 without a record, or with one that was forfeited")
		})
		pass(time.Hour) // wait for calls that ignore their contexts
	})
	return c.broken
}

// push sends the stimuli, followed by two signals, and returns the time of the first stimulus.
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

func TestRandomSchedules_keepInvariants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		plan := schedules.Draw(rt, "schedule")
		if broken := play(t, plan); len(broken) > 0 {
			rt.Fatalf("broken: %q", broken)
		}
	})
}
