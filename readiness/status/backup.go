package status

import "time"

// Backup is how far what clients have written is in the store, and what the store can give back.
type Backup struct {
	Store string `json:"store"` // its URL, without query and secrets
	// Role is writes, for the member that makes the backups, watches, while another member of the cluster makes them, or
	// waits, while the store can't be used.
	Role            string        `json:"role"`
	Revision        int64         `json:"revision,omitempty"`      // the newest in the store; 0 before it is known
	BehindRevisions int64         `json:"behind_revisions"`        // that etcd has and the store has not yet
	BehindSeconds   float64       `json:"behind_seconds"`          // since when the oldest of them waits
	Window          *BackupWindow `json:"window,omitempty"`        // absent until a full is in the store
	LastFull        *BackupFull   `json:"last_full,omitempty"`     // the newest, verified or not
	FullRunning     *BackupRun    `json:"full_running,omitempty"`  // the one that is being made
	NextFull        time.Time     `json:"next_full,omitzero"`      // by schedule
	LastVerified    *BackupProof  `json:"last_verified,omitempty"` // the latest test restore, and what it showed
	StoredBytes     int64         `json:"stored_bytes,omitempty"`  // of all objects of this cluster in the store, as of the last listing
	UploadedBytes   int64         `json:"uploaded_bytes"`          // by this process
	SpoolBytes      int64         `json:"spool_bytes"`             // that wait on the volume for the store
	SpoolLimit      int64         `json:"spool_limit"`             // bytes that may wait there
	Trouble         *BackupError  `json:"trouble,omitempty"`       // while it lasts
}

// BackupWindow is what can be gone back to: any revision from the first to the last.
type BackupWindow struct {
	FromRevision int64     `json:"from_revision"`
	ToRevision   int64     `json:"to_revision"`
	From         time.Time `json:"from"` // the time of the first revision
	To           time.Time `json:"to"`   // the time of the last one
}

// BackupFull is a backup of the whole database.
type BackupFull struct {
	Revision int64     `json:"revision"`
	At       time.Time `json:"at"`
	Bytes    int64     `json:"bytes"` // in the store
	Reason   string    `json:"reason"`
}

// BackupRun is a full backup that is being made.
type BackupRun struct {
	Reason      string    `json:"reason"`
	Since       time.Time `json:"since"`
	Doing       string    `json:"doing"`                  // a clause
	Sent        int64     `json:"sent"`                   // bytes of the database that the store was sent
	Of          int64     `json:"of"`                     // of so many; 0 until it is copied
	LeftSeconds float64   `json:"left_seconds,omitempty"` // until it is sent; absent while that is not known
}

// BackupProof is what a test restore showed.
type BackupProof struct {
	Revision int64     `json:"revision"` // that was restored
	At       time.Time `json:"at"`
	Passed   bool      `json:"passed"`
	Reason   string    `json:"reason"` // what was compared, or what was wrong
}

// BackupError is what keeps backups from being made, or makes them worth less.
type BackupError struct {
	Since   time.Time `json:"since"`
	Times   int       `json:"times"` // in a row
	Message string    `json:"message"`
	NextTry time.Time `json:"next_try,omitzero"`
}
