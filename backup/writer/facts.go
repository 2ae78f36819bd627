package writer

import (
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

	FullRunning *facts.Run // nil if none is being made
	LastFull    *FullDone  // that this process made; nil if it made none
	NextFull    time.Time  // by schedule; zero if there is none

	SpoolBytes int64 // of segments that wait for the store
	SpoolLimit int64 // bytes

	Trouble *facts.Trouble // nil while all is well
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
	is := w.statistic
	is.Role, is.Trouble, is.Revision, is.NextFull = w.role(), w.troubleNow(), w.revision, w.fulls.next
	is.Cluster, is.Owner, is.Generation = w.identity.Cluster, w.remote.generation.Owner, w.remote.generation.Number
	is.CreateIfAbsent, is.SpoolLimit = w.remote.abilities.CreateIfAbsent, w.options.SpoolLimit
	is.SpoolBytes, is.Stored = w.spool.Bytes(), max(0, w.remote.stored.Revision-1)
	if is.Role != Watching { // what an earlier process has seen there is there
		is.Behind, is.BehindFor = max(0, w.revision-max(is.Stored, w.identity.Position.Revision-1)), w.behindFor()
	}
	if w.fulls.making != nil {
		is.FullRunning = w.fulls.making.running()
	}
	w.facts.Store(&is)
}

func (f *full) running() *facts.Run {
	is := &facts.Run{Reason: f.asked[0].reason, Since: f.since, Doing: f.doing}
	if f.copied != nil {
		is.Sent, is.Of = f.copied.sent.Load(), f.copied.size
	}
	if f.storing && is.Sent > 0 {
		is.LeftSeconds = time.Since(f.tried).Seconds() * float64(is.Of-is.Sent) / float64(is.Sent)
	}
	return is
}

func (w *Writer) role() Role {
	switch {
	case w.refuses(), w.remote.generation.Number == 0 && w.chain.tail == nil:
		return Unknown
	case w.writes():
		return Writing
	default:
		return Watching
	}
}

// behindFor is how long the oldest change that is not in the store has been waiting.
func (w *Writer) behindFor() time.Duration {
	waits := w.spool.Entries()
	switch {
	case len(waits) > 0:
		return time.Since(waits[0].since)
	case w.statistic.Broken != nil:
		return max(0, w.options.Now().Sub(w.statistic.Broken.Since))
	case len(w.chain.markers) > 0:
		return time.Since(w.chain.markers[0].seen)
	default:
		return 0
	}
}
