package writer

import (
	"slices"
	"time"

	"etcd-wrapper/backup/facts"
)

// Role is what a member does about the cluster's backups.
type Role string

// The roles.
const (
	Unknown  Role = "unknown"  // the store was not reached yet, or must not be written
	Writing  Role = "writing"  // it makes the backups
	Watching Role = "watching" // another member makes them; this one takes over when they don't grow
)

// Facts are what can be told of backups at one moment. Whoever gets them may keep them.
type Facts struct {
	Role       Role
	Cluster    string // the id of the cluster that etcd's data are of; empty if no store knows them
	Owner      string // whose the store says that it is; empty until it is known
	Generation int    // 0 until it is known

	Revision  int64         // etcd's
	Stored    int64         // the last one that is in the store, as far as this member knows; 0 if none is
	Behind    int64         // revisions that are not in the store yet
	BehindFor time.Duration // how long the oldest of them has been waiting; 0 if there is none

	FullRunning *facts.SnapshotProgress // nil if none is being made
	LastFull    *FullDone               // that this process made; nil if it made none
	NextFull    time.Time               // by schedule; zero if there is none

	SpoolBytes int64 // of segments that wait for the store
	SpoolLimit int64 // bytes

	Trouble *facts.Problem // nil while all is well
	Broken  *Broken        // nil while there is a chain to go on with

	CreateIfAbsent bool  // the store refuses to overwrite; valid once Generation is known
	Uploaded       int64 // bytes of segments and fulls since the start of the process
	Segments       int64 // that this process stored
	Fulls          int64 // that this process stored
	Failures       int64 // of requests to the store since the start of the process
	Holes          int64 // places that this process found where a segment is missing, or where a chain ended
}

// FullDone is a full that is in the store.
type FullDone struct {
	Name     string
	Revision int64
	Time     time.Time // of its content
	Bytes    int64     // of the object
	Database int64     // bytes
	Reason   string
}

// Broken is a chain that could not be gone on with.
type Broken struct {
	Since  time.Time
	Reason string // a clause
}

// publish makes facts of what is known now.
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

// storedRevision returns the last revision that is known to be stored. Until this process has read the store, that is what an earlier
// one has seen there.
func (w *Writer) storedRevision() int64 {
	if w.remote.stored.IsZero() && w.remote.storedAt.IsZero() {
		return w.identity.Position.Revision - 1
	}
	return w.remote.stored.Revision - 1
}

// behindFor returns how long the oldest change that is not stored has been waiting, whatever happened to it in between.
func (w *Writer) behindFor() (age time.Duration) {
	stored := w.storedRevision()
	w.unstored.drop(stored)
	if w.revision > stored {
		w.unstored.add(w.revision, time.Now()) // if the store has lost what it had
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

// lag records when each revision that is not stored was first seen, oldest first. It depends on nothing that is done with the revisions:
// they may be captured again and again.
type lag []observation

type observation struct {
	revision int64     // all revisions up to this one, from the sighting before on
	at       time.Time // by the monotonic clock
}

// maxSightings bounds a lag.
const maxObservations = 1024

func (l *lag) add(revision int64, at time.Time) {
	if len(*l) > 0 && revision <= (*l)[len(*l)-1].revision {
		return
	}
	if len(*l) == maxObservations { // halve it: the earlier time then counts for two
		for i := range maxObservations / 2 {
			(*l)[i] = observation{(*l)[2*i+1].revision, (*l)[2*i].at}
		}
		*l = (*l)[:maxObservations/2]
	}
	*l = append(*l, observation{revision, at})
}

// drop forgets what is stored.
func (l *lag) drop(stored int64) {
	*l = slices.DeleteFunc(*l, func(s observation) bool { return s.revision <= stored })
}
