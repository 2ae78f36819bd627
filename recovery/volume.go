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

// What the names end with of what lies beside the data directory. The first is a whole data directory that has not taken its
// place; while it is made, its name has the second behind.
const (
	restored   = ".restored"
	unfinished = ".restoring"
)

func (r *run) restoredDir() string { return r.member.DataDir + restored }

// whatIsThere tells how far the restore of the position came: "built", "installed", or "" if there is nothing of it.
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

// holdsMember tells whether there is anything of etcd's in a data directory.
func holdsMember(dir string) (bool, error) {
	_, err := os.Lstat(filepath.Join(dir, "member"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// dropUnfinished removes what an attempt has built that came to nothing: copies of what is in the store.
func (r *run) dropUnfinished() (Event, Facts) {
	r.release()
	for _, path := range []string{r.restoredDir() + unfinished, r.restoredDir()} {
		held, err := seed.Hold(path)
		if errors.Is(err, seed.ErrInUse) {
			return broke(err)
		}
		_ = held.Close() // also if it is not there
		if err := os.RemoveAll(path); err != nil {
			return broke(fmt.Errorf("cannot remove what an earlier attempt has left: %w", err))
		}
	}
	return "", Facts{}
}

// validateVolume looks at the data directory in use.
func (r *run) validateVolume() (Event, Facts) {
	if there, err := holdsMember(r.member.DataDir); (there || err != nil) && r.member.Peers != nil {
		r.member.Peers.Tell(peers.Self{Holds: peers.Data}) // at once: to validate them takes time
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

// examined is the event of a data directory that was looked at; there says whether it has anything of etcd's.
func (r *run) examined(there bool) (Event, Facts) {
	alone, there := r.member.Alone && r.stands.Members <= 1, there || r.result != nil
	found := VolumeValid
	switch {
	case r.result != nil:
		found = VolumeCorrupt
	case !there:
		found = VolumeEmpty
	case !alone && r.stands.Members == 0 && r.stands.Index == 0: // an etcd was killed before it had stored anything
		found, r.stands = VolumeEmpty, datadir.Position{}
	}
	return Examined, Facts{
		Volume: found, Alone: alone, Joins: r.member.Joins, Peers: r.member.Peers != nil, Remains: there, Asked: r.asked, Err: r.result,
		Lost:         found == VolumeEmpty && r.lost,
		Rejected:     found == VolumeValid && r.refused,
		Unidentified: found == VolumeValid && r.stands.ClusterID != 0 && !r.identity.Known(),
	}
}

// stand finds out where a volume stands. One that is valid so far, and of which not all can be read, must not be taken for less
// than it is: it is broken, or cannot be told of now, which the error says.
func (r *run) stand(there bool) (err error) {
	r.stands, r.older = datadir.Position{}, nil
	r.own = cmp.Or(r.own, r.identity.Cluster)
	if there && (r.options.Archive != nil || r.member.Peers != nil) { // otherwise there is nobody to compare it with
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

// recall reads whose the data on the volume are, and whether a restore is asked for that the volume has not seen.
func (r *run) recall() (err error) {
	if r.identity, err = archive.ReadIdentity(r.member.DataDir); err != nil {
		return fmt.Errorf("%w; move that file away, and start with --adopt and the id in the store's cluster.json", err)
	}
	kept, err := r.readRecord()
	r.asked = r.options.Request != nil && !slices.Contains(kept.Done, r.options.Request.ID)
	r.refused = kept.Refused != nil && kept.Refused.DataDir == r.member.DataDir
	return err
}

// proveData validates what was built as any data directory, in full, and sees that data which are to be replaced for being
// older are an earlier state of it.
func (r *run) proveData() (Event, Facts) {
	warnings, err := r.options.Validate(r.ctx, r.restoredDir(), bootstrap.Full)
	for _, warning := range warnings {
		r.options.Log.Warn().Msg(warning)
	}
	switch {
	case r.ctx.Err() != nil, datadir.SaysNothing(err): // as when there is no memory for it
		return broke(cmp.Or(r.ctx.Err(), err))
	case err != nil:
		return Unproved, Facts{Err: err}
	case r.asked || r.core.Facts.Volume != VolumeValid || r.stands.Revision == 0: // it was asked for, compared before, or there is nothing to compare
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

// setVolumeAside moves the data directory out of the way, unless that was done before.
func (r *run) setVolumeAside() (Event, Facts) {
	if r.position.Aside == "" { // nothing is built that would be in the place of it
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

// hold keeps what was built for this process until release.
func (r *run) hold() (err error) {
	r.release()
	r.held, err = seed.Hold(r.restoredDir())
	return err
}

func (r *run) release() {
	_ = r.held.Close() // nothing was written, if anything is held
	r.held = nil
}

// unserved says that the data directory is as it was examined, and that nobody has it open.
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

// preserved are the copies beside the data directory and the spool, the oldest first, but for the newest of each if that
// has to stay.
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

// makeRoom lets go of what was set aside until there is room for what the source leads to, the oldest first: that and
// nothing else is what it is ever deleted for. The newest stays until a backup was verified that is younger.
// The store is asked about that for so long at most.
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

// verifiedSince tells whether a backup that was made after that time has been restored to test it.
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

// relieving is how long a start whose data are in order waits for the store at most, to learn whether more may go.
const relieving = 5 * time.Second

// relieve makes room where etcd starts with data that are in order, if the volume would not hold the database once more: etcd
// needs that much when it is defragmented, and stops when it has none.
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
