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
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/writer/capture"
	"etcd-wrapper/statemachine"
)

// Options configure a Writer. All fields are required unless documented otherwise.
type Options struct {
	// Archive is the archive in --backup-store. Its keys seal and sign the segments.
	Archive *archive.Archive
	Etcd    Etcd
	// Interval is --backup-interval: a change is captured and its upload started at most this long after it. The
	// first change after a quiet period is captured immediately.
	Interval time.Duration
	// Schedule returns when the next full snapshot is due after a given time; the zero time means never. The cluster
	// is etcd's ID.
	Schedule func(cluster string, after time.Time) time.Time
	// SpoolDir is a directory on the volume that only the spool uses; it is created. SpoolLimit is the maximum number
	// of bytes of queued segments.
	SpoolDir   string
	SpoolLimit int64
	// DataDir is etcd's data directory. A file in it records which cluster the data belongs to.
	DataDir string
	// Owner is the cluster for which a new store is initialized, NAMESPACE/NAME.
	Owner string
	// Reconciled is set if etcd is closed and its data was verified against the chain while it ran. If another member
	// has extended the chain since, there is nothing to upload and Flush returns ErrRowsOnly.
	Reconciled bool
	// SegmentsOnly makes a member upload only what others may have missed. It never starts a chain: if there is no
	// chain to extend, Flush fails; if the chain already has its rows, Flush returns ErrRowsOnly. It is set for a
	// closed etcd that did not write the backups.
	SegmentsOnly bool
	// Release makes Flush end with an object which declares that no more writes follow, so that a restore need not
	// wait to see whether this cluster is active. It is set for a closed etcd that was the only member of its
	// cluster.
	Release bool
	// Session identifies this process: random, hexadecimal.
	Session string
	// Previous is a Writer whose Run has returned. New adopts what it knew of the store, which saves requests. It may
	// be nil.
	Previous *Writer
	// Gate is held during the read transaction of a full snapshot.
	Gate Gate
	Log  zerolog.Logger
	// Now returns the time of the wall clock.
	Now func() time.Time
}

var (
	// ErrNotWriter reports that another member of the cluster writes the backups. Ask that member instead.
	ErrNotWriter = errors.New("another member writes the backups")
	// ErrNoChain reports that a full snapshot is needed, which only the member that writes the backups may make.
	ErrNoChain = errors.New("there is no chain of backups to extend, and only the member that writes the backups may start one")
	// ErrRowsOnly reports that the store has every revision of a closed member. The member cannot determine whether
	// its leases and users are stored.
	ErrRowsOnly = errors.New("the store has every revision that this member has; the last change of leases or users must come from the member that writes the backups")
	// ErrSucceeded reports that the generation has ended: another cluster was restored from its backups and continues
	// it.
	ErrSucceeded = errors.New("another cluster was restored from the backups of this one, and goes on in its place")
	// ErrCopied reports that another copy of etcd's data extends the backups: the volume was cloned or rolled back.
	ErrCopied = errors.New("another copy of these data goes on with their backups")
	// ErrEnded reports that Run has returned.
	ErrEnded = errors.New("backups have ended")
)

// Writer makes backups continuously. New creates one and Run runs it; the other methods may be called from any
// goroutine.
type Writer struct {
	options Options
	pace    timing
	reader  *capture.Reader
	spool   *Spool
	room    func(size int64) error // returns an error unless the volume has size bytes to spare

	superseded chan error  // receives one error once the generation has ended
	events     chan func() // functions for the owner to run
	ended      chan struct{}
	jobs       sync.WaitGroup
	facts      atomic.Pointer[Facts]

	// The goroutine of Run owns the remaining fields.

	core   statemachine.Core[memberState]
	legal  *statemachine.Legality
	work   map[Action]func(context.Context, payload)
	posted []report // events posted by the actions of the current event
	again  bool     // more work is ready now

	remote    remote
	chain     chain
	fulls     fullQueue
	identity  archive.Identity // of etcd's data, as recorded on the volume
	merging   mergeState
	reserving reservationState

	revision  int64 // etcd's, as last observed
	unstored  lag
	flushes   []flush
	result    error             // result of Flush in the state drained
	stopping  bool              // Run's context has ended
	problems  [opCount]*problem // nil where there is no problem
	statistic Facts             // counters, and the last full snapshot
}

