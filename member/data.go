package member

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	layout "go.etcd.io/etcd/server/v3/storage/datadir"
)

// dataPoll is how often the member checks that its data are still on the disk.
const dataPoll = 5 * time.Second

// dataFiles identifies what etcd has open: it goes on without an error when its files are unlinked, and loses all of it at its end.
type dataFiles struct {
	dir, wal string
	opened   map[string]os.FileInfo // the directories, which nothing replaces while etcd runs
}

// openedFiles returns the files of an etcd that has opened its data.
func (m *Member) openedFiles() dataFiles {
	f := dataFiles{dir: m.config.Dir, wal: m.config.WalDir, opened: map[string]os.FileInfo{}}
	if f.wal == "" {
		f.wal = layout.ToWALDir(f.dir)
	}
	for _, path := range []string{layout.ToSnapDir(f.dir), f.wal} {
		if info, err := os.Stat(path); err == nil {
			f.opened[path] = info
		}
	}
	return f
}

// check returns an error if the files are gone. What cannot be inspected now is not taken for gone.
func (f dataFiles) check() error {
	for path, opened := range f.opened {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(info, opened) {
			return f.gone(path)
		}
	}
	if _, err := os.Lstat(layout.ToBackendFileName(f.dir)); errors.Is(err, fs.ErrNotExist) {
		return f.gone(layout.ToBackendFileName(f.dir))
	}
	isSegment := func(entry os.DirEntry) bool { return strings.HasSuffix(entry.Name(), ".wal") }
	if entries, err := os.ReadDir(f.wal); err == nil && !slices.ContainsFunc(entries, isSegment) {
		return f.gone(f.wal)
	}
	return nil
}

func (f dataFiles) gone(path string) error {
	return fmt.Errorf("%s was removed or replaced while etcd runs: etcd keeps serving from memory, and everything is lost when it stops; "+
		"save the data now with etcdctl snapshot save, then restore them", path)
}

// watchData checks the files until ctx ends.
func (m *Member) watchData(ctx context.Context) {
	poll := time.NewTicker(dataPoll)
	defer poll.Stop()
	for {
		m.checkData()
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		}
	}
}

// checkData keeps the first finding: files that were put back are not those that etcd writes to.
func (m *Member) checkData() {
	if m.lostData.Load() != nil || len(m.files.opened) == 0 {
		return
	}
	if err := m.files.check(); err != nil {
		m.lostData.Store(&err)
		m.options.Log.Error().Msg("data: " + err.Error())
	}
}

// LostData returns why etcd's files are no longer on the disk, or nil while they are. It answers from memory, within 5 s of the loss.
func (m *Member) LostData() error {
	if lost := m.lostData.Load(); lost != nil {
		return *lost
	}
	return nil
}
