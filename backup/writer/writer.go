package writer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/writer/capture"
	"etcd-wrapper/statemachine"
)

// Facts describes the state of the backups at a point in time.
type Facts struct {
	facts.Backups // Store and the restorable window are not set; Revision is the last stored revision

	EtcdRevision int64
	Lag          time.Duration // age of the oldest revision that is not stored; 0 if all are stored
	LastFull     *archive.Full // last full snapshot made by this process; nil if there is none
	BrokenSince  time.Time     // when it became impossible to extend the chain; zero if there is a chain

	Segments int64 // number of segments stored by this process
	Fulls    int64 // number of full snapshots stored by this process
	Failures int64 // number of failed requests to the store
}

// Writer continuously makes backups of etcd. Use New to create a Writer and Run to run it. All other methods are safe
// for concurrent use.
type Writer struct {
	facts atomic.Pointer[Facts]

	// The remaining fields belong to Run's goroutine.

	base
	spool     *Spool
	snapshots *snapshots
	uploads   *uploads
	queue     *flushQueue

	inspectedAt  time.Time
	stalledSince time.Time // time when the leader stopped uploading pending changes; zero if it is uploading
}

// New opens the spool and adopts the segments in it, or returns an error if the spool cannot be used. New does not
// start a goroutine or access the store.
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
		options.Log.Warn().Err(reason).Msg("backups: preserved unusable spool segments; capturing their changes again")
	}
	if err != nil {
		return nil, err
	}
	d := &driver{options: options, pace: defaultTiming, events: make(chan func()), ended: make(chan struct{})}
	d.core = statemachine.Core[memberState]{State: unknown, Facts: memberState{closed: options.SegmentsOnly}}
	b := base{driver: d, health: &health{driver: d, spool: spool}, remote: &remote{driver: d}}
	b.chain = &chain{driver: d, health: b.health, spool: spool, reader: capture.NewReader(options.Etcd.Backend)}
	b.chain.resetBuckets()
	if b.remote.identity, err = archive.ReadIdentity(options.DataDir); err != nil {
		return nil, err
	}
	if previous := options.Previous; previous != nil {
		b.remote.storeView, b.chain.unstored = previous.remote.storeView, previous.chain.unstored
		if b.remote.generation.Number != 0 {
			d.core.State, d.core.Facts.refusesOverwrite = aligning, b.remote.capabilities.CreateIfAbsent
		}
	}
	if err := b.chain.resume(b.remote.identity); err != nil {
		return nil, err
	}
	w := &Writer{
		base: b, spool: spool,
		snapshots: &snapshots{base: b, room: spool.CheckSpace}, uploads: &uploads{base: b}, queue: &flushQueue{base: b},
	}
	d.work, d.legal = w.actions(), statemachine.NewChecker(Table, d.core.State)
	w.facts.Store(&Facts{Backups: facts.Backups{Role: facts.Waiting, SpoolLimit: options.SpoolLimit, SpoolBytes: spool.Bytes()}})
	return w, nil
}

// Run makes backups until ctx is done. Run returns after all of its jobs have finished, which can take as long as
// canceling a request to the store. Call Run once, when etcd is ready, and close etcd only after Run has returned. To
// upload all changes before stopping, call Flush before ctx is done.
func (w *Writer) Run(ctx context.Context) {
	w.ctx = ctx
	defer close(w.ended)
	timer := time.NewTimer(w.pace.tick)
	defer timer.Stop()
	for ctx.Err() == nil {
		w.confirm() // replies whose changes are stored must not wait for the next capture
		w.step()
		w.confirm()
		w.publish()
		w.queue.complete(w.notWriterError())
		timer.Reset(w.pause())
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-w.wake():
		case event := <-w.events:
			event()
		}
	}
	w.stopping = true
	for w.jobs > 0 {
		event := <-w.events
		event()
	}
	if w.remote.generation.Number == w.remote.identity.Generation && !w.remote.head.Position.IsZero() && !w.isRefused() {
		w.remote.recordIdentity()
	}
	w.publish()
}

