package member

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"golang.org/x/sys/unix"
)

// databaseRetry is the pause before looking again whether another process still holds the database.
const databaseRetry = 200 * time.Millisecond

// awaitDatabase returns when no other process holds the database, or when ctx ends. Inside etcd the same wait could not
// be interrupted, and a stop during it would look like a stop of an etcd that had opened its data.
func awaitDatabase(ctx context.Context, dataDir string, log zerolog.Logger) error {
	path := datadir.ToBackendFileName(dataDir)
	for told := false; ; told = true {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("gave up before etcd was opened: %w", err)
		}
		if !held(path) {
			return nil
		}
		if !told {
			log.Warn().Str("path", path).Msg("another process holds the database; waiting until it lets go")
		}
		select {
		case <-ctx.Done():
		case <-time.After(databaseRetry):
		}
	}
}

// held reports whether another process has bbolt's lock on the file. What can't be told is left to etcd to find out.
func held(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close() // nothing was written; closing lets go of the lock
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	return errors.Is(err, unix.EWOULDBLOCK)
}

// tighten makes everything in the data directory accessible to its owner only, whoever restored it.
func tighten(dataDir string, log zerolog.Logger) {
	err := filepath.WalkDir(dataDir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return chmod(path, entry)
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn().Err(err).Msg("the data directory's permissions could not be tightened")
	}
}

func chmod(path string, entry fs.DirEntry) error {
	want := fs.FileMode(0o600)
	if entry.IsDir() {
		want = 0o700
	} else if !entry.Type().IsRegular() {
		return nil
	}
	info, err := entry.Info()
	if err != nil || info.Mode().Perm() == want {
		return err
	}
	return os.Chmod(path, want)
}
