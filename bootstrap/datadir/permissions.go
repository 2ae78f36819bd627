package datadir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"
)

// Tighten makes everything in the data directory accessible to its owner only, whoever restored it. What can't be changed
// is warned of.
func Tighten(dataDir string, log zerolog.Logger) {
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
