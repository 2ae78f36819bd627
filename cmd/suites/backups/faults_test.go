package backups_test

import (
	"io/fs"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"etcd-wrapper/backup/store/storetest"
)

// fault is what happens to a store, and how it is undone.
type fault struct{ begin, end func() error }

// awayOrClosed are the faults of a folder.
func (m *member) awayOrClosed() []fault {
	away := m.mount + ".away"
	return []fault{
		{func() error { return os.Rename(m.mount, away) }, func() error { return os.Rename(away, m.mount) }},
		{func() error { return m.allow(0o500) }, func() error { return m.allow(0o700) }},
	}
}

// failing are the faults of a network.
func failing(proxy *storetest.Proxy) (all []fault) {
	for _, begin := range []func(){
		func() { proxy.Refuse(http.StatusServiceUnavailable) },
		func() { proxy.Delay(2 * time.Second) },
		func() { proxy.LoseReply(math.MaxInt) },
		func() { proxy.CutUploads(200) },
		func() { proxy.CutDownloads(200) },
	} {
		all = append(all, fault{func() error { begin(); return nil }, func() error { proxy.Heal(); return nil }})
	}
	return all
}

// allow sets what may be done in all directories of the store.
func (m *member) allow(mode fs.FileMode) error {
	return filepath.WalkDir(m.mount, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil // it was a file of an upload
		}
		return os.Chmod(path, mode)
	})
}
