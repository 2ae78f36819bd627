package disk

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	infix = ".aside-"
	// layout is the time format of a copy's name. Names sort by time.
	layout = "20060102T150405.000Z"
)

// PreservedCopy is a file or directory that was moved out of the way. It stays in its directory.
type PreservedCopy struct {
	Path string
	At   time.Time
}

// PreservedName returns the name that the file or directory at path is moved to. If the clock was set back, the name
// is a millisecond later than the newest copy's, so that the newest always sorts last.
func PreservedName(path string, at time.Time) string {
	if all := PreservedCopies(path); len(all) > 0 {
		if newest := all[len(all)-1].At; !at.Truncate(time.Millisecond).After(newest) {
			at = newest.Add(time.Millisecond)
		}
	}
	return path + infix + at.UTC().Format(layout)
}

// PreservedCopies returns the preserved copies of a path, the oldest first. Similar names that users chose are not
// among them.
func PreservedCopies(path string) (all []PreservedCopy) {
	if path == "" {
		return nil
	}
	prefix := path + infix
	entries, _ := os.ReadDir(filepath.Dir(prefix)) // sorted; what can't be listed is not there
	for _, entry := range entries {
		stamp, found := strings.CutPrefix(entry.Name(), filepath.Base(prefix))
		if at, err := time.Parse(layout, stamp); found && err == nil {
			all = append(all, PreservedCopy{prefix + stamp, at})
		}
	}
	return all
}
