package recovery

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/internal/disk"
	"etcd-wrapper/recovery/seed"
)

const (
	recordFile   = "recovery.json"
	recordFormat = 1
	maxRecord    = 64 << 10 // maximum bytes of the file
	maxDone      = 100      // IDs of restores; the store has all
)

// A record is what recovery stores durably on the volume.
type record struct {
	Format int      `json:"format"`
	Claim  *claim   `json:"claim,omitempty"` // what may be claimed and is not installed yet
	Done   []string `json:"done,omitempty"`  // IDs of restores that were done, the newest last

	Refused *mismatch `json:"refused,omitempty"` // of the data that are there, by a comparison with the store
}

// A claim describes a restore, so that a later run can complete it.
type claim struct {
	Generation  archive.Generation `json:"generation"`    // to be claimed, as it is written
	Reservation int64              `json:"reservation"`   // the revision
	Head        format.Position    `json:"head_position"` // where the generation before ended in the store; zero if it had nothing
	Aside       string             `json:"aside"`         // where the old data directory goes
	DataDir     string             `json:"data_dir"`      // that is replaced
	At          time.Time          `json:"at"`
}

// A mismatch records that data were compared with the store and refused. They are compared again before they are
// served, even if the store cannot be reached then.
type mismatch struct {
	DataDir string    `json:"data_dir"`
	Why     string    `json:"why"`
	At      time.Time `json:"at"`
}

// RecordMismatch stores on the volume that the data in a directory are not those of the store, for instance because
// the generation of a running etcd has ended. Call it once etcd is closed.
func (e *environment) RecordMismatch(dataDir string, why error) error {
	return e.updateRecord(func(r *record) { r.Refused = &mismatch{seed.ResolvePath(dataDir), why.Error(), e.now().UTC()} })
}

// readRecord returns an empty record if there is none. If it cannot be read, the error names the way out.
func (e *environment) readRecord() (r record, err error) {
	path := filepath.Join(e.options.VolumeDir, recordFile)
	content, err := disk.ReadHere(path, maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return record{Format: recordFormat}, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &r)
	}
	if err == nil && r.Format != recordFormat {
		err = fmt.Errorf("it has format %d, and this program reads %d", r.Format, recordFormat)
	}
	if err != nil {
		return record{}, fmt.Errorf("cannot read %s, the record of recovery: %w; move the file away to start recovery again", path, err)
	}
	return r, nil
}

func (e *environment) updateRecord(change func(*record)) error {
	r, err := e.readRecord()
	if err != nil {
		return err
	}
	change(&r)
	path := filepath.Join(e.options.VolumeDir, recordFile)
	content, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = disk.Replace(path, append(content, '\n'))
	}
	if err != nil {
		return fmt.Errorf("cannot write %s, the record of recovery: %w", path, err)
	}
	return nil
}

// errClaimLost reports that what was built is outdated.
var errClaimLost = errors.New("the claim is lost")

func lostClaim(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errClaimLost, fmt.Errorf(format, args...))
}

// addDone adds the ID of a restore that was done.
func (r *record) addDone(id string) {
	if id != "" && !slices.Contains(r.Done, id) {
		r.Done = append(r.Done, id)
		r.Done = r.Done[max(0, len(r.Done)-maxDone):]
	}
}
