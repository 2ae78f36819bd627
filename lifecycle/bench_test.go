package lifecycle_test

import (
	"context"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"

	"etcd-wrapper/bootstrap"
	. "etcd-wrapper/lifecycle"
)

// BenchmarkStep takes one step of the machine: the rules decide and the library agrees.
func BenchmarkStep(b *testing.B) {
	step := Stepping(NewRules(Table, Elsewhere))
	b.ReportAllocs()
	for b.Loop() {
		step()
	}
}

// progressing is a sidecar that validates for ever.
type progressing struct{ Sidecar }

func (progressing) Status(context.Context) (bootstrap.InitializationStatus, error) {
	return bootstrap.Progress, nil
}

func (progressing) Config(ctx context.Context) ([]byte, error) { return nil, hang(ctx) }

// polling is a driver that polls the sidecar, step by step.
func polling() (driver *Driver, handleNext func()) {
	world := newStage().world()
	world.Sidecar = progressing{}
	driver = NewDriver(Options{World: world, Log: zerolog.Nop()})
	return driver, PollingDriver(driver)
}

// BenchmarkTurn takes a step while a validation runs, with all that the driver does about it: it starts and awaits a
// goroutine, sets the timer, keeps and publishes the history.
func BenchmarkTurn(b *testing.B) {
	_, handleNext := polling()
	b.ReportAllocs()
	for b.Loop() {
		handleNext()
	}
}

// A step is taken thousands of times while a restore runs for hours.
func TestAStepAllocatesLittleAndKeepsABoundedHistory(t *testing.T) {
	rules, core := NewRules(Table, Elsewhere), NewCore()
	for _, event := range []Event{Begun, Replied, Elapsed, Signal} {
		assert.Zero(t, testing.AllocsPerRun(100, func() { rules.Step(core, event, Payload{}) }), event)
	}
	driver, handleNext := polling()
	assert.LessOrEqual(t, testing.AllocsPerRun(1000, handleNext), 16.0)
	assert.LessOrEqual(t, len(driver.Snapshot().History), 4, "rows that alternate are counted, not listed")
}

func TestTheHistoryIsBoundedWhateverHappens(t *testing.T) {
	assert.Equal(t, 64, KeptOf(1000))
}
