package lifecycle

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/rs/zerolog"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/statemachine"
)

// Options configure a Driver.
type Options struct {
	Runtime      Runtime
	Log          zerolog.Logger
	ReadyTimeout time.Duration // --etcd-ready-timeout; 0 means no limit
}

// Driver runs the state machine: it receives events, takes transitions and performs their actions. Only the goroutine
// that calls Run accesses the fields, except for the mailboxes and the snapshot.
type Driver struct {
	options  Options
	rules    *Rules
	legal    *statemachine.Checker
	core     Core
	timers   map[Action]backoff.BackOff // duration of the timer for each action that sets it
	timeline timeline
	log      zerolog.Logger

	urgent  chan message  // stops, crashes and server failures, which take precedence
	mailbox chan message  // completions and Elapsed
	over    chan struct{} // closed at the end of the run

	timer    *time.Timer // timer of the current visit, or nil
	visit    int         // number of visits so far, used to identify timers
	tasks    int         // number of tasks so far, used to identify completions
	work     task        // task of the current row
	early    task        // the prefetch, which runs concurrently with work
	working  sync.WaitGroup
	prefetch prefetchState
	config   []byte // last configuration that was fetched or prefetched

	snapshot atomic.Pointer[Snapshot]
}

// Outcome describes how a run ended.
type Outcome struct {
	Status exitcode.Code
	Reason string // messages of the transitions that ended the run
}

// NewDriver returns a driver in the initial state.
func NewDriver(options Options) *Driver {
	d := &Driver{
		options: options,
		rules:   statemachine.NewRules[Facts](Table, Elsewhere, Terminated),
		legal:   statemachine.NewChecker(Table, Query),
		core:    NewCore(),
		timers:  newTimers(options.ReadyTimeout),
		log:     options.Log,
		urgent:  make(chan message, 4),
		mailbox: make(chan message, 4),
		over:    make(chan struct{}),
		visit:   1,
		work:    noTask(),
		early:   noTask(),
	}
	d.timeline.enter(Query, time.Now())
	d.timeline.Reason = "not started"
	d.publish(Transition{}, time.Now(), 0)
	return d
}

// Signal posts SIGTERM or SIGINT. Signal, Stop, Crash, ListenerLost and Snapshot are safe for concurrent use.
func (d *Driver) Signal(signal syscall.Signal) {
	d.post(d.urgent, message{event: Signal, payload: Payload{Signal: signal, Detail: signal.String()}})
}

// Stop posts a stop that was requested with POST /stop.
func (d *Driver) Stop() { d.post(d.urgent, message{event: StopPosted}) }

// Crash posts a failure from which this process cannot recover, such as a panic or a fatal etcd error.
func (d *Driver) Crash(reason error) {
	d.post(d.urgent, message{event: Crashed, payload: Payload{Err: reason}})
}

// ListenerLost posts a failure of the wrapper's own server.
func (d *Driver) ListenerLost(reason error) {
	d.post(d.urgent, message{event: ListenerLost, payload: Payload{Err: reason, Status: exitcode.ServerTaken}})
}

// Snapshot returns the latest snapshot of the run. Callers must not modify it.
func (d *Driver) Snapshot() *Snapshot { return d.snapshot.Load() }

// Run runs the state machine until it reaches Terminated. Call Run only once.
func (d *Driver) Run() Outcome {
	d.handle(message{event: Started})
	for d.core.State != Terminated {
		d.handle(d.nextMessage())
	}
	close(d.over)
	d.leave()
	d.endPrefetch()
	d.linger()
	return Outcome{Status: d.core.Facts.Status, Reason: d.timeline.endReason()}
}

// nextMessage waits for a message. The first select gives stops and crashes precedence. A single select would pick
// a message at random if both mailboxes have one.
func (d *Driver) nextMessage() message {
	select {
	case m := <-d.urgent:
		return m
	default:
	}
	select {
	case m := <-d.urgent:
		return m
	case m := <-d.mailbox:
		return m
	}
}

// handle processes a message.
func (d *Driver) handle(m message) {
	if d.isLate(m) {
		d.log.Debug().Str("event", string(m.event)).Msg("late event dropped")
		return
	}
	d.annotate(&m)
	core, decision := d.rules.Step(d.core, m.event, m.payload)
	if decision.Row < 0 {
		d.logWithoutRow(m, decision)
		return
	}
	row := d.rules.Row(decision.Row)
	if err := d.legal.Take(row); err != nil && m.event != Crashed {
		d.handle(message{event: Crashed, payload: Payload{Err: err}})
		return
	}
	d.carryOut(row, core, m)
}

