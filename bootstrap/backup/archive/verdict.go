package archive

import (
	"context"
	"time"

	"etcd-wrapper/bootstrap/backup/seal"
	"etcd-wrapper/bootstrap/backup/segment"
)

// Outcome is what a test restore showed.
type Outcome string

// The outcomes. What kept a test restore from being done is none of them.
const (
	Verified Outcome = "verified"
	Failed   Outcome = "failed"
)

// Verdict is what a test restore showed.
type Verdict struct {
	seal.Heading
	Cluster    string       `json:"cluster"`
	Generation int          `json:"generation"`
	Full       string       `json:"full"`     // the full's name that it began with
	Revision   int64        `json:"revision"` // that was restored: the full's, or that of a drill
	Drill      bool         `json:"drill"`    // whether segments were restored, too
	Outcome    Outcome      `json:"outcome"`
	Why        string       `json:"why,omitempty"` // it failed: a sentence
	At         time.Time    `json:"at"`            // to the second
	Seconds    float64      `json:"seconds"`       // how long it took
	Database   segment.Body `json:"database,omitzero"`
	Hash       *Hash        `json:"hash,omitempty"` // etcd's own that was compared with; nil if there was none
	Member     string       `json:"member"`         // who did it: etcd's member id, hexadecimal
}

// PutVerdict stores a verdict. Heading is filled in. There may be several of a full: the newest counts.
func (a *Archive) PutVerdict(ctx context.Context, verdict Verdict) error { return errUnfinished }

// Drills returns the verdicts of drills in a generation, oldest first, since a time.
func (a *Archive) Drills(ctx context.Context, generation int, since time.Time) ([]Verdict, error) {
	return nil, errUnfinished
}
