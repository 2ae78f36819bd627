package exitcode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"etcd-wrapper/internal/durable"
	"etcd-wrapper/internal/printable"
	"etcd-wrapper/internal/smallfile"
)

// LastRun is what a run tells the next one about itself, for people. It never takes part in the choice of the validation
// mode: that is the exit record's alone. No run leaves the zero value behind.
type LastRun struct {
	Began  time.Time `json:"began"`
	Ended  time.Time `json:"ended,omitzero"` // zero while it runs, and for good if it ended without a word
	Status Code      `json:"status"`         // valid with Ended
	Reason string    `json:"reason,omitempty"`
	Served bool      `json:"served"` // it came to serve
}

// maxLastRun bounds what is read of a note, in bytes; maxLastReason what is kept of its reason.
const (
	maxLastRun    = 8 << 10
	maxLastReason = 1 << 10
)

// ReadLastRun returns the note at path. The error is fs.ErrNotExist if there is none.
func ReadLastRun(path string) (run LastRun, err error) {
	content, err := smallfile.ReadHere(path, maxLastRun)
	if err == nil {
		err = json.Unmarshal(content, &run)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return LastRun{}, fmt.Errorf("cannot read %s: %w", path, err)
	}
	run.Reason = printable.Line(run.Reason)
	return run, err
}

// Keep replaces the note at path, durably. It is for whoever holds the volume's lock.
func (r LastRun) Keep(path string) error {
	r.Reason = beginning(r.Reason, maxLastReason)
	content, err := json.Marshal(r)
	if err == nil {
		err = durable.Replace(path, append(content, '\n'))
	}
	if err != nil {
		return fmt.Errorf("cannot keep how this run ends: %w", err)
	}
	return nil
}
