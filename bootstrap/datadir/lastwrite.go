package datadir

import (
	"os"
	"time"
)

// LastWrite is when etcd last wrote to the log of a data directory, by the file system: nothing was acknowledged later. It is later
// than that if something else has written there since, and zero if there is no log that can be looked at.
func LastWrite(dataDir string) (last time.Time) {
	m := survey(dataDir, "")
	for _, name := range m.segments() {
		if info, err := os.Lstat(m.segment(name)); err == nil && info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	return last
}
