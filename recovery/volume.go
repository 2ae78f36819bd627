package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/internal/disk"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/recovery/seed"
)

// Suffixes of names next to the data directory. The first belongs to a complete data directory that is not installed
// yet; while it is built, its name also has the second.
const (
	restored   = ".restored"
	unfinished = ".restoring"
)

func (r *run) restoredDir() string { return r.member.DataDir + restored }

// whatIsThere returns how far the restore of the position came: "built", "installed", or "" if nothing of it exists.
func (r *run) whatIsThere() (string, error) {
	if there, err := holdsMember(r.restoredDir()); there || err != nil {
		return "built", err
	}
	is, err := archive.ReadIdentity(r.member.DataDir)
	if claimed := r.position.Generation; err == nil && is.Cluster == claimed.Cluster && is.Generation == claimed.Number {
		return "installed", nil
	}
	return "", err
}

// holdsMember reports whether a data directory has anything of etcd's.
func holdsMember(dir string) (bool, error) {
	_, err := os.Lstat(filepath.Join(dir, "member"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// dropUnfinished removes what an unsuccessful attempt has built: copies of what the store has.
func (r *run) dropUnfinished() (Event, Facts) {
	r.release()
	for _, path := range []string{r.restoredDir() + unfinished, r.restoredDir()} {
		held, err := seed.Hold(path)
		if errors.Is(err, seed.ErrInUse) {
			return broke(err)
		}
		_ = held.Close() // even if it does not exist
		if err := os.RemoveAll(path); err != nil {
			return broke(fmt.Errorf("cannot remove what an earlier attempt has left: %w", err))
		}
	}
	return "", Facts{}
}

// validateVolume examines the data directory in use.
func (r *run) validateVolume() (Event, Facts) {
	if there, err := holdsMember(r.member.DataDir); (there || err != nil) && r.member.Peers != nil {
		r.member.Peers.Publish(peers.Self{Volume: peers.Data}) // before the validation, which takes time
	}
	r.result = r.examine(r.ctx)
	if r.ctx.Err() != nil || datadir.SaysNothing(r.result) {
		return broke(cmp.Or(r.ctx.Err(), r.result))
	}
	there, err := holdsMember(r.member.DataDir)
	if err = cmp.Or(err, r.recall(), r.stand(there)); err != nil {
		return broke(err)
	}
	if r.options.Request != nil && !r.asked {
		r.sayUsed()
	}
	return r.examined(there)
}

// examined returns the event of a data directory that was examined; there says whether it has anything of etcd's.
func (r *run) examined(there bool) (Event, Facts) {
	alone, there := r.member.Alone && r.stands.Members <= 1, there || r.result != nil
	found := VolumeValid
	switch {
	case r.result != nil:
		found = VolumeCorrupt
	case !there:
		found = VolumeEmpty
	case !alone && r.stands.Members == 0 && r.stands.Index == 0: // etcd was killed before it had stored anything
		found, r.stands = VolumeEmpty, datadir.Position{}
	}
	return Examined, Facts{
		Volume: found, Alone: alone, Joins: r.member.Joins, Peers: r.member.Peers != nil, Remains: there, Asked: r.asked, Err: r.result,
		Lost:         found == VolumeEmpty && r.lost,
		Rejected:     found == VolumeValid && r.refused,
		Unidentified: found == VolumeValid && r.stands.ClusterID != 0 && !r.identity.Known(),
	}
}

// stand reads how far a volume reaches. One that is valid so far, but cannot be read completely, must not be taken
// for less than it is: it is damaged, or cannot be judged now, which the error says.
func (r *run) stand(there bool) (err error) {
	r.stands, r.older = datadir.Position{}, nil
	r.own = cmp.Or(r.own, r.identity.Cluster)
	if there && (r.options.Archive != nil || r.member.Peers != nil) { // otherwise there is nothing to compare it with
		r.stands, err = datadir.ReadPosition(r.member.DataDir)
	}
	switch {
	case err == nil || r.result != nil:
		return nil
	case datadir.SaysNothing(err):
		return fmt.Errorf("cannot tell how far the data in %s go: %w", r.member.DataDir, err)
	}
	r.result = fmt.Errorf("not all of the data in %s can be read: %w", r.member.DataDir, err)
	return nil
}

// recall reads which cluster the data on the volume belong to, and whether a restore is requested that was not done
// there.
func (r *run) recall() (err error) {
	if r.identity, err = archive.ReadIdentity(r.member.DataDir); err != nil {
		return fmt.Errorf("%w; move that file away, and start with --adopt and the id in the store's cluster.json", err)
	}
	kept, err := r.readRecord()
	r.asked = r.options.Request != nil && !slices.Contains(kept.Done, r.options.Request.ID)
	r.refused = kept.Refused != nil && kept.Refused.DataDir == r.member.DataDir
	return err
}

// proveData validates what was built like any data directory, in full, and checks that older data which it replaces
// are an earlier state of it.
func (r *run) proveData() (Event, Facts) {
	warnings, err := r.options.Validate(r.ctx, r.restoredDir(), bootstrap.Full)
	for _, warning := range warnings {
		r.options.Log.Warn().Msg(warning)
	}
	switch {
	case r.ctx.Err() != nil, datadir.SaysNothing(err): // as when memory is exhausted
		return broke(cmp.Or(r.ctx.Err(), err))
	case err != nil:
		return Unproved, Facts{Err: err}
	case r.asked || r.core.Facts.Volume != VolumeValid || r.stands.Revision == 0: // requested, compared before, or nothing to compare
		return Proved, Facts{}
	}
	revision, err := datadir.Divergence(r.member.DataDir, r.restoredDir())
	switch {
	case err != nil:
		return broke(fmt.Errorf("cannot compare the volume with what was built: %w", err))
	case revision != 0:
		return Diverged, Facts{Err: fmt.Errorf("revision %d on the volume is not the one in %s, so they are no earlier state of it, as with a copy that was written to", revision, r.options.Archive)}
	}
	return Proved, Facts{}
}

// setVolumeAside moves the data directory, unless that was done before.
func (r *run) setVolumeAside() (Event, Facts) {
	if r.position.Aside == "" { // nothing was built that would replace it
		r.position.Aside = disk.PreservedName(r.member.DataDir, time.Now())
	}
	err := cmp.Or(r.movable(), r.unserved())
	if err == nil {
		err = setAside(r.member.DataDir, r.position.Aside)
	}
	if err != nil {
		return broke(fmt.Errorf("cannot set %s aside: %w", r.member.DataDir, err))
	}
	r.stands, r.identity, r.result = datadir.Position{}, archive.Identity{}, nil
	return Moved, Facts{}
}

func setAside(dir, to string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(entries) == 1 && entries[0].Name() == archive.IdentityFile: // a cluster was about to be founded
		if err := os.Remove(filepath.Join(dir, archive.IdentityFile)); err != nil {
			return err
		}
		fallthrough
	case len(entries) == 0:
		return os.Remove(dir) // fails if something is in it by now
	}
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is in the way, or cannot be looked at", to)
	}
	return disk.Rename(dir, to)
}

// installData gives what was built the name of the data directory.
func (r *run) installData() (Event, Facts) {
	if there, _ := r.whatIsThere(); there == "installed" {
		return "", Facts{}
	}
	if err := disk.Rename(r.restoredDir(), r.member.DataDir); err != nil {
		return broke(fmt.Errorf("cannot put the restored data in their place: %w", err))
	}
	return "", Facts{}
}

// hold locks what was built for this process until release.
func (r *run) hold() (err error) {
	r.release()
	r.held, err = seed.Hold(r.restoredDir())
	return err
}

func (r *run) release() {
	_ = r.held.Close() // it was not written to
	r.held = nil
}

// unserved checks that the data directory is as it was examined, and that no process has it open.
func (r *run) unserved() error {
	facts := r.core.Facts
	if there, err := holdsMember(r.member.DataDir); err != nil || there && facts.Volume == VolumeEmpty && !facts.Remains {
		return errors.Join(err, errors.New("data have appeared there since it was looked at"))
	}
	if database := filepath.Join(r.member.DataDir, "member", "snap", "db"); bootstrap.UseOf(database) == bootstrap.Writing {
		return fmt.Errorf("%w: an etcd that runs has %s open; end that", seed.ErrInUse, database)
	}
	return nil
}

// preserved returns the copies next to the data directory and the spool, oldest first, without the newest of each if
// that must stay.
func (r *run) preserved(stays func(newest disk.PreservedCopy) bool) (all []disk.PreservedCopy) {
	for _, path := range []string{r.member.DataDir, r.options.SpoolDir} {
		own := disk.PreservedCopies(path)
		if newest := len(own) - 1; newest >= 0 && stays(own[newest]) {
			own = own[:newest]
		}
		all = append(all, own...)
	}
	slices.SortFunc(all, func(a, b disk.PreservedCopy) int { return a.At.Compare(b.At) })
	return all
}

// makeRoom deletes preserved copies, oldest first, until there is room for the source. They are never deleted for
// another reason. The newest stays until a later backup was verified. The store is asked about that for a limited
// time.
func (r *run) makeRoom(source restore.Source, most time.Duration) error {
	err := r.measure(r.seed(), source)
	if !errors.Is(err, restore.ErrNoRoom) {
		return err
	}
	ctx, cancel := context.WithTimeout(r.ctx, most)
	defer cancel()
	for _, old := range r.preserved(func(newest disk.PreservedCopy) bool { return !r.verifiedSince(ctx, newest.At) }) {
		r.options.Log.Warn().Err(err).Str("deleted", old.Path).Msg("recovery: a preserved copy is deleted, as the volume has no room for it")
		if removed := os.RemoveAll(old.Path); removed != nil {
			return removed
		}
		if err = r.measure(r.seed(), source); !errors.Is(err, restore.ErrNoRoom) {
			break
		}
	}
	return err
}

// verifiedSince reports whether a backup from after a time was restored to test it.
func (r *run) verifiedSince(ctx context.Context, at time.Time) bool {
	if r.options.Archive == nil {
		return false
	}
	history, err := r.options.Archive.History(ctx)
	if err != nil || history.Newest() == nil {
		return false
	}
	return slices.ContainsFunc(history.Newest().Fulls, func(full archive.KeptFull) bool {
		return full.Err == nil && full.Time.After(at) && full.Result != nil && full.Result.Outcome == archive.Verified
	})
}

// relieving bounds how long a start with valid data waits for the store to learn whether more copies may be deleted.
const relieving = 5 * time.Second

// relieve makes room when etcd starts with valid data and the volume could not hold the database once more: a
// defragmentation needs that much, and etcd stops on a full volume.
func (r *run) relieve() {
	if len(r.preserved(func(disk.PreservedCopy) bool { return false })) == 0 {
		return
	}
	info, err := os.Stat(filepath.Join(r.member.DataDir, "member", "snap", "db"))
	if errors.Is(err, fs.ErrNotExist) {
		return // it comes from the other members
	}
	if err == nil {
		err = r.makeRoom(restore.Source{DatabaseBytes: info.Size()}, relieving)
	}
	if err != nil {
		r.options.Log.Warn().Err(err).Msg("recovery: the volume is nearly full")
	}
}
