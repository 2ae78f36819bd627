// Package facts defines the published state of a member's backups. Package backup fills in the types, and the status
// document, the metrics, the status page and the terminal display the values unchanged. Package facts contains only
// types and does not import any other package of this module.
package facts

import "time"

// Role is the role of a member in backing up its cluster.
type Role string

// Backup roles.
const (
	Writer  Role = "writer"  // this member makes the backups
	Standby Role = "standby" // another member makes the backups
	Waiting Role = "waiting" // the store cannot be used yet
)

// Backups describes how much of the data is stored, and which revisions can be restored from the store.
type Backups struct {
	Store               string             `json:"store"`                // URL of the store without its query and secrets
	Cluster             string             `json:"cluster,omitempty"`    // ID of the cluster that the data belongs to; empty if not recorded
	Owner               string             `json:"owner,omitempty"`      // owner of the store; empty if unknown
	Generation          int                `json:"generation,omitempty"` // generation of the data; 0 if unknown
	Role                Role               `json:"role"`
	Revision            int64              `json:"revision,omitempty"`              // last stored revision; 0 if unknown
	LagRevisions        int64              `json:"lag_revisions"`                   // number of revisions that have not been stored yet
	LagSeconds          float64            `json:"lag_seconds"`                     // age of the oldest revision that has not been stored yet
	Window              *Window            `json:"window,omitempty"`                // absent until a full snapshot is stored
	Windows             []GenerationWindow `json:"windows,omitempty"`               // windows of all generations, oldest first
	LastFullSnapshot    *FullSnapshot      `json:"last_full_snapshot,omitempty"`    // newest full snapshot, even if it has not been tested yet
	RunningFullSnapshot *SnapshotProgress  `json:"running_full_snapshot,omitempty"` // absent if no full snapshot is being made
	NextFullSnapshot    time.Time          `json:"next_full_snapshot,omitzero"`     // time of the next scheduled full snapshot
	LastVerification    *Verification      `json:"last_verification,omitempty"`     // result of the latest restore test
	StoredBytes         int64              `json:"stored_bytes,omitempty"`          // total size of the backups at the last listing
	UploadedBytes       int64              `json:"uploaded_bytes"`                  // bytes uploaded by this process
	SpoolBytes          int64              `json:"spool_bytes"`                     // bytes queued on the volume
	SpoolLimit          int64              `json:"spool_limit"`                     // maximum number of queued bytes
	Problem             *Problem           `json:"problem,omitempty"`               // absent if backups are working
}

// A Window is a range of revisions, all of which can be restored.
type Window struct {
	FromRevision int64     `json:"from_revision"`
	ToRevision   int64     `json:"to_revision"`
	From         time.Time `json:"from"` // time of the first revision
	To           time.Time `json:"to"`   // time of the last revision
}

// A GenerationWindow is a window within one generation. A generation with missing segments has more than one window.
type GenerationWindow struct {
	Window
	Generation    int            `json:"generation"`
	FullSnapshots []SnapshotMark `json:"full_snapshots,omitempty"` // full snapshots within the window
}

// A SnapshotMark is a full snapshot in a GenerationWindow.
type SnapshotMark struct {
	Revision    int64     `json:"revision"`
	At          time.Time `json:"at"`
	RestoreTest string    `json:"restore_test,omitempty"` // "passed" or "failed"; empty if the snapshot has not been tested yet
}

// A FullSnapshot is a backup of the whole database.
type FullSnapshot struct {
	Revision int64     `json:"revision"`
	At       time.Time `json:"at"`
	Bytes    int64     `json:"bytes"` // size in the store
	Reason   string    `json:"reason"`
}

// SnapshotProgress describes a full snapshot in progress.
type SnapshotProgress struct {
	Reason           string    `json:"reason"`
	Since            time.Time `json:"since"`
	Step             string    `json:"step"`                        // short description, such as "uploading"
	SentBytes        int64     `json:"sent_bytes"`                  // bytes uploaded so far
	TotalBytes       int64     `json:"total_bytes"`                 // bytes to upload; 0 until the database is copied
	RemainingSeconds float64   `json:"remaining_seconds,omitempty"` // estimate; absent while it is unknown
}

// Verification is the result of a restore test.
type Verification struct {
	Revision int64     `json:"revision"` // the restored revision
	At       time.Time `json:"at"`
	Passed   bool      `json:"passed"`
	Reason   string    `json:"reason"` // the verified hash, or why the test failed
}

// A Problem prevents backups from being made, tested or deleted.
type Problem struct {
	Since     time.Time `json:"since"`
	Count     int       `json:"count"` // number of consecutive failures
	Message   string    `json:"message"`
	NextRetry time.Time `json:"next_retry,omitzero"`
}
