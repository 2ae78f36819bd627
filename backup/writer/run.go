package writer

import (
	"context"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/backup/writer/capture"
	"etcd-wrapper/statemachine"
)

// New opens the spool and adopts the segments in it. It starts nothing. It fails if the spool cannot be used.
func New(options Options) (*Writer, error) {
	spool, unusable, err := OpenSpool(options.SpoolDir, options.SpoolLimit, options.Archive.Keys())
	if err != nil {
		return nil, err
	}
	detached, err := spool.Newest()
	if detached != nil {
		unusable = append(unusable, detached)
	}
	for _, reason := range unusable {
		options.Log.Warn().Err(reason).Msg("backups: unusable segments in the spool are preserved and captured again")
	}
	if err != nil {
		return nil, err
	}
	w := &Writer{
		options: options, pace: defaultTiming, reader: capture.NewReader(options.Etcd.Backend),
		spool: spool, room: spool.Room, events: make(chan func()), ended: make(chan struct{}), superseded: make(chan error, 1),
		merging: mergeState{merger: retention.NewMerger(options.Archive, options.Now)},
	}
	w.work = w.actions()
	w.recaptureBuckets()
	w.core = statemachine.Core[memberState]{State: unknown, Facts: memberState{closed: options.SegmentsOnly}}
	if w.identity, err = archive.ReadIdentity(options.DataDir); err != nil {
		return nil, err
	}
	if previous := options.Previous; previous != nil {
		w.adopt(previous)
	}
	if err := w.resume(); err != nil {
		return nil, err
	}
	w.legal = statemachine.NewLegality(Table, w.core.State)
	w.facts.Store(&Facts{Role: Unknown, SpoolLimit: options.SpoolLimit, SpoolBytes: spool.Bytes()})
	return w, nil
}

// adopt continues with what a Writer that has ended knew of the store.
func (w *Writer) adopt(previous *Writer) {
	known := &previous.remote
	w.remote = remote{
		capabilities: known.capabilities, generation: known.generation, ownerVerified: known.ownerVerified, stored: known.stored, last: known.last, newestFull: known.newestFull,
		checkpoint: known.checkpoint, checkpointAt: known.checkpointAt, lost: known.lost,
	}
	w.unstored = previous.unstored
	w.reserving.revision, w.merging.at = previous.reserving.revision, time.Now()
	if w.remote.generation.Number != 0 {
		w.core.State, w.core.Facts.creates = aligning, known.capabilities.CreateIfAbsent
	}
}

// Run makes backups until ctx ends. It returns when all its jobs have ended, which may take as long as cancelling a
// request to the store. It is called once, as soon as etcd serves, and must return before etcd is closed. Flush,
// called before ctx ends, uploads what etcd has and the store lacks.
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
		w.answerFlushes() // after publish: callers then find the result in the facts
		timer.Reset(w.pause())
		select {
		case <-ctx.Done():
		case <-timer.C:
		case event := <-w.events:
			event()
		}
	}
}

// step does everything that is due.
func (w *Writer) step(ctx context.Context) {
	w.observe(ctx)
	w.dismissFulls()
	if w.core.State != unknown && w.core.State != foreign && time.Since(w.remote.storedAt) >= w.pace.headValid {
		w.take(ctx, expired, payload{})
	}
	w.again = false
	w.take(ctx, tick, payload{})
}

// actions returns the implementation of each action.
func (w *Writer) actions() map[Action]func(context.Context, payload) {
	return map[Action]func(context.Context, payload){
		look:          func(ctx context.Context, _ payload) { w.inspectStore(ctx) },
		captureRows:   func(context.Context, payload) { w.capture() },
		storeSegment:  func(ctx context.Context, _ payload) { w.storeSegment(ctx) },
		makeFull:      func(ctx context.Context, _ payload) { w.makeFull(ctx) },
		storeFull:     func(ctx context.Context, _ payload) { w.storeFull(ctx) },
		mergeSegments: func(ctx context.Context, _ payload) { w.merge(ctx) },
		keepReserved:  func(ctx context.Context, _ payload) { w.reserve(ctx) },
		lookSoon:      func(context.Context, payload) { w.inspectSoon() },
		countSilence:  func(context.Context, payload) { w.countMissingChain() },
		takeOver:      func(context.Context, payload) { w.takeOver() },
		goOn:          func(_ context.Context, told payload) { w.continueChain(told) },
		clearChain:    func(context.Context, payload) { w.clearChain() },
		openChain:     func(_ context.Context, told payload) { w.openChain(told.err.Error()) },
		abandonEnd:    func(_ context.Context, told payload) { w.startAfterDamage(told) },
		leaveChain:    func(_ context.Context, told payload) { w.leaveChain(told.err) },
		dropSpool:     func(_ context.Context, told payload) { w.dropSpool(told.err) },
		forgetStore:   func(context.Context, payload) { w.forgetStore() },
		vetStore:      func(context.Context, payload) { w.remote.ownerVerified = time.Time{} },
		refuse:        func(_ context.Context, told payload) { w.refuse(told.err) },
		keepWatching:  func(context.Context, payload) { w.delayRequests(w.watchInterval()) },
		await:         func(context.Context, payload) { w.delayRequests(time.Second) },
		findSuccessor: func(ctx context.Context, _ payload) { w.findSuccessor(ctx) },
		checkStored:   func(ctx context.Context, _ payload) { w.checkStored(ctx) },
		endHere:       func(_ context.Context, told payload) { w.endGeneration(told.err) },
		finish:        func(_ context.Context, told payload) { w.finish(told.err) },
	}
}

// pause returns how long there is nothing to do unless an event arrives: until the next observation of etcd or the
// next capture.
func (w *Writer) pause() time.Duration {
	if w.again {
		return 0
	}
	if left := w.interval() - time.Since(w.chain.captured); left > 0 {
		return min(left, w.pace.tick)
	}
	return w.pace.tick
}

// drain handles the results of the jobs that are still running.
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
			w.failFlushes()
			w.recordEnd()
			w.publish()
			return
		}
	}
}
