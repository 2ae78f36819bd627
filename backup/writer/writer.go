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
	Previous *Writer
	// Gate is passed around the read transaction of a full snapshot.
	Gate Gate
	Log  zerolog.Logger
	// Now is the wall clock.
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
	pace    timing
	reader  *capture.Reader
	spool   *Spool
	room    func(size int64) error // says whether the volume has so many bytes to spare

	superseded chan error  // has one error once the generation has ended
	events     chan func() // what the owner is told, and does
	ended      chan struct{}
	jobs       sync.WaitGroup
	facts      atomic.Pointer[Facts]

	// The rest is owned by the goroutine of Run.

	core   statemachine.Core[memberState]
	legal  *statemachine.Legality
	work   map[Action]func(context.Context, payload)
	posted []report // events that the present one has led to
	again  bool     // there is more to do at once

	remote    remote
	chain     chain
	fulls     fullQueue
	identity  archive.Identity // of etcd's data, as the volume tells
	merging   mergeState
	reserving reservationState

	revision  int64 // etcd's, as last seen
	unstored  lag
	flushes   []flush
	result    error             // how bringing ended, in drained
	stopping  bool              // Run's context has ended
	problems  [opCount]*problem // nil while all is well
	statistic Facts             // counters and what was last done
}

// remote is what a member knows of the store. While the state is settled, stored is where the chain there ends, unless another
// member has extended it since storedAt; a segment is only ever put at that position.
type remote struct {
	capabilities  store.Capabilities // of the store
	generation    archive.Generation // Number is 0 until it is known
	ownerVerified time.Time          // when the store was last seen to be this cluster's; zero if that is to be seen at the next look

	requestedAt time.Time // since when a request about the chain is under way; zero if none is: there is one at a time
	notBefore   time.Time // nothing is asked about the chain before

	stored           format.Position // where the chain ends; zero if that is unknown, or there is none
	storedAt         time.Time       // when that was last seen, or made, to be so
	last             format.Position // of the newest segment; zero if none is known
	newestFull       string          // the newest full snapshot; empty if none is known
	checked          time.Time       // when the store was last asked whether it still has that
	damagedEnd       format.Position // where a new chain leaves alone what is damaged; zero if nothing is
	fence            fence           // a later leader's end of the chain
	aheadSince       time.Time       // since when the chain has been ahead of this member's data; zero if it is not
	link             *archive.Link   // where the generation goes on if a chain begins; nil in a generation that nobody can have ended
	successorChecked time.Time       // when it was last asked whether there is a successor
	watched          watchState      // at by a member that does not lead

	checkpoint   format.Position // the newest segment at the last check, which the next check has to find; zero if there was none
	checkpointAt time.Time       // of the last check
	lost         format.Position // a segment that was stored and is gone; zero if none is known
}

// looked is what a member that does not lead saw last.
type watchState struct {
	at      time.Time
	head    archive.Head // to go on from; empty if the last look showed none
	counted time.Time    // when it last counted that there was no chain
	lacking bool         // the chain had less than this member's data
	stalled int          // in a row that this was so and the chain had not grown, or that there was none
}

// fence is what a leader wrote that came after this member's term. Rows have their place in the chain by their revisions, but leases
// and users change without one, so a member that has no more rows than the chain may have older ones of these.
type fence struct {
	term     uint64
	revision int64
	since    time.Time
}

// chain is where this member's next segment goes, and what it knows of what it has captured. The segments that wait in the spool
// follow one another up to the tail.
type chain struct {
	tail     *format.Start            // what the next segment goes on from; nil if that is unknown
	last     format.Position          // of the last segment that holds anything; zero if this process has captured none
	markers  []format.Marker          // since the last capture
	lastTime time.Time                // of any marker in this generation
	buckets  map[string]format.Digest // of the small ones, as the chain has them, as far as that is known
	hashes   map[format.CompactionHash]bool

	captured     time.Time       // when the last segment was captured
	examined     time.Time       // when it was last looked whether there is something to capture
	applied      uint64          // etcd's applied index as the small buckets were last looked at
	bucketsAfter time.Time       // when they may be looked at again
	captureNow   bool            // a capture is waited for
	gapSince     time.Time       // since when compaction has passed the tail; zero if it has not
	released     format.Position // behind the last object of an orderly stop; zero if there is none
	lagSince     time.Time       // since when this member's small buckets have been older than the chain's; zero if they are not
}

// fulls are the full snapshots that are due, and the one in the making.
type fullQueue struct {
	making    *full
	due       []fullRequest
	notBefore time.Time       // none is begun or stored before
	next      time.Time       // by schedule; zero if there is none
	wall      time.Time       // as the schedule was last looked at
	gapAfter  time.Time       // no gap is answered with one before
	lastNext  format.Position // the newest one of this process, if nobody else has gone on from it; zero if it is none of these
	replaced  string          // what was wrong with the one that another was made in the place of
}

// due is a full that was asked for.
type fullRequest struct {
	reason string
	done   chan<- fullResult // nil if nobody waits
}

type fullResult struct {
	FullDone
	err error
}

// merging is what this member does about small objects.
type mergeState struct {
	merger  *retention.Merger
	running bool
	at      time.Time // of the last run
	stored  int64     // how many segments there were then
	left    bool      // something waits for its time
}

// reserving is what this member does to keep the store's reservation ahead of what etcd hands out: a restore goes on above it.
type reservationState struct {
	running   bool
	revision  int64     // that is reserved, as far as is known; 0 if that is unknown
	notBefore time.Time // it is not tried before
}

// flush is somebody who waits until a revision is in the store.
type flush struct {
	revision int64           // what etcd had when it was asked
	at       time.Time       // when that was
	target   format.Position // where the segments end that have it; zero until it is captured
	done     chan<- error
}

// report is an event with what it tells.
type report struct {
	event   Event
	payload payload
}

// Superseded has one error, a sentence, once the generation of this cluster has ended and another one goes on: etcd must be closed.
func (w *Writer) Superseded() <-chan error { return w.superseded }

// Facts are what can be told of backups now.
func (w *Writer) Facts() Facts { return *w.facts.Load() }

// take has the table answer an event, and those that its actions post.
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

// post has an event answered when the actions of the present one are done.
func (w *Writer) post(event Event, payload payload) {
	w.posted = append(w.posted, report{event, payload})
}

// rules are the table's.
var rules = statemachine.NewRules[memberState, payload](Table, Elsewhere, drained)

// decide asks the table, and has the library's machine agree.
func (w *Writer) decide(next report) []Action {
	from := w.core.State
	core, decision := rules.Step(w.core, next.event, next.payload)
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

// job runs what may wait in a goroutine of its own, for so long at most, and what it returns in the owner's.
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
		<-heard // it may have started another one, which must be waited for as well
	})
}

// observe looks at etcd, which costs microseconds.
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

// refuses tells whether nothing may be written, whoever leads.
func (w *Writer) isRefused() bool { return w.core.State == foreign || w.core.State == ended }

// writes tells whether this member extends the chain.
func (w *Writer) isWriter() bool {
	return !w.isRefused() && w.core.Facts.isWriter()
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