// wake returns a channel that receives a value when a client starts waiting for the store. The channel is nil while a
// segment is queued because the end of the upload wakes the writer.
func (w *Writer) wake() <-chan struct{} {
	if len(w.spool.Entries()) > 0 {
		return nil
	}
	return w.options.Ack.Wake()
}

// confirm releases the replies whose changes are stored.
func (w *Writer) confirm() {
	if w.options.Ack == nil {
		return
	}
	revision, request := max(0, w.remote.head.Revision()), uint64(0)
	if w.isRefused() {
		revision = 0
	}
	if last := w.chain.complete; w.queue.isStored(last.end) {
		request = last.request
	}
	w.options.Ack.Confirm(revision, request, w.remote.uploadedAt)
}

// step performs all work that is due.
func (w *Writer) step() {
	w.remote.observeLeader()
	w.chain.observe()
	w.rejectRequests()
	w.snapshots.checkSpace()
	if w.isIn(endKnown...) && time.Since(w.remote.storedAt) >= w.pace.headValid {
		w.take(expired, payload{})
	}
	w.again = false
	w.take(tick, payload{})
}

// actions maps each action to its implementation.
func (w *Writer) actions() map[Action]func(payload) {
	return map[Action]func(payload){
		inspectStore:  func(payload) { w.inspectStore() },
		captureRows:   func(payload) { w.capture() },
		storeSegment:  func(payload) { w.uploads.start() },
		makeFull:      func(payload) { w.snapshots.start() },
		storeFull:     func(payload) { w.snapshots.store() },
		inspectSoon:   func(payload) { w.inspectNow() },
		watchLeader:   func(payload) { w.watchProgress(true, emptyStallLimit) },
		takeOver:      func(payload) { w.takeOver() },
		continueChain: w.continueChain,
		clearChain:    func(payload) { w.clearChain() },
		openChain:     func(reason payload) { w.snapshots.openChain(reason.err.Error()) },
		abandonEnd:    w.startAfterCorruption,
		leaveChain:    func(reason payload) { w.snapshots.leaveChain(reason.err) },
		dropSpool:     func(reason payload) { w.dropSpool(reason.err) },
		forgetStore:   func(payload) { w.forgetStore() },
		refuse:        func(reason payload) { w.reject(reason.err) },
		keepWatching:  func(payload) { w.health.delayRequests(w.watchInterval()) },
		await:         func(payload) { w.health.delayRequests(time.Second) },
		findSuccessor: func(payload) { w.remote.findSuccessor() },
		checkStored:   func(payload) { w.remote.checkStored() },
		endGeneration: func(reason payload) { w.endGeneration(reason.err) },
		finish:        func(reason payload) { w.finish(reason.err) },
	}
}

// pause returns the time until the next observation or capture.
func (w *Writer) pause() time.Duration {
	if w.again {
		return 0
	}
	if left := w.chain.interval() - time.Since(w.chain.captured); left > 0 {
		return min(left, w.pace.tick)
	}
	return w.pace.tick
}

// capture captures changes. If there are no changes, capture regularly queues an empty segment as a heartbeat,
// because a restore never replaces an active cluster.
func (w *Writer) capture() {
	due := time.Since(w.remote.storedAt) >= w.pace.heartbeat
	if w.options.Ack != nil { // only an upload shows other clusters that this cluster is active
		due = time.Since(w.remote.uploadedAt) >= w.pace.heartbeat || !w.options.Ack.IsOpen()
	}
	heartbeat := w.isIn(writing) && len(w.spool.Entries()) == 0 && !w.options.Release && !w.options.SegmentsOnly && due
	if gap := w.chain.capture(heartbeat); gap != nil {
		w.handleCompaction(gap)
	}
}

// takeoverFactor extends the wait after a gap before a new chain is started, for a member that has taken over from the
// leader.
const takeoverFactor = 60

