package writer

import (
	"slices"
	"time"

	"etcd-wrapper/backup/facts"
)

// Role is the part of a member in the cluster's backups.
type Role string

// The roles.
const (
	Unknown  Role = "unknown"  // the store was not read yet, or must not be written
	Writing  Role = "writing"  // this member makes the backups
	Watching Role = "watching" // another member makes the backups; this one takes over if they stop growing
)

// Facts are the state of the backups at one moment. Callers may keep them.
type Facts struct {
	Role       Role
	Cluster    string // ID of the cluster that etcd's data belongs to; empty if it has none
	Owner      string // owner recorded in the store; empty until it is known
	Generation int    // 0 until it is known

	Revision  int64         // etcd's
	Stored    int64         // last revision in the store, as far as this member knows; 0 if there is none
	Behind    int64         // number of revisions that are not stored yet
	BehindFor time.Duration // age of the oldest of them; 0 if there is none

	FullRunning *facts.SnapshotProgress // nil if none is in progress
	LastFull    *FullDone               // made by this process; nil if there is none
	NextFull    time.Time               // by schedule; zero if there is none

	SpoolBytes int64 // of queued segments
	SpoolLimit int64 // bytes

	Trouble *facts.Problem // nil if there is none
	Broken  *Broken        // nil while there is a chain to extend

	CreateIfAbsent bool  // the store refuses to overwrite; valid once Generation is known
	Uploaded       int64 // bytes of segments and full snapshots since the process started
	Segments       int64 // stored by this process
	Fulls          int64 // stored by this process
	Failures       int64 // of requests to the store since the process started
	Holes          int64 // places found by this process where a segment is missing or a chain ended
}

// FullDone describes a full snapshot in the store.
type FullDone struct {
	Name     string
	Revision int64
	Time     time.Time // of its content
	Bytes    int64     // of the object
	Database int64     // bytes
	Reason   string
}

// Broken describes a chain that could not be extended.
type Broken struct {
	Since  time.Time
	Reason string // a clause
}

// publish updates the facts that other goroutines read.
func (w *Writer) publish() {
	facts := w.statistic
	facts.Role, facts.Trouble, facts.Revision, facts.NextFull = w.role(), w.currentProblem(), w.revision, w.fulls.next
	facts.Cluster, facts.Owner, facts.Generation = w.identity.Cluster, w.remote.generation.Owner, w.remote.generation.Number
	facts.CreateIfAbsent, facts.SpoolLimit = w.remote.capabilities.CreateIfAbsent, w.options.SpoolLimit
	facts.SpoolBytes, facts.Stored = w.spool.Bytes(), max(0, w.remote.stored.Revision-1)
	if facts.Role != Watching {
		facts.Behind, facts.BehindFor = max(0, w.revision-w.storedRevision()), w.behindFor()
	}
	if w.fulls.making != nil {
		facts.FullRunning = w.fulls.making.running()
	}
	w.facts.Store(&facts)
}

func (f *full) running() *facts.SnapshotProgress {
	progress := &facts.SnapshotProgress{Reason: f.requests[0].reason, Since: f.since, Step: f.doing}
	if f.copy != nil {
		progress.SentBytes, progress.TotalBytes = f.copy.sent.Load(), f.copy.size
	}
	if f.storing && progress.SentBytes > 0 {
		progress.RemainingSeconds = time.Since(f.tried).Seconds() * float64(progress.TotalBytes-progress.SentBytes) / float64(progress.SentBytes)
	}
	return progress
}

func (w *Writer) role() Role {
	switch {
	case w.isRefused(), w.remote.generation.Number == 0 && w.chain.tail == nil:
		return Unknown
	case w.isWriter():
		return Writing
	default:
		return Watching
	}
}

// storedRevision returns the last revision that is known to be stored. Until this process has read the store, it is
// the one recorded by an earlier process.
func (w *Writer) storedRevision() int64 {
	if w.remote.stored.IsZero() && w.remote.storedAt.IsZero() {
		return w.identity.Position.Revision - 1
	}
	return w.remote.stored.Revision - 1
}

// behindFor returns the age of the oldest change that is not stored, however often it was captured.
func (w *Writer) behindFor() (age time.Duration) {
	stored := w.storedRevision()
	w.unstored.drop(stored)
	if w.revision > stored {
		w.unstored.add(w.revision, time.Now()) // the store may have lost revisions
		age = time.Since(w.unstored[0].at)
	}
	if queued := w.spool.Entries(); len(queued) > 0 { // changes of leases and users have no revision
		age = max(age, time.Since(queued[0].since))
	}
	if w.statistic.Broken != nil {
		age = max(age, w.options.Now().Sub(w.statistic.Broken.Since))
	}
	return age
}

// lag records when each revision that is not stored was first observed, oldest first. Capturing revisions again does
// not change it.
type lag []observation

type observation struct {
	revision int64     // covers the revisions after the previous observation up to this one
	at       time.Time // by the monotonic clock
}

// maxObservations bounds a lag.
const maxObservations = 1024

func (l *lag) add(revision int64, at time.Time) {
	if len(*l) > 0 && revision <= (*l)[len(*l)-1].revision {
		return
	}
	if len(*l) == maxObservations { // halve it: merge pairs and keep the earlier time
		for i := range maxObservations / 2 {
			(*l)[i] = observation{(*l)[2*i+1].revision, (*l)[2*i].at}
		}
		*l = (*l)[:maxObservations/2]
	}
	*l = append(*l, observation{revision, at})
}

// drop removes revisions that are stored.
func (l *lag) drop(stored int64) {
	*l = slices.DeleteFunc(*l, func(s observation) bool { return s.revision <= stored })
}
