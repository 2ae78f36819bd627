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

// A fault breaks a store when it begins and repairs it when it ends.
type fault struct{ begin, end func() error }

// folderFaults returns faults of a store in a directory: it is unmounted, or it cannot be written.
func (m *member) folderFaults() []fault {
	away := m.mount + ".away"
	return []fault{
		{func() error { return os.Rename(m.mount, away) }, func() error { return os.Rename(away, m.mount) }},
		{func() error { return m.allow(0o500) }, func() error { return m.allow(0o700) }},
	}
}

// proxyFaults returns faults of a server that the proxy simulates: errors, delays, lost replies and aborted transfers.
func proxyFaults(proxy *storetest.Proxy) (all []fault) {
	for _, faults := range []storetest.Faults{
		{Status: http.StatusServiceUnavailable}, {Delay: 2 * time.Second}, {LostReplies: math.MaxInt}, {UploadLimit: 200}, {DownloadLimit: 200},
	} {
		inject := func(faults storetest.Faults) func() error {
			return func() error { proxy.Inject(faults); return nil }
		}
		all = append(all, fault{inject(faults), inject(storetest.Faults{})})
	}
	return all
}

// allow sets the permissions of all directories in the store.
func (m *member) allow(mode fs.FileMode) error {
	return filepath.WalkDir(m.mount, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil // an error means that the program has just removed a temporary file
		}
		return os.Chmod(path, mode)
	})
}
