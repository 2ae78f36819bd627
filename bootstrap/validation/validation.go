// Package validation looks at a data directory before etcd may open it, in a process of its own, and remembers what it found
// wrong with it.
//
// A validation only reads. It never repairs, moves or deletes. What becomes of data that are broken or lost is decided by
// recovery, which asks for the validation.
package validation

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
)

// Func validates the etcd data directory at dataDir as deeply as mode asks for. It returns nil if etcd may open
// the directory and otherwise says what is broken. Warnings are of what is damaged and etcd can do without. It has to end
// soon after ctx does. datadir.Verify is one, in this process.
type Func = func(ctx context.Context, dataDir string, mode bootstrap.Mode) (warnings []string, err error)

// Validator validates a volume's data directory again and again. It is for one goroutine at a time.
type Validator struct {
	Run Func // how a validation is run

	last memory
}

// Validate says what is wrong with the data directory. Data that have not changed since the last verdict against them are not read
// again. The log is told of a validation that begins, and of its warnings.
func (v *Validator) Validate(ctx context.Context, dataDir string, mode bootstrap.Mode, log zerolog.Logger) error {
	looks := lookAt(dataDir, mode)
	if known := v.last.recall(looks); known != nil {
		return unfit(dataDir, known)
	}
	log.Info().Msg("validation begins")
	warnings, err := v.Run(ctx, dataDir, mode)
	for _, warning := range warnings {
		log.Warn().Msg(warning)
	}
	v.last.keep(looks, err)
	return unfit(dataDir, err)
}

// unfit is a verdict against the data directory, if it is one.
func unfit(dataDir string, verdict error) error {
	if verdict == nil || datadir.SaysNothing(verdict) {
		return verdict
	}
	return fmt.Errorf("data directory %s is corrupt or cannot be used: %w", dataDir, verdict)
}

// verdictLasts is how long a verdict about data that have not changed is believed: what a disk itself got wrong may pass
// without a trace in its files.
const verdictLasts = 10 * time.Minute

// memory keeps the last verdict against a data directory, so that data which have not changed are not read again and
// again. Its methods are called by one validation at a time.
type memory struct {
	of      looks
	at      time.Time
	verdict error // nil if there is none
}

// looks are what a verdict is about: a directory as it was, and how deeply it was looked at.
type looks struct {
	dataDir string
	mode    bootstrap.Mode
	files   [sha256.Size]byte
}

// recall returns the verdict on data that look like that, or nil.
func (m *memory) recall(now looks) error {
	if m.verdict == nil || m.of != now || time.Since(m.at) > verdictLasts {
		return nil
	}
	return m.verdict
}

// keep remembers what is wrong with data that looked like that.
func (m *memory) keep(of looks, verdict error) {
	if datadir.SaysNothing(verdict) {
		verdict = nil
	}
	*m = memory{of: of, at: time.Now(), verdict: verdict}
}

// lookAt takes a fingerprint of all names, sizes, times, modes and inodes. Nothing but a change of the files, which the
// change time tells of, makes another one. A directory that can't be listed looks like an empty one.
func lookAt(dataDir string, mode bootstrap.Mode) looks {
	var seen strings.Builder
	_ = filepath.WalkDir(dataDir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			fmt.Fprintf(&seen, "%q: %v\n", path, err)
			return nil //nolint:nilerr // it is part of how the directory looks
		}
		info, err := entry.Info()
		if err != nil {
			fmt.Fprintf(&seen, "%q: %v\n", path, err)
			return nil //nolint:nilerr // as above
		}
		fmt.Fprintf(&seen, "%q %v %d %d %s\n", path, info.Mode(), info.Size(), info.ModTime().UnixNano(), inode(info))
		return nil
	})
	return looks{dataDir: dataDir, mode: mode, files: sha256.Sum256([]byte(seen.String()))}
}