// handleCompaction handles a compaction past the tail. Rows may be missing after the tail, so the chain ends unless
// another member extends it in time.
func (w *Writer) handleCompaction(gap error) {
	c, limit := w.chain, w.pace.gap
	if c.gapSince.IsZero() {
		c.gapSince = time.Now()
		w.post(expired, payload{})
		return
	}
	if w.core.Facts.tookOver {
		limit *= takeoverFactor // the leader may be about to store its own full snapshot
	}
	if !w.isIn(writing) || time.Since(c.gapSince) < limit || len(w.spool.Entries()) > 0 || time.Now().Before(w.snapshots.gapAfter) {
		return
	}
	if !w.remote.storedAt.After(c.gapSince) || time.Since(w.remote.storedAt) > 2*w.pace.gap {
		w.post(expired, payload{})
		return
	}
	w.options.Log.Warn().Msgf("backups: %s, so the chain cannot be extended; making a full snapshot", gap)
	w.remote.link = &archive.Link{Position: c.tail.Position, Before: c.tail.Before}
	w.post(chainBroken, payload{err: gap})
}

// notWriterError returns why this member does not make backups, or nil if it does or if the role is still unknown.
func (w *Writer) notWriterError() error {
	switch inspecting := w.health.problems[opInspect]; {
	case w.isRefused() && inspecting != nil:
		return errors.New(inspecting.Message)
	case w.remote.generation.Number != 0 && !w.isWriter():
		return ErrNotWriter
	default:
		return nil
	}
}

// rejectRequests does nothing if this member may be the writer. Otherwise, it rejects pending requests for full
// snapshots and clears problems that only a writer can have.
func (w *Writer) rejectRequests() {
	why := w.notWriterError()
	if why == nil {
		return
	}
	w.snapshots.rejectRequests(why)
	if problems := &w.health.problems; w.snapshots.making == nil && len(w.spool.Entries()) == 0 {
		problems[opSegment], problems[opFull] = nil, nil
	}
}

// Facts returns the current state of the backups.
func (w *Writer) Facts() Facts { return *w.facts.Load() }

// Flush uploads all writes that etcd has acknowledged so far and returns nil once they are stored. During a clean
// shutdown, call Flush after the last client request has finished and before etcd is closed. The error describes what
// is not stored; captured changes remain in the spool. While etcd is running, Flush returns ErrNotWriter if another
// member uploads the changes.
func (w *Writer) Flush(ctx context.Context) error {
	flushed, err := call(ctx, w.driver, func(done chan<- error) {
		w.queue.add(done)
		w.snapshots.notBefore = time.Time{}
	})
	if err != nil && !errors.Is(err, ErrEnded) {
		err = fmt.Errorf("%w: %s", err, w.missing())
	}
	return cmp.Or(err, flushed)
}

// missing describes the changes that are not stored, for the error of Flush.
func (w *Writer) missing() string {
	facts := w.Facts()
	text := "cannot confirm that all changes are stored"
	if facts.LagRevisions > 0 {
		text = fmt.Sprintf("revisions %d to %d are not in the store", facts.EtcdRevision-facts.LagRevisions+1, facts.EtcdRevision)
	}
	if full := facts.RunningFullSnapshot; full != nil {
		text += fmt.Sprintf(", and the full snapshot started %s ago is incomplete (%s)", w.options.Now().Sub(full.Since).Round(time.Millisecond), full.Step)
	}
	if facts.Problem != nil {
		text += ": " + facts.Problem.Message
	}
	return text
}

// BeforeCompaction captures all changes so that a compaction at the current revision does not leave a gap in the
// chain. Call BeforeCompaction before passing a compaction to etcd. BeforeCompaction returns when the changes are
// captured or ctx is done, and never waits for the store.
func (w *Writer) BeforeCompaction(ctx context.Context) {
	_ = w.do(ctx, w.chain.captureNow) // if the capture fails, the compaction proceeds anyway
}

