package recovery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/internal/disk"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/recovery/seed"
)

const (
	positionFile   = "recovery.json"
	positionFormat = 1
	maxPosition    = 64 << 10 // maximum bytes of the file
	maxRemembered  = 100      // IDs of restores; the store has all
)

// A record is what recovery stores durably on the volume.
type record struct {
	Format int       `json:"format"`
	Claim  *position `json:"claim,omitempty"` // what may be claimed and is not installed yet
	Done   []string  `json:"done,omitempty"`  // ids of restores that were done, the newest last
	Last   *position `json:"last,omitempty"`  // what was installed last

	Refused *refusal `json:"refused,omitempty"` // of the data that are there, by a comparison with the store
}

// A refusal says that data were compared with the store and refused. They are compared again before they are served,
// even if the store cannot be reached then.
type refusal struct {
	DataDir string    `json:"data_dir"`
	Why     string    `json:"why"`
	At      time.Time `json:"at"`
}

// RememberRefusal stores on the volume that the data in a directory are not those of the store, for instance because
// the generation of a running etcd has ended. Call it once etcd is closed.
func (r *Recovery) RememberRefusal(dataDir string, why error) error {
	return r.change(func(kept *record) { kept.Refused = &refusal{seed.Place(dataDir), why.Error(), r.now().UTC()} })
}

// A position is what a later run needs to complete a restore that was cut off.
type position struct {
	Generation  archive.Generation `json:"generation"`    // to be claimed, as it is written
	Reservation int64              `json:"reservation"`   // the revision
	Head        format.Position    `json:"head_position"` // where the generation before ended in the store; zero if it had nothing
	Aside       string             `json:"aside"`         // where the old data directory goes
	DataDir     string             `json:"data_dir"`      // that is replaced
	At          time.Time          `json:"at"`
	Premises    string             `json:"premises"` // what it was built for
}

// premises describes the volume and the request. If they change before a restore is claimed, it is outdated.
func (r *run) premises() string {
	asked := "nothing is asked for"
	if r.asked {
		to := r.options.Request.Target
		asked = fmt.Sprintf("%s asks for %s of generation %d", r.options.Request.ID, to, to.Generation)
	}
	return fmt.Sprintf("the volume ends with entry %d and revision %d, and %s", r.stands.Index, r.stands.HighestRevision, asked)
}

func (r *Recovery) recordPath() string { return filepath.Join(r.options.VolumeDir, positionFile) }

