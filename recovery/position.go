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
	"etcd-wrapper/backup/archive/identity"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/internal/durable"
	"etcd-wrapper/internal/smallfile"
)

const (
	positionFile   = "recovery.json"
	positionFormat = 1
	maxPosition    = 64 << 10 // bytes of the file that are read
	maxRemembered  = 100      // ids of restores; the store remembers all
)

// record is what recovery keeps on the volume, durably.
type record struct {
	Format int       `json:"format"`
	Claim  *position `json:"claim,omitempty"` // what may be claimed and is not installed yet
	Done   []string  `json:"done,omitempty"`  // ids of restores that were done, the newest last
	Last   *position `json:"last,omitempty"`  // what was installed last
}

// position is all that is needed to bring a restore to its end that was cut off.
type position struct {
	Generation  archive.Generation `json:"generation"`    // to be claimed, as it is written
	Reservation int64              `json:"reservation"`   // the revision
	Head        segment.Position   `json:"head_position"` // where the generation before ended in the store; zero if it had nothing
	Aside       string             `json:"aside"`         // where the old data directory goes
	DataDir     string             `json:"data_dir"`      // that is replaced
	At          time.Time          `json:"at"`
	Premises    string             `json:"premises"` // what it was built for
}

// premises are how the volume stands, and what is asked for. If they change before a restore is claimed, it is out of date.
func (r *run) premises() string {
	asked := "nothing is asked for"
	if r.asked {
		to := r.options.Request.Target
		asked = fmt.Sprintf("%s asks for %s of generation %d", r.options.Request.ID, to, to.Generation)
	}
	return fmt.Sprintf("the volume ends with entry %d and revision %d, and %s", r.stands.Index, r.stands.HighestRevision, asked)
}

func (r *run) recordPath() string { return filepath.Join(r.options.VolumeDir, positionFile) }

// readRecord returns an empty record if there is none. One that cannot be read is an error that names the way out.
func (r *run) readRecord() (record, error) {
	content, err := smallfile.ReadHere(r.recordPath(), maxPosition)
	if errors.Is(err, fs.ErrNotExist) {
		return record{Format: positionFormat}, nil
	}
	var kept record
	if err == nil {
		err = json.Unmarshal(content, &kept)
	}
	if err == nil && kept.Format != positionFormat {
		err = fmt.Errorf("it has format %d, and this program knows %d", kept.Format, positionFormat)
	}
	if err != nil {
		return record{}, fmt.Errorf("cannot read the position of recovery in %s: %w; move the file away to begin again", r.recordPath(), err)
	}
	return kept, nil
}

func (r *run) writeRecord(kept record) error {
	content, err := json.MarshalIndent(kept, "", "  ")
	if err == nil {
		err = durable.Replace(r.recordPath(), append(content, '\n'))
	}
	if err != nil {
		return fmt.Errorf("cannot keep the position of recovery in %s: %w", r.recordPath(), err)
	}
	return nil
}

// change reads the record, has it changed and writes it.
func (r *run) change(how func(*record)) error {
	kept, err := r.readRecord()
	if err != nil {
		return err
	}
	how(&kept)
	return r.writeRecord(kept)
}

// readPosition finds out whether a run was cut off between its claim and its end.
func (r *run) readPosition() (Event, Payload) {
	kept, err := r.readRecord()
	if err != nil {
		return broke(err)
	}
	if kept.Claim == nil || kept.Claim.DataDir != r.member.DataDir {
		return NothingBegun, Payload{}
	}
	r.position = *kept.Claim
	switch found, err := r.whatIsThere(); {
	case err != nil:
		return broke(err)
	case found == "built":
		if err := r.hold(); err != nil {
			return broke(err)
		}
		if r.stands, err = datadir.ReadPosition(r.member.DataDir); datadir.SaysNothing(err) {
			return broke(err)
		}
		if r.identity, err = identity.Read(r.member.DataDir); err != nil {
			return broke(err)
		}
		if r.asked, err = r.wanted(); err != nil {
			return broke(err)
		}
		return ClaimFound, Payload{}
	case found == "installed":
		return InstallFound, Payload{}
	default: // somebody has tidied up
		return NothingBegun, Payload{}
	}
}

// usedHere tells whether a restore of that id was done on this volume.
func (r *run) usedHere(id string) (bool, error) {
	kept, err := r.readRecord()
	return slices.Contains(kept.Done, id), err
}

func (r *run) notePosition() (Event, Payload) {
	return next(r.change(func(kept *record) { kept.Claim = &r.position }))
}

func (r *run) forgetClaim() (Event, Payload) {
	kept, err := r.readRecord()
	if err != nil || kept.Claim == nil {
		return next(err)
	}
	kept.Claim = nil
	return next(r.writeRecord(kept))
}

// sayUsed tells people once why what they ask for is not done.
func (r *run) sayUsed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.said {
		r.options.Log.Info().Msgf("recovery: restore %q was done before, and is not done again; another one takes another --restore-id", r.options.Request.ID)
	}
	r.said = true
}

// rememberUsed keeps the id of a restore that was done elsewhere.
func (r *run) rememberUsed() error {
	return r.change(func(kept *record) { kept.use(r.options.Request.ID) })
}

// use adds the id of a restore that was done.
func (kept *record) use(id string) {
	if id != "" && !slices.Contains(kept.Done, id) {
		kept.Done = append(kept.Done, id)
		kept.Done = kept.Done[max(0, len(kept.Done)-maxRemembered):]
	}
}

func (r *run) remember() (Event, Payload) {
	err := r.change(func(kept *record) {
		kept.Claim, kept.Last = nil, &r.position
		kept.use(r.position.Generation.Restore)
	})
	if err == nil {
		r.asked, err = r.wanted()
	}
	if err == nil {
		r.identity, err = identity.Read(r.member.DataDir)
	}
	if err != nil {
		return broke(err)
	}
	return Installed, Payload{Asked: r.asked}
}
