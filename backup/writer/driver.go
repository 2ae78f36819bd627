package writer

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/statemachine"
)

// driver runs the state machine and the jobs of a writer. All parts of the writer share one driver. Only Run's
// goroutine may use the driver, except for the methods call and wait.
type driver struct {
	options Options
	pace    timing
	ctx     context.Context // context of Run

	core   statemachine.Core[memberState]
	legal  *statemachine.Checker
	work   map[Action]func(payload)
	posted []report // events posted while the current event is handled

	events   chan func() // functions to run in Run's goroutine
	ended    chan struct{}
	jobs     int  // number of running jobs
	again    bool // run the next step without waiting for the next tick
	stopping bool // Run's context is done, and Run is waiting for its jobs
}

// report is an event with its payload.
type report struct {
	event   Event
	payload payload
}

// ErrEnded is returned by methods that are called after Run has returned, or whose request was pending when Run
// returned.
var ErrEnded = errors.New("backups have stopped")

var rules = statemachine.NewRules[memberState, payload](Table, Elsewhere, drained)

// take handles an event and all events posted by its actions.
func (d *driver) take(event Event, payload payload) {
	d.post(event, payload)
	for len(d.posted) > 0 {
		next := d.posted[0]
		d.posted = d.posted[1:]
		for _, action := range d.decide(next) {
			d.work[action](next.payload)
		}
	}
}

// post queues an event until all actions of the current event are done.
func (d *driver) post(event Event, payload payload) {
	d.posted = append(d.posted, report{event, payload})
}

// decide looks up the event in the table, verifies the transition, and returns the actions to run.
func (d *driver) decide(next report) []Action {
	from, log := d.core.State, d.options.Log
	core, decision := rules.Step(d.core, next.event, next.payload)
	if decision.Row < 0 {
		if decision.Answer == statemachine.Reject {
			log.Error().Str("state", string(from)).Str("event", string(next.event)).Msg("backups: bug: the state machine has no transition for this event")
		}
		return nil
	}
	if err := d.legal.Take(rules.Row(decision.Row)); err != nil {
		log.Error().Err(err).Msg("backups: bug: invalid state transition")
		return nil
	}
	d.core = core
	if from != core.State {
		log.Debug().Str("from", string(from)).Str("event", string(next.event)).Str("to", string(core.State)).Msg("backups: " + decision.Why)
	}
	return decision.Do
}

// isIn reports whether the current state is one of the given states.
func (d *driver) isIn(states ...State) bool { return slices.Contains(states, d.core.State) }

// isRefused reports whether this member must not write to the store.
func (d *driver) isRefused() bool { return d.isIn(foreign, ended) }

// isWriter reports whether this member extends the chain.
func (d *driver) isWriter() bool { return !d.isRefused() && d.core.Facts.isWriter() }

// job runs work in a new goroutine and cancels its context at the time limit. When work returns, the function that it
// returns (done) runs in Run's goroutine.
func (d *driver) job(limit time.Duration, work func(context.Context) (done func())) {
	d.jobs++
	go func() {
		ctx, cancel := context.WithTimeout(d.ctx, limit)
		done := work(ctx)
		cancel()
		d.events <- func() {
			d.jobs--
			done()
		}
	}()
}

// wait runs a function in Run's goroutine and waits for it to return. Only jobs may call wait, because Run outlives
// its jobs.
func (d *driver) wait(run func()) {
	done := make(chan struct{})
	d.events <- func() {
		defer close(done)
		run()
	}
	<-done
}

// call runs a request in Run's goroutine and waits for the response, or returns an error if Run returns or ctx is
// done first.
func call[T any](ctx context.Context, d *driver, request func(answer chan<- T)) (answer T, err error) {
	answers, events := make(chan T, 1), d.events
	for {
		select {
		case events <- func() { request(answers) }:
			events = nil
		case answer = <-answers:
			return answer, nil
		case <-d.ended:
			return answer, ErrEnded
		case <-ctx.Done():
			return answer, context.Cause(ctx)
		}
	}
}

// do runs a function in Run's goroutine and waits for it to return, or returns an error if Run returns or ctx is done
// first.
func (d *driver) do(ctx context.Context, run func()) error {
	_, err := call(ctx, d, func(done chan<- struct{}) { run(); close(done) })
	return err
}

// elapsed returns how long a condition has been true. since is set to the start of that period, or to zero while the
// condition is false.
func elapsed(since *time.Time, condition bool) time.Duration {
	switch {
	case !condition:
		*since = time.Time{}
		return 0
	case since.IsZero():
		*since = time.Now()
	}
	return time.Since(*since)
}

const (
	// requestTimeout is the timeout for an inspection or the upload of a segment.
	requestTimeout = 2 * time.Minute
	// checkTimeout is the timeout for a check by findSuccessor or checkStored.
	checkTimeout = 30 * time.Second
	// noTimeout is used for copying and uploading a database, which may be large.
	noTimeout = time.Duration(math.MaxInt64)
)

// timing contains the intervals and time limits of a writer.
type timing struct {
	tick         time.Duration // interval between observations of etcd's revision, and thus between time markers
	gap          time.Duration // how long the writer waits for another member to fill a gap before it starts a new chain
	rest         time.Duration // minimum time after a full snapshot before a gap causes another one; see restFactor
	ahead        time.Duration // how long a new leader may take to apply the writes acknowledged before its election
	foreignStore time.Duration // interval between inspections of a store to which this member must not write
	watch        time.Duration // minimum interval between inspections by a member that is not the leader
	emptyStore   time.Duration // interval between inspections of a store without a chain
	headValid    time.Duration // how long the end of the chain is considered known after it was read or written
	verifyOwner  time.Duration // interval between checks that the store still belongs to this cluster
	successor    time.Duration // interval between checks for a successor of the generation
	heartbeat    time.Duration // interval between heartbeats (empty segments) of an idle writer
	fullTimeout  time.Duration // how long FullNow waits for a problem to be resolved
	retry        time.Duration // initial wait after a failure
	check        time.Duration // interval between checks that stored objects still exist
	overdue      time.Duration // a revision not stored within this time plus two intervals is reported as a problem
}

var defaultTiming = timing{
	tick: 100 * time.Millisecond, gap: 2 * time.Second, rest: 10 * time.Second, ahead: 10 * time.Second,
	foreignStore: time.Minute, headValid: archive.HeadValid, watch: 10 * time.Second, emptyStore: time.Second,
	retry: 500 * time.Millisecond, fullTimeout: 30 * time.Second,
	successor: 10 * time.Second, heartbeat: 40 * time.Second, verifyOwner: 30 * time.Minute, overdue: 10 * time.Second, check: 10 * time.Second,
}