// remote holds what a member knows about the store. While the end of the chain is known, stored is that end unless
// another member has extended the chain since storedAt. Segments are only ever put at that position.
type remote struct {
	capabilities  store.Capabilities // of the store
	generation    archive.Generation // Number is 0 until it is known
	ownerVerified time.Time          // when the store was last verified to be this cluster's; zero forces a check

	requestedAt time.Time // start of the chain request in progress, at most one; zero if there is none
	notBefore   time.Time // no chain request starts earlier

	stored           format.Position // end of the chain; zero if it is unknown or there is no chain
	storedAt         time.Time       // when stored was last read or written
	last             format.Position // of the newest segment; zero if none is known
	newestFull       string          // name of the newest full snapshot; empty if none is known
	checked          time.Time       // when the existence of newestFull was last checked
	damagedEnd       format.Position // a new chain starts at or after this position; zero if no end is damaged
	fence            fence           // end of the chain as written by a later leader
	aheadSince       time.Time       // since when the chain has been ahead of this member; zero if it is not
	link             *archive.Link   // where a new chain attaches to the generation; nil if the generation cannot have ended
	successorChecked time.Time       // when findSuccessor last asked
	watched          watchState      // growth of the chain, for a member that does not lead

	checkpoint   format.Position // newest segment at the last check; the next check verifies it; zero if none
	checkpointAt time.Time       // time of the last check
	lost         format.Position // a stored segment that has disappeared; zero if none is known
}

// watchState records the last inspections of a member that does not lead.
type watchState struct {
	at      time.Time
	head    archive.Head // to advance from; empty if the last inspection found none
	counted time.Time    // when a missing chain was last counted
	lacking bool         // the chain lacked revisions that this member has
	stalled int          // consecutive inspections without growth, or without a chain
}

// fence is the end of a chain written by a leader of a later term. Revisions order rows, but leases and users change
// without a revision, so a member without newer rows may have older leases and users than the chain.
type fence struct {
	term     uint64
	revision int64
	since    time.Time
}

// chain is the position of this member's next segment and what it knows of the captured data. The segments in the
// spool are contiguous up to the tail.
type chain struct {
	tail     *format.Start            // start of the next segment; nil if it is unknown
	last     format.Position          // of the last segment with content; zero if this process captured none
	markers  []format.Marker          // since the last capture
	lastTime time.Time                // latest time written in this generation
	buckets  map[string]format.Digest // digests of the small buckets in the chain, as far as they are known
	hashes   map[format.CompactionHash]bool

	captured     time.Time       // when the last segment was captured
	examined     time.Time       // when etcd was last checked for changes
	applied      uint64          // etcd's applied index when the small buckets were last read
	bucketsAfter time.Time       // small buckets are not read earlier
	captureNow   bool            // capture without waiting for the interval
	gapSince     time.Time       // when compaction was found to have passed the tail; zero if it has not
	released     format.Position // position after the release object of an orderly stop; zero if there is none
	lagSince     time.Time       // since when this member's small buckets are older than the chain's; zero if they are not
}

// fullQueue holds the full snapshots that are due and the one in progress.
type fullQueue struct {
	making    *full
	due       []fullRequest
	notBefore time.Time       // none is started or uploaded earlier
	next      time.Time       // by schedule; zero if there is none
	wall      time.Time       // wall clock at the last check of the schedule
	gapAfter  time.Time       // no full snapshot for a gap is made earlier
	lastNext  format.Position // position after this process's newest one; zero if others extended the chain or there is none
	replaced  string          // error of the damaged one that was last replaced
}

// fullRequest is a request for a full snapshot.
type fullRequest struct {
	reason string
	done   chan<- fullResult // nil if no caller waits
}

type fullResult struct {
	FullDone
	err error
}

// mergeState is the state of the merging of small segments.
type mergeState struct {
	merger  *retention.Merger
	running bool
	at      time.Time // time of the last run
	stored  int64     // number of segments stored by then
	left    bool      // the last run left work for later
}