// carryOut performs a transition: it changes the state and starts the actions.
func (d *Driver) carryOut(row *Row, core Core, m message) {
	endChanged := core.Facts.Ending != d.core.Facts.Ending || core.Facts.Status != d.core.Facts.Status
	d.core = core
	d.resetTimers(m.event)
	if row.Moves() {
		d.leave()
	}
	if d.core.Facts.Ending != "" {
		d.endPrefetch()
	}
	pause, slow := d.prepare(row)
	message := d.record(row, m.payload, pause)
	if endChanged {
		d.timeline.addEndReason(message)
	}
	if len(slow) > 0 {
		d.start(slow, m.payload)
	}
}

// isLate reports whether a message belongs to a visit that has ended or to a task that has been replaced.
func (d *Driver) isLate(m message) bool {
	ofNoTask := m.task != d.work.number && m.task != d.early.number
	return m.task != 0 && ofNoTask || m.visit != 0 && m.visit != d.visit
}

// leave ends the visit to the current state: it stops the timer and cancels the task.
func (d *Driver) leave() {
	d.visit++
	d.disarm()
	d.work.cancel()
}

// prepare performs the quick actions of a row. prepare returns the duration of the timer, or 0, and the blocking
// actions, which the caller starts after publishing the new state.
func (d *Driver) prepare(row *Row) (pause time.Duration, slow []Action) {
	for _, action := range row.Do {
		switch timer := d.timers[action]; {
		case timer != nil:
			pause = timer.NextBackOff()
			d.arm(pause)
		case prefetchActions[action] != nil:
			prefetchActions[action](d)
		default:
			slow = append(slow, action)
		}
	}
	return pause, slow
}

// resetTimers resets the backoffs that are no longer needed.
func (d *Driver) resetTimers(event Event) {
	switch event {
	case Replied:
		if slices.Contains(bootstrap.InitializationStatuses, d.core.Facts.Word) {
			d.timers[PaceSilence].Reset() // an unrecognized status counts as no response
		}
		if d.core.Facts.Holds(StatusSuccessful) {
			d.timers[PaceFailure].Reset()
		}
	case Accepted, ConfigValid:
		d.timers[PaceSilence].Reset()
		d.timers[PaceProgress].Reset()
	case Started, VolumeBusy, NoAnswer, NotAccepted, DataInUse, ConfigFetched, ConfigInvalid, ConfigUnavailable, ConfigPrefetched,
		EtcdReady, EtcdFailed, EtcdClosed, RecordSettled, Elapsed, Crashed, Signal, StopPosted, ListenerLost: // events that reset nothing
	}
}

// arm starts the timer of the current visit.
func (d *Driver) arm(after time.Duration) {
	d.disarm()
	if after > 0 {
		elapsed := message{event: Elapsed, visit: d.visit}
		d.timer = time.AfterFunc(after, func() { d.post(d.mailbox, elapsed) })
	}
}

func (d *Driver) disarm() {
	if d.timer != nil {
		d.timer.Stop()
	}
}

// post sends a message to a mailbox. Messages after the end of the run are dropped.
func (d *Driver) post(to chan message, m message) {
	select {
	case to <- m:
	case <-d.over:
	}
}

// A task runs in its own goroutine and posts one completion.
type task struct {
	number int
	cancel context.CancelFunc
	ended  chan struct{} // closed when the actions have returned
}

// noTask returns a task that has already ended.
func noTask() task {
	ended := make(chan struct{})
	close(ended)
	return task{cancel: func() {}, ended: ended}
}

// start runs the blocking actions of a row in a goroutine, after cancelling the previous task and waiting for it.
// Because tasks never overlap, the exit record needs no lock.
func (d *Driver) start(actions []Action, payload Payload) {
	d.work.cancel()
	d.work = d.spawn(actions, payload, d.work.ended)
}

// startEarly runs an action concurrently with the task of the current row. The action must not call anything but the
// sidecar.
func (d *Driver) startEarly(action Action) {
	d.early.cancel()
	d.early = d.spawn([]Action{action}, Payload{}, d.early.ended)
}

func (d *Driver) spawn(actions []Action, payload Payload, before <-chan struct{}) task {
	d.tasks++
	ctx, cancel := context.WithCancel(context.Background())
	spawned := task{number: d.tasks, cancel: cancel, ended: make(chan struct{})}
	w := &work{runtime: &d.options.Runtime, facts: d.core.Facts, payload: payload, yaml: d.config}
	d.working.Go(func() {
		<-before
		done := w.run(ctx, actions)
		close(spawned.ended)
		// A crash must never be discarded as late, so it has no task number.
		if done.event != Crashed {
			done.task = spawned.number
		}
		d.post(d.mailbox, done)
	})
	return spawned
}

// linger waits for cancelled goroutines to end, but only briefly: they may be stuck in a system call.
func (d *Driver) linger() {
	ended := make(chan struct{})
	go func() {
		d.working.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(lingering):
		d.log.Warn().Msg("some background work could not be cancelled; exiting without waiting for it")
	}
}
