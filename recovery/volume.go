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

	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/internal/disk"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/recovery/seed"
)

// Suffixes of directories next to the data directory. restoredSuffix marks a complete data directory that is not
// installed yet. unfinishedSuffix is appended to it during the build.
const (
	restoredSuffix   = ".restored"
	unfinishedSuffix = ".restoring"
)

// A localVolume is this member's volume: the data directory and everything built next to it.
type localVolume struct {
	*session
	examine  func(context.Context) error
	served   bool             // whether the records on the volume show that a run served data from the data directory
	damage   error            // damage to the data; nil if there is none
	position datadir.Position // zero if the position was not read
	identity archive.Identity // cluster that the data belongs to
	refused  *mismatch        // set if an earlier comparison with the store rejected the data
	held     *os.File         // lock on the built directory; nil if nothing is built
}

func (v *localVolume) restoredDir() string { return v.member.DataDir + restoredSuffix }

func (v *localVolume) dbPath() string { return filepath.Join(v.member.DataDir, "member", "snap", "db") }

// hasMember reports whether a data directory contains etcd data.
func hasMember(dir string) (bool, error) {
	_, err := os.Lstat(filepath.Join(dir, "member"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// validate validates the data directory and reads the position and the identity of the data.
func (v *localVolume) validate() (Event, Facts, error) {
	if exists, err := hasMember(v.member.DataDir); (exists || err != nil) && v.member.Peers != nil {
		v.member.Peers.Publish(peers.Self{Volume: peers.Data}) // publish first, because validation can take a while
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
	case !alone && v.position.Members == 0 && v.position.Index == 0: // etcd was killed before it stored anything
		state, v.position = VolumeEmpty, datadir.Position{}
	}
	valid := state == VolumeValid
	return Examined, Facts{Asked: v.requested, Err: v.damage, VolumeFacts: VolumeFacts{
		Volume: state, Alone: alone, Joins: v.member.ClusterState == embed.ClusterStateFlagExisting, Peers: v.member.Peers != nil, Remains: remains,
		Lost:         state == VolumeEmpty && v.served,
		Rejected:     valid && v.refused != nil,
		Unidentified: valid && v.position.ClusterID != 0 && !v.identity.Known(),
	}}, err
}

// checkRefused marks the data as damaged if it was rejected earlier because the disk had changed rows. Data that
// was rejected for another reason or that the user wants to keep is left alone. An error means that the rows are
// temporarily unreadable.
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

// checkRows returns the revisions whose rows differ from etcd's log because the disk has changed them. The error
// names the first such revision.
func (v *localVolume) checkRows() (revisions []int64, err error) {
	if revisions, err = datadir.ChangedRevisions(v.ctx, v.member.DataDir); len(revisions) > 0 {
		err = fmt.Errorf("revision %d on the volume differs from etcd's log: the disk has corrupted it", revisions[0])
	}
	return revisions, err
}

// readPosition reads the position of the data. If valid data cannot be read completely, readPosition marks it as
// damaged or returns an error, so that it is not mistaken for older data.
func (v *localVolume) readPosition(exists bool) (err error) {
	v.position = datadir.Position{}
	if exists && (v.options.Archive != nil || v.member.Peers != nil) { // otherwise, nothing can be compared
		v.position, err = datadir.ReadPosition(v.member.DataDir)
	}
	switch {
	case err == nil || v.damage != nil:
		return nil
	case datadir.IsTransient(err):
		return fmt.Errorf("cannot read the last revision of the data in %s: %w", v.member.DataDir, err)
	}
	v.damage = fmt.Errorf("cannot read all of the data in %s: %w", v.member.DataDir, err)
	return nil
}

// readIdentity reads which cluster the data belongs to, and whether a requested restore still has to be done.
func (v *localVolume) readIdentity() (err error) {
	if v.identity, err = archive.ReadIdentity(v.member.DataDir); err != nil {
		return fmt.Errorf("%w; move the file aside and start with --adopt and the cluster ID from the store's cluster.json", err)
	}
	r, err := v.readRecord()
	v.requested = v.options.Request != nil && !slices.Contains(r.Done, v.options.Request.ID)
	if v.refused = r.Refused; v.refused != nil && v.refused.DataDir != v.member.DataDir {
		v.refused = nil
	}
	return err
}

// logDone logs once that a requested restore is skipped because it was done earlier.
func (v *localVolume) logDone() {
	if v.options.Request != nil && !v.requested && !v.logged {
		v.options.Log.Info().Msgf("recovery: restore %q has already been done; to restore again, set a new --restore-id", v.options.Request.ID)
		v.logged = true
	}
}

// removeUnfinished removes the directories of a failed attempt. Nothing is lost, because the directories contain
// only copies of data from the store.
func (v *localVolume) removeUnfinished() (Event, Facts, error) {
	v.release()
	for _, path := range []string{v.restoredDir() + unfinishedSuffix, v.restoredDir()} {
		held, err := seed.Lock(path)
		if errors.Is(err, seed.ErrInUse) {
			return "", Facts{}, err
		}
		_ = held.Close() // fails if the directory does not exist
		if err := os.RemoveAll(path); err != nil {
			return "", Facts{}, fmt.Errorf("cannot remove files from an earlier attempt: %w", err)
		}
	}
	return "", Facts{}, nil
}

// lock locks the built directory until release is called.
func (v *localVolume) lock() (err error) {
	v.release()
	v.held, err = seed.Lock(v.restoredDir())
	return err
}

func (v *localVolume) release() {
	_ = v.held.Close() // nothing was written, so a close error is harmless
	v.held = nil
}

// preserve renames the data directory unless an earlier run has already done so.
func (v *localVolume) preserve(name string) (Event, Facts, error) {
	err := cmp.Or(v.checkRename(), v.checkUnchanged())
	if err == nil {
		err = moveData(v.member.DataDir, name)
	}
	if err != nil {
		return "", Facts{}, fmt.Errorf("cannot move %s aside: %w", v.member.DataDir, err)
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
	case len(entries) == 1 && entries[0].Name() == archive.IdentityFile: // etcd has never started
		if err := os.Remove(filepath.Join(dir, archive.IdentityFile)); err != nil {
			return err
		}
		fallthrough
	case len(entries) == 0:
		return os.Remove(dir) // fails if the directory is no longer empty
	}
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s already exists or cannot be read", name)
	}
	return disk.Rename(dir, name)
}

// checkRename returns an error if the data directory cannot be replaced by renaming.
func (v *localVolume) checkRename() error {
	if strings.HasPrefix(seed.ResolvePath(v.options.VolumeDir)+"/", v.member.DataDir+"/") {
		return fmt.Errorf("the data directory %s is the root of the volume and cannot be replaced; set data-dir to a subdirectory", v.member.DataDir)
	}
	return seed.CheckPath(v.member.DataDir)
}

// checkUnchanged returns an error if the data directory has changed since it was examined or if a process has it
// open.
func (v *localVolume) checkUnchanged() error {
	if exists, err := hasMember(v.member.DataDir); err != nil || exists && v.facts.Volume == VolumeEmpty && !v.facts.Remains {
		return errors.Join(err, errors.New("data appeared in the directory after the volume was examined"))
	}
	if bootstrap.LockModeOf(v.dbPath()) == bootstrap.Writing {
		return fmt.Errorf("%w: an etcd process has %s open; stop that process", seed.ErrInUse, v.dbPath())
	}
	return nil
}

// preserved returns the copies of the data directory and the spool, oldest first. The newest copy of each is
// omitted if mustStay returns true for it.
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

// freeSpace deletes preserved copies, oldest first, until the source fits on the volume. No other code deletes
// preserved copies. The newest copy is kept until a later backup has been verified. limit is the timeout for
// requesting the verified backups from the store.
func (v *localVolume) freeSpace(source restore.Source, limit time.Duration) error {
	plan := seed.Seed{DataDir: v.restoredDir()}
	err := v.checkRoom(plan, source)
	if !errors.Is(err, restore.ErrNoRoom) {
		return err
	}
	ctx, cancel := context.WithTimeout(v.ctx, limit)
	defer cancel()
	for _, old := range v.preserved(func(newest disk.PreservedCopy) bool { return !v.isVerifiedSince(ctx, newest.At) }) {
		v.options.Log.Warn().Err(err).Str("deleted", old.Path).Msg("recovery: deleting a preserved copy to free space on the volume")
		if removed := os.RemoveAll(old.Path); removed != nil {
			return removed
		}
		if err = v.checkRoom(plan, source); !errors.Is(err, restore.ErrNoRoom) {
			break
		}
	}
	return err
}

// isVerifiedSince reports whether a backup taken after the given time has passed a restore test.
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

// roomTimeout is the timeout for requesting the verified backups from the store if nothing is restored. If the store
// does not respond in time, the newest copies are kept.
const roomTimeout = 5 * time.Second

// prepareStart frees space before etcd starts with valid data if a second copy of the database would not fit on the
// volume. Defragmentation needs that space, and etcd exits if the volume is full. prepareStart also warns about
// problems that would make a later restore fail.
func (v *localVolume) prepareStart() {
	info, err := os.Stat(v.dbPath())
	if err == nil {
		err = v.freeSpace(restore.Source{DatabaseBytes: info.Size()}, roomTimeout)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a missing database is normal, because the peers provide one
		v.options.Log.Warn().Err(err).Msg("recovery: the volume may have no room for a second copy of the database")
	}
	if v.options.Never {
		return
	}
	if err := v.checkRename(); err != nil {
		v.options.Log.Warn().Err(err).Msg("recovery: automatic recovery of lost or damaged data would fail")
	}
	if at := seed.MountedWithin(v.member.DataDir); at != "" {
		v.options.Log.Warn().Msgf("recovery: %s is a mount point, so part of the old data would remain there after a restore; mount the volume above the data directory", at)
	}
}