// reservationState tracks the store's reservation, which is kept ahead of etcd's revisions: a restore continues above it.
type reservationState struct {
	running   bool
	revision  int64     // reserved, as far as known; 0 if unknown
	notBefore time.Time // no attempt is made earlier
}

// flush is a caller that waits until a revision is stored.
type flush struct {
	revision int64           // etcd's at the time of the call
	at       time.Time       // time of the call
	target   format.Position // end of the segments that contain it; zero until it is captured
	done     chan<- error
}

// report is an event with its payload.
type report struct {
	event   Event
	payload payload
}

// Superseded receives one error, a sentence, once the generation has ended and another one continues it: etcd must be
// closed.
func (w *Writer) Superseded() <-chan error { return w.superseded }

// Facts returns the current state of the backups.
func (w *Writer) Facts() Facts { return *w.facts.Load() }

// take handles an event and the events that its actions post.
func (w *Writer) take(ctx context.Context, event Event, payload payload) {
	w.post(event, payload)
	for len(w.posted) > 0 {
		next := w.posted[0]
		w.posted = w.posted[1:]
		for _, action := range w.decide(next) {
			w.work[action](ctx, next.payload)
		}
	}
}

// post queues an event until the actions of the current one are done.
func (w *Writer) post(event Event, payload payload) {
	w.posted = append(w.posted, report{event, payload})
}

// rules evaluate the table.
var rules = statemachine.NewRules[memberState, payload](Table, Elsewhere, drained)

// decide evaluates the table and checks the transition with the state machine library.
func (w *Writer) decide(next report) []Action {
	from := w.core.State
	core, decision := rules.Step(w.core, next.event, next.payload)
	if decision.Row < 0 {
		if decision.Answer == statemachine.Reject {
			w.options.Log.Error().Str("state", string(from)).Str("event", string(next.event)).Msg("backups: bug: the event has no row")
		}
		return nil
	}
	if err := w.legal.Take(rules.Row(decision.Row)); err != nil {
		w.options.Log.Error().Err(err).Msg("backups: bug in the state machine")
		return nil
	}
	w.core = core
	if from != core.State {
		w.options.Log.Debug().Str("from", string(from)).Str("event", string(next.event)).Str("to", string(core.State)).Msg("backups: " + decision.Why)
	}
	return decision.Do
}

// job runs work, which may block, in its own goroutine for at most the given time. The function that work returns
// runs in the owner's goroutine.
func (w *Writer) job(ctx context.Context, patience time.Duration, work func(context.Context) (done func())) {
	w.jobs.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, patience)
		done := work(ctx)
		cancel()
		heard := make(chan struct{})
		w.events <- func() {
			defer close(heard)
			done()
		}
		<-heard // done may have started another job, which must be waited for as well
	})
}

// observe reads etcd's leadership and revision, which takes microseconds.
func (w *Writer) observe(ctx context.Context) {
	if leads := w.options.Etcd.Identity().Leader && !w.hasNewerLeader(); leads && !w.core.Facts.leads {
		w.take(ctx, elected, payload{})
	} else if !leads && w.core.Facts.leads {
		w.take(ctx, deposed, payload{})
	}
	before := w.revision
	if w.revision = w.options.Etcd.Revision(); w.revision > before {
		w.unstored.add(w.revision, time.Now())
		w.mark()
	}
}

// isRefused reports whether no member may write to the store.
func (w *Writer) isRefused() bool { return w.core.State == foreign || w.core.State == ended }

// isWriter reports whether this member extends the chain.
func (w *Writer) isWriter() bool {
	return !w.isRefused() && w.core.Facts.isWriter()
}

// time returns the current time in milliseconds, but never a time before one that was already written: times within a
// generation never decrease, whatever the clock does.
func (w *Writer) time() time.Time {
	now := w.options.Now().UTC().Truncate(time.Millisecond)
	if now.Before(w.chain.lastTime) {
		return w.chain.lastTime
	}
	w.chain.lastTime = now
	return now
}
