// Package writer keeps a running etcd's backups going: it captures what changes, lets it wait on the volume while the store is
// away, stores it, makes full snapshots by schedule and whenever a chain cannot go on, and merges small segments into larger ones.
//
// What a member does about backups is a state machine with an explicit table (table.go). One goroutine, Run's, owns the machine
// and three values: remote is what is known of the store, chain where the next segment goes and what of it is not stored yet,
// fulls the full snapshots that are due or in the making. That goroutine never waits for the store: what does runs in jobs, one
// request about the chain at a time, and posts its result. Nothing here touches serving.
package writer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/writer/capture"
	"etcd-wrapper/statemachine"
)

// Options configure a Writer. All fields are required unless they say otherwise.
type Options struct {
	// Archive is that in --backup-store. Segments are sealed and signed with its keys.
	Archive *archive.Archive
	Etcd    Etcd
	// Interval is --backup-interval: at most so long after a change a segment with it is on its way. The first one after a
	// quiet time goes at once.
	Interval time.Duration
	// Schedule returns when, after a time, the next full snapshot is due; the zero time means never. The cluster is etcd's id.
	Schedule func(cluster string, after time.Time) time.Time
	// SpoolDir is a directory of its own on the volume, which is created, and SpoolLimit how many bytes of segments may wait
	// there.
	SpoolDir   string
	SpoolLimit int64
	// DataDir is etcd's data directory, in which it is remembered whose the data are.
	DataDir string
	// Owner is whom a store is founded for, NAMESPACE/NAME.
	Owner string
	// Reconciled says that Etcd was closed, and that its data were seen to be those of the chain while it ran: where other members have
	// gone on since, there is nothing to bring, and Flush says ErrRowsOnly.
	Reconciled bool
	// SegmentsOnly has a member bring what others have left, but begin nothing: where there is no chain that it can go on with, no
	// full snapshot is made, and Flush fails; where the chain has its rows, Flush says ErrRowsOnly. It is for an etcd that is closed
	// and did not write the backups.
	SegmentsOnly bool
	// Release has Flush end with an object that says that nothing follows, so that somebody else need not wait to see whether this
	// cluster lives. It is for a closed etcd that was its cluster's only member.
	Release bool
	// Session is of this process: random, hexadecimal.
	Session string
	// Former has ended, and what it knew of the store is gone on with, which saves the requests to find that out; nil if there is none.
	Former *Writer
	// Gate is passed around the read transaction of a full snapshot; nil means that there is nobody to keep apart from.
	Gate Gate
	Log  zerolog.Logger
	// Now is the wall clock; nil means time.Now.
	Now func() time.Time
}

var (
	// ErrNotWriter says that another member of the cluster writes the backups: ask there.
	ErrNotWriter = errors.New("another member writes the backups")
	// ErrNoChain says that only a full snapshot would help, which is another member's to make.
	ErrNoChain = errors.New("there is no chain of backups to go on with, and to begin one is for the member that writes them")
	// ErrRowsOnly says that the store has every revision of a member that is closed, and that this member cannot tell more.
	ErrRowsOnly = errors.New("the store has every revision that this member has; the last change of leases or users is for the member that writes the backups to bring")
	// ErrSucceeded says that the generation of this cluster has ended: another cluster was restored from its backups, and goes on.
	ErrSucceeded = errors.New("another cluster was restored from the backups of this one, and goes on in its place")
	// ErrCopied says that another copy of etcd's data goes on with the backups: the volume was cloned, or rolled back.
	ErrCopied = errors.New("another copy of these data goes on with their backups")
	// ErrEnded says that Run has ended.
	ErrEnded = errors.New("backups have ended")
)

// Writer keeps backups going. New makes one, Run runs it; the other methods may be called from any goroutine.
type Writer struct {
	options Options
	archive *archive.Archive // the options'
	keys    *format.Keys     // the archive's
	pace    pace
	reader  *capture.Reader
	spool   *Spool
	room    func(size int64) error // says whether the volume has so many bytes to spare

	superseded chan error  // has one error once the generation has ended
	events     chan func() // what the owner is told, and does
	ended      chan struct{}
	jobs       sync.WaitGroup
	facts      atomic.Pointer[Facts]

	// The rest is owned by the goroutine of Run.

	core   statemachine.Core[known]
	legal  *statemachine.Legality
	work   map[Action]func(context.Context, payload)
	posted []report // events that the present one has led to
	again  bool     // there is more to do at once

	remote    remote
	chain     chain
	fulls     fulls
	identity  archive.Identity // of etcd's data, as the volume tells
	merging   merging
	reserving reserving

	revision  int64 // etcd's, as last seen
	flushes   []flush
	result    error            // how bringing ended, in drained
	stopping  bool             // Run's context has ended
	troubles  [abouts]*trouble // nil while all is well
	statistic Facts            // counters and what was last done
}

