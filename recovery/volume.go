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
	"strings"
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
	restoredSuffix   = ".restored"
	unfinishedSuffix = ".restoring"
)

// A localVolume is this member's volume: the data directory in use, and what is built next to it.
type localVolume struct {
	*session
	examine  func(context.Context) error
	served   bool             // data were served from the data directory, by the notes on the volume
	damage   error            // the result of the validation
	position datadir.Position // the zero value if it was not read
	identity archive.Identity // which cluster the data belong to
	refused  *mismatch        // the data were refused by an earlier comparison with the store; nil if they were not
	held     *os.File         // what was built, locked; nil if nothing is
}

func (v *localVolume) restoredDir() string { return v.member.DataDir + restoredSuffix }

func (v *localVolume) dbPath() string { return filepath.Join(v.member.DataDir, "member", "snap", "db") }

// hasMember reports whether a data directory has anything of etcd's.
func hasMember(dir string) (bool, error) {
	_, err := os.Lstat(filepath.Join(dir, "member"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// validate examines the data directory in use.
func (v *localVolume) validate() (Event, Facts, error) {
	if exists, err := hasMember(v.member.DataDir); (exists || err != nil) && v.member.Peers != nil {
		v.member.Peers.Publish(peers.Self{Volume: peers.Data}) // before the validation, which takes time
	}
	v.damage = v.examine(v.ctx)
	if v.ctx.Err() != nil || datadir.IsTransient(v.damage) {
		return "", Facts{}, cmp.Or(v.ctx.Err(), v.damage)
	}
	exists, err := hasMember(v.member.DataDir)
	err = cmp.Or(err, v.readIdentity(), v.readPosition(exists))
	v.logDone()
	if err == nil && v.damage == nil && v.position.Revision > 0 {
		err = v.checkRefused()
	}
	alone, remains := v.member.Alone && v.position.Members <= 1, exists || v.damage != nil
	state := VolumeValid
	switch {
	case v.damage != nil:
		state = VolumeCorrupt
	case !exists:
		state = VolumeEmpty
	case !alone && v.position.Members == 0 && v.position.Index == 0: // etcd was killed before it had stored anything
		state, v.position = VolumeEmpty, datadir.Position{}
	}
	valid := state == VolumeValid
	return Examined, Facts{
		Volume: state, Alone: alone, Joins: v.member.Joins, Peers: v.member.Peers != nil, Remains: remains, Asked: v.requested, Err: v.damage,
		Lost:         state == VolumeEmpty && v.served,
		Rejected:     valid && v.refused != nil,
		Unidentified: valid && v.position.ClusterID != 0 && !v.identity.Known(),
	}, err
}

// checkRefused notes damage if the data were refused because of rows that the disk has changed. Data that were refused
// for another reason are not judged by their rows, and neither are data that the user wants to keep. The error means
// that the rows cannot be read now.
func (v *localVolume) checkRefused() error {
	if v.refused == nil || v.refused.Last == 0 || v.options.Adopt != "" {
		return nil
	}
	revisions, changed := v.checkRows()
	if datadir.IsTransient(changed) {
		return changed
	}
	if slices.ContainsFunc(revisions, func(r int64) bool { return r >= v.refused.First && r <= v.refused.Last }) {
		v.damage = changed
	}
	return nil
}

// checkRows returns the revisions that the disk has changed since etcd wrote them, by its log, and an error that names
// one.
func (v *localVolume) checkRows() (revisions []int64, err error) {
	if revisions, err = datadir.ChangedRevisions(v.ctx, v.member.DataDir); len(revisions) > 0 {
		err = fmt.Errorf("revision %d on the volume is not what etcd's log has: the disk has changed it", revisions[0])
	}
	return revisions, err
}

// readPosition reads how far the data reach. Valid data that cannot be read completely must not be taken for less than
// they are: they are damaged, or cannot be compared now, which is the error.
func (v *localVolume) readPosition(exists bool) (err error) {
	v.position = datadir.Position{}
	if exists && (v.options.Archive != nil || v.member.Peers != nil) { // otherwise there is nothing to compare it with
		v.position, err = datadir.ReadPosition(v.member.DataDir)
	}
	switch {
	case err == nil || v.damage != nil:
		return nil
	case datadir.IsTransient(err):
		return fmt.Errorf("cannot read how far the data in %s reach: %w", v.member.DataDir, err)
	}
	v.damage = fmt.Errorf("not all of the data in %s can be read: %w", v.member.DataDir, err)
	return nil
}

// readIdentity reads which cluster the data belong to, and whether a restore is requested that was not done there.
func (v *localVolume) readIdentity() (err error) {
	if v.identity, err = archive.ReadIdentity(v.member.DataDir); err != nil {
		return fmt.Errorf("%w; move that file away, and start with --adopt and the ID in the store's cluster.json", err)
	}
	r, err := v.readRecord()
	v.requested = v.options.Request != nil && !slices.Contains(r.Done, v.options.Request.ID)
	if v.refused = r.Refused; v.refused != nil && v.refused.DataDir != v.member.DataDir {
		v.refused = nil
	}
	return err
}

// logDone logs once if a requested restore is not carried out, as it was done before.
func (v *localVolume) logDone() {
	if v.options.Request != nil && !v.requested && !v.logged {
		v.options.Log.Info().Msgf("recovery: restore %q was done before and is not repeated; another restore needs another --restore-id", v.options.Request.ID)
		v.logged = true
	}
}

// removeUnfinished removes what an unsuccessful attempt has built: copies of what the store has.
func (v *localVolume) removeUnfinished() (Event, Facts, error) {
	v.release()
	for _, path := range []string{v.restoredDir() + unfinishedSuffix, v.restoredDir()} {
		held, err := seed.Lock(path)
		if errors.Is(err, seed.ErrInUse) {
			return "", Facts{}, err
		}
		_ = held.Close() // even if it does not exist
		if err := os.RemoveAll(path); err != nil {
			return "", Facts{}, fmt.Errorf("cannot remove the rest of an earlier attempt: %w", err)
		}
	}
	return "", Facts{}, nil
}

// lock locks what was built for this process until release.
func (v *localVolume) lock() (err error) {
	v.release()
	v.held, err = seed.Lock(v.restoredDir())
	return err
}

func (v *localVolume) release() {
	_ = v.held.Close() // it was not written to
	v.held = nil
}

// preserve moves the data directory out of the way, unless that was done before.
func (v *localVolume) preserve(name string) (Event, Facts, error) {
	err := cmp.Or(v.checkRename(), v.checkUnchanged())
	if err == nil {
		err = moveData(v.member.DataDir, name)
	}
	if err != nil {
		return "", Facts{}, fmt.Errorf("cannot move %s out of the way: %w", v.member.DataDir, err)
	}
	v.position, v.identity, v.damage = datadir.Position{}, archive.Identity{}, nil
	return Moved, Facts{}, nil
}

func moveData(dir, name string) error {
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
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s exists already, or cannot be read", name)
	}
	return disk.Rename(dir, name)
}

// checkRename returns what prevents the data directory from being replaced by a rename.
func (v *localVolume) checkRename() error {
	if strings.HasPrefix(seed.ResolvePath(v.options.VolumeDir)+"/", v.member.DataDir+"/") {
		return fmt.Errorf("the data directory %s is the volume itself, so it cannot be replaced; set data-dir to a directory below it", v.member.DataDir)
	}
	return seed.CheckPath(v.member.DataDir)
}

// checkUnchanged checks that the data directory is as it was examined, and that no process has it open.
func (v *localVolume) checkUnchanged() error {
	if exists, err := hasMember(v.member.DataDir); err != nil || exists && v.facts.Volume == VolumeEmpty && !v.facts.Remains {
		return errors.Join(err, errors.New("data have appeared there since it was examined"))
	}
	if bootstrap.LockModeOf(v.dbPath()) == bootstrap.Writing {
		return fmt.Errorf("%w: a running etcd has %s open; stop it", seed.ErrInUse, v.dbPath())
	}
	return nil
}

// preserved returns the copies next to the data directory and the spool, oldest first, without the newest of each if
// that must stay.
func (v *localVolume) preserved(mustStay func(newest disk.PreservedCopy) bool) (all []disk.PreservedCopy) {
	for _, path := range []string{v.member.DataDir, v.options.SpoolDir} {
		copies := disk.PreservedCopies(path)
		if newest := len(copies) - 1; newest >= 0 && mustStay(copies[newest]) {
			copies = copies[:newest]
		}
		all = append(all, copies...)
	}
	slices.SortFunc(all, func(a, b disk.PreservedCopy) int { return a.At.Compare(b.At) })
	return all
}

// freeSpace deletes preserved copies, oldest first, until there is room for the source. They are never deleted for
// another reason. The newest stays until a later backup was verified. The store is asked about that for a limited
// time.
func (v *localVolume) freeSpace(source restore.Source, limit time.Duration) error {
	plan := seed.Seed{DataDir: v.restoredDir()}
	err := v.checkRoom(plan, source)
	if !errors.Is(err, restore.ErrNoRoom) {
		return err
	}
	ctx, cancel := context.WithTimeout(v.ctx, limit)
	defer cancel()
	for _, old := range v.preserved(func(newest disk.PreservedCopy) bool { return !v.isVerifiedSince(ctx, newest.At) }) {
		v.options.Log.Warn().Err(err).Str("deleted", old.Path).Msg("recovery: deleting a preserved copy, as the volume has no room for it")
		if removed := os.RemoveAll(old.Path); removed != nil {
			return removed
		}
		if err = v.checkRoom(plan, source); !errors.Is(err, restore.ErrNoRoom) {
			break
		}
	}
	return err
}

// isVerifiedSince reports whether a backup from after a time was restored to test it.
func (v *localVolume) isVerifiedSince(ctx context.Context, at time.Time) bool {
	if v.options.Archive == nil {
		return false
	}
	history, err := v.options.Archive.History(ctx)
	if err != nil || history.Newest() == nil {
		return false
	}
	return slices.ContainsFunc(history.Newest().Fulls, func(full archive.StoredFull) bool {
		return full.Err == nil && full.Time.After(at) && full.Result != nil && full.Result.Outcome == archive.Verified
	})
}

// roomTimeout bounds how long a member that restores nothing waits for the store to learn whether more copies may be
// deleted.
const roomTimeout = 5 * time.Second

// prepareStart makes room when etcd starts with valid data and the volume could not hold the database once more: a
// defragmentation needs that much, and etcd stops when the volume is full. It also warns of problems of a later
// restore.
func (v *localVolume) prepareStart() {
	info, err := os.Stat(v.dbPath())
	if err == nil {
		err = v.freeSpace(restore.Source{DatabaseBytes: info.Size()}, roomTimeout)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // without a database, it comes from the other members
		v.options.Log.Warn().Err(err).Msg("recovery: the volume is nearly full")
	}
	if v.options.Never {
		return
	}
	if err := v.checkRename(); err != nil {
		v.options.Log.Warn().Err(err).Msg("recovery: lost or damaged data could not be restored automatically")
	}
	if at := seed.MountedWithin(v.member.DataDir); at != "" {
		v.options.Log.Warn().Msgf("recovery: %s is a mount point: if the data were replaced, the next start would find a part of the old data there; mount the volume above the data directory", at)
	}
}