// readRecord returns an empty record if there is none. If it cannot be read, the error names the way out.
func (r *Recovery) readRecord() (record, error) {
	content, err := disk.ReadHere(r.recordPath(), maxPosition)
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

// change reads the record, changes it and writes it.
func (r *Recovery) change(how func(*record)) error {
	kept, err := r.readRecord()
	if err != nil {
		return err
	}
	how(&kept)
	content, err := json.MarshalIndent(kept, "", "  ")
	if err == nil {
		err = disk.Replace(r.recordPath(), append(content, '\n'))
	}
	if err != nil {
		return fmt.Errorf("cannot keep the position of recovery in %s: %w", r.recordPath(), err)
	}
	return nil
}

// readPosition checks whether a run was cut off between its claim and its end.
func (r *run) readPosition() (Event, Facts) {
	kept, err := r.readRecord()
	if err != nil {
		return broke(err)
	}
	if kept.Claim == nil || kept.Claim.DataDir != r.member.DataDir {
		return NothingBegun, Facts{}
	}
	r.position = *kept.Claim
	switch found, err := r.whatIsThere(); {
	case err != nil:
		return broke(err)
	case found == "built":
		if err = r.hold(); err != nil {
			return broke(err)
		}
		if r.stands, err = datadir.ReadPosition(r.member.DataDir); !datadir.SaysNothing(err) {
			err = r.recall()
		}
		if err != nil {
			return broke(err)
		}
		return ClaimFound, Facts{}
	case found == "installed":
		return InstallFound, Facts{}
	default: // the user has removed what was built
		return NothingBegun, Facts{}
	}
}

func (r *run) notePosition() (Event, Facts) {
	return next(r.change(func(kept *record) { kept.Claim = &r.position }))
}

func (r *run) forgetClaim() (Event, Facts) {
	kept, err := r.readRecord()
	if err != nil || kept.Claim == nil {
		return next(err) // a full volume must not keep what was built from being removed
	}
	return next(r.change(func(kept *record) { kept.Claim = nil }))
}

// sayUsed logs once why a request is not carried out again.
func (r *run) sayUsed() {
	if !r.said {
		r.options.Log.Info().Msgf("recovery: restore %q was done before, and is not done again; another one takes another --restore-id", r.options.Request.ID)
	}
	r.said = true
}

// use adds the ID of a restore that was done.
func (kept *record) use(id string) {
	if id != "" && !slices.Contains(kept.Done, id) {
		kept.Done = append(kept.Done, id)
		kept.Done = kept.Done[max(0, len(kept.Done)-maxRemembered):]
	}
}

func (r *run) remember() (Event, Facts) {
	err := r.change(func(kept *record) {
		kept.Claim, kept.Last = nil, &r.position
		kept.use(r.position.Generation.Restore)
	})
	if err = cmp.Or(err, r.recall()); err != nil {
		return broke(err)
	}
	r.outcome.Ended = Restored
	return Installed, Facts{Asked: r.asked}
}

// claimGeneration reserves revisions and then creates the next generation, unless another process has. If the store
// cannot be verified by now, the claim is given up, as waiting does not help; the next question to the store reports
// what is wrong.
func (r *run) claimGeneration() (Event, Facts) {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	lost, err := r.claim(ctx)
	switch {
	case errors.Is(err, errNotAllHere):
		return PeersSilent, Facts{Err: err}
	case notVerified(err):
		return ClaimLost, Facts{Err: err}
	case err != nil:
		return StoreSilent, Facts{Err: err}
	case lost != nil:
		return ClaimLost, Facts{Err: lost}
	}
	r.silent = 0
	return Claimed, Facts{}
}

// claim may be repeated. It is lost if another cluster has created a generation, or if this one was extended: then
// what was built is outdated.
func (r *run) claim(ctx context.Context) (lost, err error) {
	wanted := r.position.Generation
	lineage, err := r.options.Archive.Lineage(ctx)
	if err != nil {
		return nil, err
	}
	if lineage.Newest().Number < wanted.Number {
		if lost, err := r.begin(ctx, lineage.Newest()); lost != nil || err != nil {
			return lost, err
		}
		if lineage, err = r.options.Archive.Lineage(ctx); err != nil {
			return nil, err
		}
	}
	if last := lineage.Newest(); last.Number != wanted.Number || last.Session != wanted.Session {
		return fmt.Errorf("generation %d was begun meanwhile by somebody else", last.Number), nil
	}
	head, err := r.options.Archive.Head(ctx, wanted.Number)
	if err == nil && !head.Empty() {
		lost = fmt.Errorf("generation %d has gone on already, up to revision %d", wanted.Number, head.Revision())
	}
	return lost, err
}

// begin creates the generation after the last one, unless another process was faster.
func (r *run) begin(ctx context.Context, last archive.Generation) (lost, err error) {
	a, wanted := r.options.Archive, r.position.Generation
	if lost, err := r.wentOn(ctx, last); lost != nil || err != nil {
		return lost, err
	}
	if lost, err := r.surveyAgain(ctx); lost != nil || err != nil {
		return lost, err
	}
	if last.Number > 0 {
		switch err := r.end(ctx, last, wanted, r.position.Head); {
		case errors.Is(err, archive.ErrMoved):
			return err, nil
		case err != nil:
			return nil, err
		}
	}
	err = a.Reserve(ctx, archive.Reservation{Cluster: wanted.Cluster, Generation: wanted.Number, Revision: r.position.Reservation, Created: wanted.Created})
	if err == nil || errors.Is(err, store.ErrExists) {
		err = a.BeginGeneration(ctx, wanted)
	}
	if errors.Is(err, store.ErrExists) {
		err = nil
	}
	return nil, err
}

// end ends the last generation for the one that follows, so that nothing can be added to what was read of it, up to a
// position if one is given. An end by another process is completed. If the head cannot be verified, no writer can
// continue from it either.
func (r *run) end(ctx context.Context, last, wanted archive.Generation, read format.Position) error {
	head, err := r.options.Archive.Head(ctx, last.Number)
	switch {
	case archive.NotVerified(err):
		return nil
	case err != nil:
		return err
	case goneOn(head, read):
		return archive.ErrMoved
	}
	err = r.options.Archive.End(ctx, last, head, wanted.Session, format.Ending{Successor: wanted.Number, Nonce: cmp.Or(wanted.Session, wanted.Cluster), At: wanted.Created})
	if errors.Is(err, archive.ErrEnded) {
		return nil
	}
	return err
}

// goneOn reports whether something was added to a generation since it was read, heartbeats included.
func goneOn(head archive.Head, read format.Position) bool {
	return !read.IsZero() && head.Position.Compare(read) > 0
}

// errNotAllHere reports a survey in which a member was missing.
var errNotAllHere = errors.New("not every other member has said by now that it has no data of use")

// surveyAgain asks the other members once more before the end: one may have returned with data while these were
// built, or while this program did not run.
func (r *run) surveyAgain(ctx context.Context) (lost, err error) {
	if r.member.Peers == nil {
		return nil, nil
	}
	c := r.member.Peers.Query(ctx, peers.Self{Volume: peers.Restores, Restore: r.position.Generation.Restore, Uploaded: true})
	switch c.Membership { //nolint:exhaustive // all others have a cluster
	case peers.Gone, peers.Founding, peers.Asking:
		return nil, nil
	case peers.Unknown:
		return nil, fmt.Errorf("%w: %w", errNotAllHere, cmp.Or(c.Missing, errors.New("one of them has some")))
	default:
		return errors.New("a member is back that has data"), nil
	}
}

// wentOn reports whether what is to be replaced was served since, here or elsewhere.
func (r *run) wentOn(ctx context.Context, last archive.Generation) (lost, err error) {
	if now := r.premises(); now != r.position.Premises {
		return fmt.Errorf("when it was built %s; now %s", r.position.Premises, now), nil
	}
	if r.position.Head.IsZero() || last.Number == 0 {
		return nil, nil
	}
	head, err := r.options.Archive.Head(ctx, last.Number)
	if err == nil && goneOn(head, r.position.Head) {
		lost = fmt.Errorf("generation %d has gone on meanwhile, up to revision %d", last.Number, head.Revision())
	}
	return lost, err
}