// report is an event with what it tells.
type report struct {
	event Event
	told  payload
}

// New opens the spool, takes up what waits there, and starts nothing. An error says that the spool cannot be used.
func New(options Options) (*Writer, error) {
	waiting, err := openSpool(options)
	if err != nil {
		return nil, err
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.Gate == nil {
		options.Gate = unlocked{}
	}
	w := &Writer{
		options: options, archive: options.Archive, keys: options.Archive.Keys(), pace: usual, reader: capture.NewReader(options.Etcd.Backend),
		spool: waiting, room: waiting.Room, events: make(chan func()), ended: make(chan struct{}), superseded: make(chan error, 1),
		merging: merging{merger: retention.NewMerger(options.Archive, options.Now)},
	}
	w.work = w.actions()
	w.core = statemachine.Core[known]{State: unknown, Facts: known{closed: options.SegmentsOnly}}
	if w.identity, err = archive.ReadIdentity(options.DataDir); err != nil {
		return nil, err
	}
	if former := options.Former; former != nil {
		w.inherit(former)
	}
	if err := w.resume(); err != nil {
		return nil, err
	}
	w.legal = statemachine.NewLegality(Table, w.core.State)
	w.facts.Store(&Facts{Role: Unknown, SpoolLimit: options.SpoolLimit, SpoolBytes: waiting.Bytes()})
	return w, nil
}

// inherit goes on with what a writer that has ended knew of the store.
func (w *Writer) inherit(former *Writer) {
	was := &former.remote
	w.remote = remote{
		abilities: was.abilities, generation: was.generation, vetted: was.vetted, stored: was.stored, last: was.last, newest: was.newest,
	}
	w.reserving.revision, w.merging.at = former.reserving.revision, time.Now()
	if w.remote.generation.Number != 0 {
		w.core.State, w.core.Facts.creates = aligning, was.abilities.CreateIfAbsent
	}
}

// openSpool takes up the newest that waits.
func openSpool(options Options) (*Spool, error) {
	waiting, useless, err := OpenSpool(options.SpoolDir, options.SpoolLimit, options.Archive.Keys())
	if err != nil {
		return nil, err
	}
	older, err := waiting.Newest()
	if older != nil {
		useless = append(useless, older)
	}
	for _, reason := range useless {
		options.Log.Warn().Err(reason).Msg("backups: what waited for the store cannot be used, is moved away, and is taken from the database again")
	}
	return waiting, err
}

// Run makes backups until ctx ends, and returns when nothing of it goes on any more, which may take as long as a request to
// the store takes to be given up. It is called once, as soon as etcd serves, and must have returned before etcd is closed.
// What is in etcd and not in the store yet is Flush's to bring there before.
func (w *Writer) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer close(w.ended)
	defer w.drain()
	defer cancel()
	timer := time.NewTimer(w.pace.tick)
	defer timer.Stop()
	for ctx.Err() == nil {
		w.step(ctx)
		w.publish()
		w.answer() // who is told finds it in the facts
		timer.Reset(w.pause())
		select {
		case <-ctx.Done():
		case <-timer.C:
		case event := <-w.events:
			event()
		}
	}
}

// Superseded has one error, a sentence, once the generation of this cluster has ended and another one goes on: etcd must be closed.
func (w *Writer) Superseded() <-chan error { return w.superseded }

// Facts are what can be told of backups now.
func (w *Writer) Facts() Facts { return *w.facts.Load() }

// step does whatever is due.
func (w *Writer) step(ctx context.Context) {
	w.observe(ctx)
	w.leaveToOthers()
	if w.core.State != unknown && w.core.State != foreign && time.Since(w.remote.storedAt) >= w.pace.knows {
		w.take(ctx, expired, payload{})
	}
	w.again = false
	w.take(ctx, tick, payload{})
}

// take has the table answer an event, and those that its actions post.
func (w *Writer) take(ctx context.Context, event Event, told payload) {
	w.post(event, told)
	for len(w.posted) > 0 {
		next := w.posted[0]
		w.posted = w.posted[1:]
		for _, action := range w.decide(next) {
			w.work[action](ctx, next.told)
		}
	}
}

// post has an event answered when the actions of the present one are done.
func (w *Writer) post(event Event, told payload) { w.posted = append(w.posted, report{event, told}) }

// rules are the table's.
var rules = statemachine.NewRules[known, payload](Table, Elsewhere, drained)

// decide asks the table, and has the library's machine agree.
func (w *Writer) decide(next report) []Action {
	from := w.core.State
	core, decision := rules.Step(w.core, next.event, next.told)
	if decision.Row < 0 {
		if decision.Answer == statemachine.Reject {
			w.options.Log.Error().Str("state", string(from)).Str("event", string(next.event)).Msg("backups: a fault of this program: the event is answered by no row")
		}
		return nil
	}
	if err := w.legal.Take(rules.Row(decision.Row)); err != nil {
		w.options.Log.Error().Err(err).Msg("backups: a fault of this program")
		return nil
	}
	w.core = core
	if from != core.State {
		w.options.Log.Debug().Str("from", string(from)).Str("event", string(next.event)).Str("to", string(core.State)).Msg("backups: " + decision.Why)
	}
	return decision.Do
}

