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

// databaseRetry is the pause between two attempts to see the database released.
const databaseRetry = 200 * time.Millisecond

// Await returns when no other process holds the database, or when ctx is done. It calls writing whenever it finds that a
// process has it open for writing. Inside etcd the same wait could not be interrupted, and a stop during it would
// look like a stop of an etcd that had opened its data.
func Await(ctx context.Context, dataDir string, log zerolog.Logger, writing func()) error {
	path := layout.ToBackendFileName(dataDir)
	for logged := false; ; logged = true {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("gave up before etcd was opened: %w", err)
		}
		use := bootstrap.LockModeOf(path)
		if use == bootstrap.Unused {
			return nil
		}
		if use == bootstrap.Writing {
			writing()
		}
		if !logged {
			log.Warn().Str("path", path).Msg("another process holds the database; waiting until it is released")
		}
		_ = clock.Sleep(ctx, databaseRetry)
	}
}

// An Inspection is the result of Look.
type Inspection struct {
	*member

	contents    contents
	contentsErr error

	read      map[string]*history // by segments, of those that etcd replays
	start     uint64              // index of the snapshot that etcd starts from, 0 for none
	notes     []note              // of the entries after it
	replayErr error               // why they can't be read
}

// Look reads what must be known right before etcd opens the data, and no more than that: a start waits for it. It
// reads what the database records about itself, and the segments of the log that etcd replays. walDir is the directory of
// the log if that is not in the data directory, and empty otherwise.
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

// Uncommitted returns how many entries follow the last one that the log records as committed, and its index. A crash leaves such
// entries, acknowledged ones among them: the commit index is written with the entries that come next. With force-new-cluster etcd
// drops them all.
func (f *Inspection) Uncommitted() (entries, committed uint64) {
	tail := f.tail()
	if tail == nil || tail.last <= tail.committed {
		return 0, 0
	}
	return tail.last - tail.committed, tail.committed
}

// isDBMissing returns false for a file that cannot be inspected.
func (f *Inspection) isDBMissing() bool {
	none, err := isDBEmpty(f.database)
	return err == nil && none
}

// hasExternalLog reports whether the log is outside the member's directory.
func (f *Inspection) hasExternalLog() bool { return filepath.Dir(f.wal.path) != f.dir.path }

// tail returns the history of the last segment, up to where it becomes unreadable, and nil if there is none. The
// segment's name has the last index of the ones before; damage there makes etcd give up.
func (f *Inspection) tail() *history {
	if tail := f.read[f.lastSegment()]; tail != nil && tail.unread == nil {
		return tail
	}
	return nil
}

// readSegments returns the histories of segments. Each segment is read once, and all new ones at the same time: a start on a
// long log waits for this.
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
					_ = read.readLast(context.Background(), s) // what comes before the error is what counts
					return nil
				})
			})
		}
		histories = append(histories, f.read[name])
	}
	reading.Wait()
	return histories
}

// ClusterVersions returns the versions of the cluster that etcd meets when it opens the data, such as 3.6.0: it dies on one
// that is newer than itself. One is in the database, and others may be in the part of the log that etcd replays, which is
// what follows the newest snapshot, even if the database has all of that. An error means that the database or the log
// cannot be read; then some may be missing.
func (f *Inspection) ClusterVersions() (versions []string, err error) {
	versions = []string{f.contents.version}
	for _, n := range f.notes {
		if n.version != "" {
			versions = append(versions, n.version)
		}
	}
	return versions, errors.Join(f.contentsErr, f.replayErr)
}

// replayNotes returns the notes of the entries that etcd replays, and the index of the snapshot that they follow. If the log does
// not know a snapshot, etcd was killed between writing that and recording it, and starts from the one before.
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

// startingPoints returns the indexes in the names of snapshots, the newest first, and 0 for the start of the log.
func (m *member) startingPoints() (indexes []uint64) {
	for _, name := range slices.Backward(m.snapshots()) {
		if index, ok := snapshotIndex(name); ok {
			indexes = append(indexes, index)
		}
	}
	return append(indexes, 0)
}

// SetPermissions makes everything in the data directory accessible to its owner only, which a restore may have changed. What
// cannot be changed is logged.
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
		log.Warn().Err(err).Msg("the data directory's permissions could not be tightened")
	}
}
