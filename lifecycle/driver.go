package lifecycle

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/exitcode"
	"etcd-wrapper/statemachine"
)

// Options configure a Driver.
type Options struct {
	Runtime      Runtime
	Log          zerolog.Logger
	ReadyTimeout time.Duration // --etcd-ready-timeout; 0 is no limit
}

// Driver carries out what the table answers. One goroutine, the one that calls Run, owns everything in it but the two
// mailboxes and the published snapshot.
type Driver struct {
	options  Options
	rules    *Rules
	legal    *statemachine.Legality
	core     Core
	pauses   pauses
	limits   map[Action]time.Duration // what an action sets the timer to; 0 sets none
	timeline timeline
	log      zerolog.Logger

	urgent  chan message // stops and crashes, looked at before anything else
	mailbox chan message // completions
	over    chan struct{}

	timer    *time.Timer // of the current visit; nil if it has none
	visit    int         // counts arrivals in a state; a timer belongs to one
	tasks    int         // counts pieces of work; a completion belongs to one
	work     task        // what the current row asked for
	early    task        // the prefetch, which runs beside everything else
	working  sync.WaitGroup
	prefetch prefetchState
	config   []byte // the newest configuration

	snapshot atomic.Pointer[Snapshot]
}

// message is an event on its way to the machine. A completion carries the number of its task and a timer that of its
// visit; 0 is carried by events that belong to neither.
type message struct {
	event   Event
	payload Payload
	task    int
	visit   int
}

// Outcome is how a run ended.
type Outcome struct {
	Status exitcode.Code
	Reason string // one sentence for people
}

// NewDriver returns a driver in Query that has done nothing yet.
func NewDriver(options Options) *Driver {
	d := &Driver{
		options: options,
		rules:   NewRules(Table, Elsewhere),
		legal:   statemachine.NewLegality(Table, Query),
		core:    NewCore(),
		pauses:  newPauses(),
		limits:  map[Action]time.Duration{LimitStart: options.ReadyTimeout, LimitAbort: abortLimit, LimitStop: stopLimit},
		log:     options.Log,
		urgent:  make(chan message, 4),
		mailbox: make(chan message, 4),
		over:    make(chan struct{}),
		visit:   1,
		work:    noTask(),
		early:   noTask(),
	}
	d.timeline.enter(Query, time.Now())
	d.timeline.reason = "not begun"
	d.publish(Transition{}, time.Now(), 0)
	return d
}

// Signal reports SIGTERM or SIGINT to the machine. It may be called from any goroutine, at any time.
func (d *Driver) Signal(signal syscall.Signal) {
	d.post(d.urgent, message{event: Signal, payload: Payload{Signal: signal, Detail: signal.String()}})
}

// Stop reports POST /stop to the machine. It may be called from any goroutine, at any time.
func (d *Driver) Stop() { d.post(d.urgent, message{event: StopPosted}) }

// Crash reports to the machine that something in this process failed beyond repair. It may be called from any goroutine.
func (d *Driver) Crash(reason error) {
	d.post(d.urgent, message{event: Crashed, payload: Payload{Err: reason}})
}

// ListenerLost reports to the machine that the wrapper's own port cannot be served any longer. It may be called from any
// goroutine.
func (d *Driver) ListenerLost(reason error) {
	d.post(d.urgent, message{event: ListenerLost, payload: Payload{Err: reason, Status: exitcode.ServerTaken}})
}

// Snapshot returns what is to be known about the run at this moment. It may be called from any goroutine and must not
// be changed.
func (d *Driver) Snapshot() *Snapshot { return d.snapshot.Load() }

// Run drives the machine from its start to Terminated and says how it ended. It is called once.
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

// next waits for a message. A stop or a crash takes precedence over other work, which one select of both would
// leave to chance.
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

// handle has the rules answer one message, and the answer carried out.
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
	d.carryOut(row, core, decision.Answer, m)
}

// carryOut takes the machine to where a row leads, and does what the row asks for.
func (d *Driver) carryOut(row *Row, core Core, answer Answer, m message) {
	endChanged := core.Facts.Ending != d.core.Facts.Ending || core.Facts.Status != d.core.Facts.Status
	d.core = core
	d.pauses.reset(m.event, core.Facts)
	if answer == Move {
		d.leave()
	}
	if d.core.Facts.Ending != "" {
		d.endPrefetch()
	}
	pause, slow := d.prepare(row)
	d.record(row, m.payload, pause)
	if endChanged {
		d.timeline.addEndReason(hintFor(row).message(m.payload))
	}
	if len(slow) > 0 {
		d.start(slow, m.payload)
	}
}

// late is the rule that drops what belongs to a visit or a piece of work that is over.
func (d *Driver) isLate(m message) bool {
	ofNoTask := m.task != d.work.number && m.task != d.early.number
	return m.task != 0 && ofNoTask || m.visit != 0 && m.visit != d.visit
}

// leave ends what belongs to the state that is left: its timer and its work.
func (d *Driver) leave() {
	d.visit++
	d.disarm()
	d.work.cancel()
}

// prepare does what can be done at once. It returns how long the timer was set for, 0 if it was not, and the actions that
// may block: those begin only when everybody can see the state that they belong to.
func (d *Driver) prepare(row *Row) (pause time.Duration, slow []Action) {
	for _, action := range row.Do {
		switch limit, ok := d.limit(action); {
		case ok:
			pause = limit
			d.arm(limit)
		case prefetchActions[action] != nil:
			prefetchActions[action](d)
		default:
			slow = append(slow, action)
		}
	}
	return pause, slow
}

// limit is the duration that a quick action sets the timer to, or false if the action is none.
func (d *Driver) limit(action Action) (time.Duration, bool) {
	if limit, known := d.limits[action]; known {
		return limit, true
	}
	return d.pauses.after(action)
}

// arm sets the visit's one timer.
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

// post delivers a message unless the run is over.
func (d *Driver) post(to chan message, m message) {
	select {
	case to <- m:
	case <-d.over:
	}
}

// task is a piece of work that runs in a goroutine of its own and posts one completion.
type task struct {
	number int
	cancel context.CancelFunc
	ended  chan struct{} // closed when its goroutine does nothing any more
}

// noTask is work that has ended before it began.
func noTask() task {
	ended := make(chan struct{})
	close(ended)
	return task{cancel: func() {}, ended: ended}
}

// start runs a row's blocking actions. Pieces of work never overlap: the last one is cancelled and waited for first,
// which is what makes the exit record safe to use from them.
func (d *Driver) start(actions []Action, payload Payload) {
	d.work.cancel()
	d.work = d.spawn(actions, payload, d.work.ended)
}

// startEarly runs an action beside the other work. It may ask the sidecar and must touch nothing else.
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
		number := spawned.number
		if done.event == Crashed {
			number = 0 // a panic is never late
		}
		d.post(d.mailbox, message{event: done.event, payload: done.payload, task: number})
	})
	return spawned
}

// linger waits a moment for goroutines that were cancelled. One that hangs in a system call can't be waited for.
func (d *Driver) linger() {
	ended := make(chan struct{})
	go func() {
		d.working.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(lingering):
		d.log.Warn().Msg("work is left behind that could not be cancelled")
	}
}