// actions are what they do.
func (w *Writer) actions() map[Action]func(context.Context, payload) {
	return map[Action]func(context.Context, payload){
		look:          func(ctx context.Context, _ payload) { w.look(ctx) },
		captureRows:   func(context.Context, payload) { w.capture() },
		storeSegment:  func(ctx context.Context, _ payload) { w.storeSegment(ctx) },
		makeFull:      func(ctx context.Context, _ payload) { w.makeFull(ctx) },
		storeFull:     func(ctx context.Context, _ payload) { w.storeFull(ctx) },
		mergeSegments: func(ctx context.Context, _ payload) { w.merge(ctx) },
		keepReserved:  func(ctx context.Context, _ payload) { w.reserve(ctx) },
		lookSoon:      func(context.Context, payload) { w.lookSoon() },
		countSilence:  func(context.Context, payload) { w.countSilence() },
		takeOver:      func(context.Context, payload) { w.takeOver() },
		goOn:          func(_ context.Context, told payload) { w.goOn(told) },
		clearChain:    func(context.Context, payload) { w.clearChain() },
		openChain:     func(_ context.Context, told payload) { w.openChain(told.err.Error()) },
		abandonEnd:    func(_ context.Context, told payload) { w.abandonEnd(told) },
		leaveChain:    func(_ context.Context, told payload) { w.leaveChain(told.err) },
		dropSpool:     func(_ context.Context, told payload) { w.dropSpool(told.err) },
		forgetStore:   func(context.Context, payload) { w.forgetStore() },
		doubtStore:    func(context.Context, payload) { w.remote.vetted = time.Time{} },
		refuse:        func(_ context.Context, told payload) { w.refuse(told.err) },
		keepWatching:  func(context.Context, payload) { w.askAgainIn(w.watchInterval()) },
		await:         func(context.Context, payload) { w.askAgainIn(time.Second) },
		findSuccessor: func(ctx context.Context, _ payload) { w.findSuccessor(ctx) },
		endHere:       func(_ context.Context, told payload) { w.endHere(told.err) },
		finish:        func(_ context.Context, told payload) { w.finish(told.err) },
	}
}

// pause is how long there is nothing to do, unless something happens: until the next look at etcd, or the next capture.
func (w *Writer) pause() time.Duration {
	if w.again {
		return 0
	}
	if left := w.interval() - time.Since(w.chain.captured); left > 0 {
		return min(left, w.pace.tick)
	}
	return w.pace.tick
}

// drain hears the jobs out that end now.
func (w *Writer) drain() {
	w.stopping = true
	idle := make(chan struct{})
	go func() {
		w.jobs.Wait()
		close(idle)
	}()
	for {
		select {
		case event := <-w.events:
			event()
		case <-idle:
			w.giveUp()
			w.noteEnd()
			w.publish()
			return
		}
	}
}

// job runs what may wait in a goroutine of its own, and what it returns in the owner's.
func (w *Writer) job(work func() (done func())) {
	w.jobs.Go(func() {
		done := work()
		heard := make(chan struct{})
		w.events <- func() {
			defer close(heard)
			done()
		}
		<-heard // it may have started another one, which must be waited for as well
	})
}

// tell has the owner do something.
func (w *Writer) tell(ctx context.Context, what func()) error {
	select {
	case w.events <- what:
		return nil
	case <-w.ended:
		return ErrEnded
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// observe looks at etcd, which costs microseconds.
func (w *Writer) observe(ctx context.Context) {
	if leads := w.options.Etcd.IsLeader() && !w.deposed(); leads && !w.core.Facts.leads {
		w.take(ctx, elected, payload{})
	} else if !leads && w.core.Facts.leads {
		w.take(ctx, deposed, payload{})
	}
	before := w.revision
	if w.revision = w.options.Etcd.Revision(); w.revision > before {
		w.mark()
	}
}

// refuses tells whether nothing may be written, whoever leads.
func (w *Writer) refuses() bool { return w.core.State == foreign || w.core.State == ended }

// writes tells whether this member extends the chain.
func (w *Writer) writes() bool {
	return !w.refuses() && w.core.Facts.ours()
}

// time is now, in milliseconds, but never before a time that was written already: the times of a generation do not go back,
// whatever clocks do.
func (w *Writer) time() time.Time {
	now := w.options.Now().UTC().Truncate(time.Millisecond)
	if now.Before(w.chain.lastTime) {
		return w.chain.lastTime
	}
	w.chain.lastTime = now
	return now
}
