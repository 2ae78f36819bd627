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
	Fails    bool                           // whether the call returns an error
	Takes    time.Duration                  // duration of the call
	Stubborn bool                           // whether the call ignores its context
	Panics   bool                           // whether the call panics
	Word     bootstrap.InitializationStatus // status returned by a status query
	Single   bool                           // whether a returned configuration is for a new single-member cluster
}

// chaos is a runtime whose calls behave as a random schedule specifies. It records violated invariants.
type chaos struct {
	mu     sync.Mutex
	plan   schedule
	calls  int
	env    environment
	starts bool     // whether removing the exit record has started, after which a stop may take as long as StopBudget
	broken []string // violated invariants

	asked  map[string]time.Time // time at which each configuration was requested
	result time.Time            // time of the last status response
	log    bool                 // whether the volume contains a WAL directory
}

func (c *chaos) expect(holds bool, violation string) {
	if !holds {
		c.broken = append(c.broken, violation)
	}
}

// next waits and returns as the schedule specifies for the next call. After the end of the schedule, every call
// succeeds immediately.
func (c *chaos) next(ctx context.Context) (behaviour, error) {
	c.mu.Lock()
	call := behaviour{Word: bootstrap.Successful}
	if c.calls < len(c.plan.Calls) {
		call = c.plan.Calls[c.calls]
	}
	c.calls++
	c.mu.Unlock()
	if call.Stubborn {
		ctx = context.Background()
	}
	select {
	case <-time.After(call.Takes):
	case <-ctx.Done():
		return call, ctx.Err()
	}
	if call.Panics {
		panic("panic from the schedule")
	}
	if call.Fails {
		return call, errStage
	}
	return call, nil
}

// update calls change with the lock held. change may read or modify the environment, and call expect.
func (c *chaos) update(change func(*environment)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.env)
}

func (c *chaos) Lock() error {
	_, err := c.next(context.Background())
	c.update(func(env *environment) { env.locked = env.locked || err == nil })
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
	c.update(func(env *environment) {
		env.foreignWriter = true
		env.recorded = env.recorded && err != nil
	})
	return err
}

func (c *chaos) Invalid() (invalid bool) {
	c.update(func(env *environment) { invalid = env.foreignWriter })
	return invalid
}

func (c *chaos) Status(ctx context.Context) (bootstrap.InitializationStatus, error) {
	c.update(func(env *environment) { c.expect(env.locked, "status queried without the volume lock") })
	reaction, err := c.next(ctx)
	if err != nil {
		return "", err
	}
	c.update(func(env *environment) { env.status, env.triggered, c.result = reaction.Word, false, time.Now() })
	return reaction.Word, nil
}

func (c *chaos) WhyFailed() error { return nil }

func (c *chaos) Trigger(ctx context.Context, _ bootstrap.Mode) error {
	c.update(func(env *environment) {
		c.expect(env.locked && !env.opened, "initialization requested without the volume lock or after etcd was opened")
		env.triggered = true
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
	c.update(func(*environment) {
		yaml += fmt.Sprintf(" # %d", len(c.asked))
		c.asked[yaml] = asked
	})
	return []byte(yaml), err
}

func (c *chaos) Configure(yaml []byte) error {
	c.update(func(env *environment) {
		c.expect(env.status == bootstrap.Successful, "configured before the status Successful")
		age, single := c.result.Sub(c.asked[string(yaml)]), !strings.Contains(string(yaml), "b=")
		c.expect(age <= 0 || age <= 10*time.Second && single || age <= time.Minute && c.log, "configured with a configuration that was requested "+age.String()+" before the result")
	})
	_, err := c.next(context.Background())
	return err
}

func (*chaos) Expose() error { return nil }

func (c *chaos) Remove() error {
	c.update(func(*environment) { c.starts = true })
	if _, err := c.next(context.Background()); err != nil {
		return err
	}
	c.update(func(env *environment) { env.removed, env.recorded = env.removed || env.recorded, false })
	return nil
}

func (c *chaos) Open(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	c.update(func(env *environment) {
		c.expect(env.status == bootstrap.Successful && !env.triggered, "etcd opened before the status Successful")
		c.expect(!env.recorded, "etcd opened with a clean exit record on the volume")
		env.opened = true
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
	c.update(func(env *environment) { opened = env.opened })
	if !opened {
		return false, nil
	}
	if _, err = c.next(context.Background()); err == nil {
		c.update(func(env *environment) { env.closed = true })
	}
	return true, err
}

func (c *chaos) Write(exitcode.Word) error {
	c.update(func(env *environment) {
		c.expect(env.opened && env.closed, "exit record written although etcd was not closed cleanly")
	})
	if _, err := c.next(context.Background()); err != nil {
		return err
	}
	c.update(func(env *environment) { env.recorded = !env.foreignWriter })
	return nil
}

func (c *chaos) Restore() error {
	c.update(func(env *environment) {
		c.expect(!env.opened, "exit record restored although etcd was opened")
		env.recorded = !env.foreignWriter && (env.recorded || env.removed)
	})
	return nil
}

func (c *chaos) runtime() Runtime {
	return Runtime{
		Sidecar: c, Volume: c, Record: c, Member: c, Server: c,
		Mode:        func() (bootstrap.Mode, string) { return bootstrap.Full, "reason" },
		LeaveReason: func(string) error { return nil },
	}
}

// A stimulus is a stop request or a crash, sent after a pause.
type stimulus struct {
	After time.Duration
	Kind  string // SIGTERM, SIGINT, POST or crash
}

// A schedule contains all random decisions of a run, so that rapid can print, shrink and repeat a failing run.
type schedule struct {
	Calls   []behaviour // behaviour of the calls to the runtime, in order
	Stimuli []stimulus
	Log     bool // whether the volume contains a WAL directory
}

var schedules = rapid.Custom(func(t *rapid.T) schedule {
	takes := rapid.SampledFrom([]time.Duration{0, 0, 0, time.Millisecond, time.Second, time.Minute})
	word := rapid.SampledFrom(append(declared[bootstrap.InitializationStatus](), bootstrap.Successful, unknownStatus))
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
	c := &chaos{plan: plan, env: environment{recorded: true}, asked: map[string]time.Time{}, log: plan.Log}
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
		c.update(func(env *environment) {
			budget := StopBudget - TakingDown
			if !c.starts {
				budget = AbortBudget - TakingDown
			}
			c.expect(at.Sub(asked) <= budget, "the stop took "+at.Sub(asked).String())
			c.expect(!env.recorded || !env.opened || env.closed, "clean exit record although etcd was not closed cleanly")
			c.expect(outcome.Status != exitcode.Clean || env.recorded != env.foreignWriter, "exit status 0 without a clean exit record, or with one that should be invalid")
		})
		pass(time.Hour) // wait for calls that ignore cancellation
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
			driver.Crash(fmt.Errorf("crash from the schedule"))
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
			rt.Fatalf("violated invariants: %q", broken)
		}
	})
}
