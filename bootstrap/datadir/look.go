package datadir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	bolt "go.etcd.io/bbolt"
	layout "go.etcd.io/etcd/server/v3/storage/datadir"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/internal/clock"
)

// databaseRetry is the interval at which Await checks the database lock.
const databaseRetry = 200 * time.Millisecond

// Await waits until no other process has locked the database or ctx is done. Await calls writing whenever another
// process has the database open for writing. etcd would also wait for the lock, but that wait cannot be
// interrupted, and a stop during the wait would look as if etcd had already opened the data.
func Await(ctx context.Context, dataDir string, log zerolog.Logger, writing func()) error {
	path := layout.ToBackendFileName(dataDir)
	for logged := false; ; logged = true {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("stopped before opening etcd: %w", err)
		}
		use := bootstrap.LockModeOf(path)
		if use == bootstrap.Unused {
			return nil
		}
		if use == bootstrap.Writing {
			writing()
		}
		if !logged {
			log.Warn().Str("path", path).Msg("the database is locked by another process; waiting for the lock")
		}
		_ = clock.Sleep(ctx, databaseRetry)
	}
}

// An Inspection contains the metadata and log entries that Look has read from a data directory.
type Inspection struct {
	*member

	contents    contents
	contentsErr error

	read      map[string]*history // histories of the segments that etcd replays, by segment name
	start     uint64              // index of the snapshot from which etcd starts; 0 if there is none
	notes     []note              // notes on the entries after start
	replayErr error               // error from reading the entries
}

// Look reads the metadata of the database and the WAL segments that etcd replays. Look does not read anything else
// because every start waits for it. walDir is the WAL directory, or "" if the log is in the data directory.
func Look(dataDir, walDir string) *Inspection {
	f := &Inspection{member: survey(dataDir, walDir), contents: contents{keyless: true}, read: map[string]*history{}}
	f.contentsErr = readDB(f.database, func(tx *bolt.Tx) (err error) {
		f.contents, err = readContents(tx)
		return err
	})
	f.start, f.notes, f.replayErr = f.replayNotes()
	return f
}

// Empty reports whether etcd would start without any data.
func (f *Inspection) Empty() bool { return f.isDBMissing() && f.lastSegment() == "" }

// Uncommitted returns the number of entries after the last commit index in the log, and that commit index. A crash
// can leave uncommitted entries, some of which may have been acknowledged, because etcd writes the commit index with
// later entries. With force-new-cluster, etcd drops all uncommitted entries.
func (f *Inspection) Uncommitted() (entries, committed uint64) {
	tail := f.tail()
	if tail == nil || tail.last <= tail.committed {
		return 0, 0
	}
	return tail.last - tail.committed, tail.committed
}

// isDBMissing reports whether the database is known not to exist.
func (f *Inspection) isDBMissing() bool {
	none, err := isDBEmpty(f.database)
	return err == nil && none
}

// hasExternalLog reports whether the log is outside the member directory.
func (f *Inspection) hasExternalLog() bool { return filepath.Dir(f.wal.path) != f.dir.path }

// tail returns the history of the last segment up to the position where the segment becomes unreadable, or nil if
// there is no readable segment. The earlier segments are not needed: the name of the last segment contains the index
// at which they end, and etcd does not start if one of them is damaged.
func (f *Inspection) tail() *history {
	if tail := f.read[f.lastSegment()]; tail != nil && tail.unread == nil {
		return tail
	}
	return nil
}

// readSegments returns the histories of segments. The segments are read in parallel and only once, because every
// start waits for the result.
func (f *Inspection) readSegments(segments []string) (histories []*history) {
	var reading sync.WaitGroup
	for _, name := range segments {
		if f.read[name] == nil {
			read := &history{last: lastBefore(name)}
			f.read[name] = read
			reading.Go(func() {
				read.unread = readSegment(f.segment(name), func(s *segment) error {
					if name != f.lastSegment() {
						read.skim(s)
						return nil
					}
					_ = read.readLast(context.Background(), s) // only the records before an error matter
					return nil
				})
			})
		}
		histories = append(histories, f.read[name])
	}
	reading.Wait()
	return histories
}

// ClusterVersions returns the cluster versions that etcd reads from the data at startup, such as 3.6.0. etcd exits if
// it is older than any of the versions. The database contains one version, and the entries after the newest snapshot
// can contain others, even if the entries have already been applied. Versions may be missing if an error is returned.
func (f *Inspection) ClusterVersions() (versions []string, err error) {
	versions = []string{f.contents.version}
	for _, n := range f.notes {
		if n.version != "" {
			versions = append(versions, n.version)
		}
	}
	return versions, errors.Join(f.contentsErr, f.replayErr)
}

// replayNotes returns the notes on the entries that etcd replays, and the index of the snapshot from which etcd
// starts. If the log does not contain the newest snapshot, etcd was killed before adding it and starts from the
// previous one.
func (f *Inspection) replayNotes() (start uint64, notes []note, err error) {
	for _, start = range f.startingPoints() {
		known := start == 0
		for _, read := range f.readSegments(f.segmentsFrom(start)) {
			if read.lowest > 0 {
				notes = trimNotes(notes, read.lowest)
			}
			notes, known, err = append(notes, read.notes...), known || read.has(start), errors.Join(err, read.unread)
		}
		if known || err != nil {
			break
		}
		notes = nil
	}
	return start, slices.DeleteFunc(notes, func(n note) bool { return n.index <= start }), err
}

// startingPoints returns the indexes of all snapshots in descending order, followed by 0 for the start of the log.
func (m *member) startingPoints() (indexes []uint64) {
	for _, name := range slices.Backward(m.snapshots()) {
		if index, ok := snapshotIndex(name); ok {
			indexes = append(indexes, index)
		}
	}
	return append(indexes, 0)
}

// SetPermissions restricts access to the data directory and its contents to the owner, because a restore may have
// left looser permissions. A failure is only logged as a warning.
func SetPermissions(dataDir string, log zerolog.Logger) {
	err := filepath.WalkDir(dataDir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		switch {
		case err != nil:
			return err
		case info.IsDir() && info.Mode().Perm() != 0o700:
			return os.Chmod(path, 0o700)
		case info.Mode().IsRegular() && info.Mode().Perm() != 0o600:
			return os.Chmod(path, 0o600)
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn().Err(err).Msg("cannot restrict the permissions of the data directory")
	}
}
