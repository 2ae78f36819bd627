package standalone

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
)

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

// explained is why the last validation failed, for whoever asks.
type explained struct {
	mu     sync.Mutex
	reason error
}

// set returns true if the reason is another one than before.
func (e *explained) set(reason error) (news bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	news = e.reason == nil || reason == nil || e.reason.Error() != reason.Error()
	e.reason = reason
	return news
}

func (e *explained) get() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reason
}
