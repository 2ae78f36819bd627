// Package facts is what is known about a member's backups at one moment, in the words and the form in which it is published:
// package backup fills it in, and the status document, the metrics, the page and the terminal show it as it is.
package facts

import "time"

// Role is what a member does for the backups of its cluster.
type Role string

// The roles.
const (
	Writer  Role = "writer"  // it makes the backups
	Standby Role = "standby" // another member makes them
	Waiting Role = "waiting" // the store can't be used yet
)

// Backups are how far what clients have written is in the store, and what the store can give back.
type Backups struct {
	Store               string             `json:"store"`                // its URL, without query and secrets
	Cluster             string             `json:"cluster,omitempty"`    // the id of the cluster that etcd's data are of; empty if no store knows them
	Owner               string             `json:"owner,omitempty"`      // whose the store says that it is; empty before it is known
	Generation          int                `json:"generation,omitempty"` // of the store that etcd's data are of; 0 before it is known
	Role                Role               `json:"role"`
	Revision            int64              `json:"revision,omitempty"`              // the newest in the store; 0 before it is known
	LagRevisions        int64              `json:"lag_revisions"`                   // that etcd has and the store has not yet
	LagSeconds          float64            `json:"lag_seconds"`                     // since when the oldest of them waits
	Window              *Window            `json:"window,omitempty"`                // absent until a full is in the store
	Windows             []GenerationWindow `json:"windows,omitempty"`               // the same in all generations, oldest first
	LastFullSnapshot    *FullSnapshot      `json:"last_full_snapshot,omitempty"`    // the newest, verified or not
	RunningFullSnapshot *SnapshotProgress  `json:"running_full_snapshot,omitempty"` // the one that is being made
	NextFullSnapshot    time.Time          `json:"next_full_snapshot,omitzero"`     // by schedule
	LastVerification    *Verification      `json:"last_verification,omitempty"`     // the latest test restore, and what it showed
	StoredBytes         int64              `json:"stored_bytes,omitempty"`          // of all objects of this cluster in the store, as of the last listing
	UploadedBytes       int64              `json:"uploaded_bytes"`                  // by this process
	SpoolBytes          int64              `json:"spool_bytes"`                     // that wait on the volume for the store
	SpoolLimit          int64              `json:"spool_limit"`                     // bytes that may wait there
	Problem             *Problem           `json:"problem,omitempty"`               // while it lasts
}

// Window is what can be gone back to: any revision from the first to the last.
type Window struct {
	FromRevision int64     `json:"from_revision"`
	ToRevision   int64     `json:"to_revision"`
	From         time.Time `json:"from"` // the time of the first revision
	To           time.Time `json:"to"`   // the time of the last one
}

// Span is a part of what can be gone back to that has no hole: any revision of a generation from the first to the last.
type GenerationWindow struct {
	Window
	Generation    int            `json:"generation"`
	FullSnapshots []SnapshotMark `json:"full_snapshots,omitempty"` // those that lie in it
}

// Mark is a full snapshot where people see when it was made.
type SnapshotMark struct {
	Revision    int64     `json:"revision"`
	At          time.Time `json:"at"`
	RestoreTest string    `json:"restore_test,omitempty"` // passed or failed; empty if it was not restored yet
}

// Full is a backup of the whole database.
type FullSnapshot struct {
	Revision int64     `json:"revision"`
	At       time.Time `json:"at"`
	Bytes    int64     `json:"bytes"` // in the store
	Reason   string    `json:"reason"`
}

// Run is a full backup that is being made.
type SnapshotProgress struct {
	Reason           string    `json:"reason"`
	Since            time.Time `json:"since"`
	Step             string    `json:"step"`                        // a clause
	SentBytes        int64     `json:"sent_bytes"`                  // bytes of the database that the store was sent
	TotalBytes       int64     `json:"total_bytes"`                 // of so many; 0 until it is copied
	RemainingSeconds float64   `json:"remaining_seconds,omitempty"` // until it is sent; absent while that is not known
}

// Proof is what a test restore showed.
type Verification struct {
	Revision int64     `json:"revision"` // that was restored
	At       time.Time `json:"at"`
	Passed   bool      `json:"passed"`
	Reason   string    `json:"reason"` // what was compared, or what was wrong
}

// Trouble is what keeps backups from being made, or makes them worth less.
type Problem struct {
	Since     time.Time `json:"since"`
	Count     int       `json:"count"` // in a row
	Message   string    `json:"message"`
	NextRetry time.Time `json:"next_retry,omitzero"`
}