// FullNow makes a full snapshot and returns its manifest once it is stored. If a full snapshot is in progress, FullNow
// makes another one afterwards. FullNow returns ErrNotWriter if another member is or becomes the writer, and ErrEnded
// if Run returns. If the copy fails, a problem persists for half a minute or ctx is done, FullNow returns an error,
// but the full snapshot is still made once that is possible.
func (w *Writer) FullNow(ctx context.Context, reason string) (archive.Full, error) {
	answer := make(chan fullResult, 1)
	if err := w.do(ctx, func() { w.snapshots.due = append(w.snapshots.due, fullRequest{reason, answer}) }); err != nil {
		return archive.Full{}, err
	}
	ticker := time.NewTicker(w.pace.tick)
	defer ticker.Stop()
	for since, sent := time.Now(), int64(0); ; {
		select {
		case result := <-answer:
			_ = w.do(ctx, w.publish) // make the full snapshot visible in Facts
			return result.full, result.err
		case <-ctx.Done():
			return archive.Full{}, context.Cause(ctx)
		case <-w.ended:
			return archive.Full{}, ErrEnded
		case <-ticker.C:
		}
		facts := w.Facts()
		switch full := facts.RunningFullSnapshot; {
		case facts.Problem == nil, full != nil && full.SentBytes != sent:
			if since = time.Now(); full != nil {
				sent = full.SentBytes
			}
		case time.Since(since) > w.pace.fullTimeout:
			return archive.Full{}, fmt.Errorf("the full snapshot will be made once this problem is resolved: %s", facts.Problem.Message)
		}
	}
}

// publish updates the facts that other goroutines read.
func (w *Writer) publish() {
	known := Facts{
		Backups: facts.Backups{
			Role: w.role(), Cluster: w.remote.identity.Cluster, Owner: w.remote.generation.Owner, Generation: w.remote.generation.Number,
			Revision: max(0, w.remote.head.Revision()), RunningFullSnapshot: w.snapshots.progress(), NextFullSnapshot: w.snapshots.next,
			UploadedBytes: w.uploads.bytes + w.snapshots.uploaded, SpoolBytes: w.spool.Bytes(), SpoolLimit: w.options.SpoolLimit,
			Problem: w.currentProblem(),
		},
		EtcdRevision: w.chain.revision, LastFull: w.snapshots.newest, BrokenSince: w.snapshots.brokenSince,
		Segments: w.uploads.stored, Fulls: w.snapshots.stored, Failures: w.health.failures,
	}
	if known.Role != facts.Standby {
		known.LagRevisions, known.Lag = max(0, w.chain.revision-w.remote.storedRevision()), w.behindFor()
	}
	known.LagSeconds = known.Lag.Seconds()
	w.facts.Store(&known)
}

// role returns the role of this member. The role is Waiting until the member has read the store, and whenever the
// member must not write to it.
func (w *Writer) role() facts.Role {
	switch {
	case w.isRefused(), w.remote.generation.Number == 0 && w.chain.tail == nil:
		return facts.Waiting
	case w.isWriter():
		return facts.Writer
	default:
		return facts.Standby
	}
}

// behindFor returns the age of the oldest change that is not stored. Capturing a change again does not reset its age.
func (w *Writer) behindFor() (age time.Duration) {
	stored, unstored := w.remote.storedRevision(), &w.chain.unstored
	unstored.drop(stored)
	if w.chain.revision > stored {
		unstored.add(w.chain.revision, time.Now()) // if stored revisions were lost, no time is recorded for them
		age = time.Since((*unstored)[0].at)
	}
	if queued := w.spool.Entries(); len(queued) > 0 { // includes changes to leases and users, which have no revision
		age = max(age, time.Since(queued[0].since))
	}
	if since := w.snapshots.brokenSince; !since.IsZero() {
		age = max(age, w.options.Now().Sub(since))
	}
	return age
}

// currentProblem combines the problems of all operations into one, or returns nil if there is none. If no operation is
// failing, a revision that remains unstored for too long is a problem, unless a full snapshot is in progress.
func (w *Writer) currentProblem() *facts.Problem {
	problem, unstored := w.health.current(), w.chain.unstored
	if problem != nil || w.role() != facts.Writer || len(unstored) == 0 || w.snapshots.making != nil ||
		time.Since(unstored[0].at) <= w.pace.overdue+2*w.chain.interval() {
		return problem
	}
	text := fmt.Sprintf("revision %d is still not stored after %%s, even though no request has failed (writer state: %s)", w.remote.storedRevision()+1, w.core.State)
	return new(w.health.lasting(text, unstored[0].at))
}
