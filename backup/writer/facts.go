package writer

import (
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
)

// Role is the part of a member in the cluster's backups.
type Role = facts.Role

// The roles.
const (
	Unknown  = facts.Waiting // the store was not read yet, or must not be written
	Writing  = facts.Writer  // this member makes the backups
	Watching = facts.Standby // another member makes the backups; this one takes over if they stop growing
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
	LastFull    *archive.Full           // made by this process; nil if there is none
	NextFull    time.Time               // by schedule; zero if there is none

	SpoolBytes int64 // of queued segments
	SpoolLimit int64 // bytes

	Trouble     *facts.Problem // nil if there is none
	BrokenSince time.Time      // since when there is no chain to extend; zero if there is one

	Uploaded int64 // bytes of segments and full snapshots since the process started
	Segments int64 // stored by this process
	Fulls    int64 // stored by this process
	Failures int64 // of requests to the store since the process started
}
