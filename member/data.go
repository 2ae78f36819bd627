package member

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	layout "go.etcd.io/etcd/server/v3/storage/datadir"

	"etcd-wrapper/internal/clock"
)

// dataPoll is the interval between two checks that the data files still exist.
const dataPoll = 5 * time.Second

// dataFiles tracks the files that etcd has open. If the files are unlinked, etcd keeps running without an error and
// loses all data when it stops.
type dataFiles struct {
	dir, wal string
	opened   map[string]os.FileInfo // directories at the time when etcd opened them; nothing may replace them while etcd is running
	lost     atomic.Pointer[error]  // why the data is lost; nil if it is not
}

// open records the files. open must be called after etcd has opened its data.
func (f *dataFiles) open() {
	f.opened = map[string]os.FileInfo{}
	for _, path := range []string{layout.ToSnapDir(f.dir), f.wal} {
		if info, err := os.Stat(path); err == nil {
			f.opened[path] = info
		}
	}
}

// findLost returns an error if files were removed or replaced. A file that cannot be inspected does not count as
// lost.
func (f *dataFiles) findLost() error {
	for path, opened := range f.opened {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(info, opened) {
			return lostError(path)
		}
	}
	if _, err := os.Lstat(layout.ToBackendFileName(f.dir)); errors.Is(err, fs.ErrNotExist) {
		return lostError(layout.ToBackendFileName(f.dir))
	}
	isSegment := func(entry os.DirEntry) bool { return strings.HasSuffix(entry.Name(), ".wal") }
	if entries, err := os.ReadDir(f.wal); err == nil && !slices.ContainsFunc(entries, isSegment) {
		return lostError(f.wal)
	}
	return nil
}

func lostError(path string) error {
	return fmt.Errorf("%s was removed or replaced while etcd was running: etcd is serving from memory and loses all data when it stops; "+
		"save the data now with etcdctl snapshot save and restore it from that snapshot", path)
}

// watch checks the files until ctx is done.
func (f *dataFiles) watch(ctx context.Context, log zerolog.Logger) {
	f.check(log)
	for clock.Sleep(ctx, dataPoll) == nil {
		f.check(log)
	}
}

// check keeps the first error, because etcd does not write to files that reappear later.
func (f *dataFiles) check(log zerolog.Logger) {
	if f.lost.Load() != nil || len(f.opened) == 0 {
		return
	}
	if err := f.findLost(); err != nil {
		f.lost.Store(&err)
		log.Error().Msg("data: " + err.Error())
	}
}
