package disk

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	infix = ".aside-"
	// layout is how the names tell when a copy was made. They sort by it.
	layout = "20060102T150405.000Z"
)

// PreservedCopy is what was at a path before it was moved out of the way. It stays in the directory of that path.
type PreservedCopy struct {
	Path string
	At   time.Time
}

// PreservedName is where to move what lies at a path at that time. Where the clock was set back it is a moment later than the newest
// copy, so that the newest always comes last.
func PreservedName(path string, at time.Time) string {
	if all := PreservedCopies(path); len(all) > 0 {
		if newest := all[len(all)-1].At; !at.Truncate(time.Millisecond).After(newest) {
			at = newest.Add(time.Millisecond)
		}
	}
	return path + infix + at.UTC().Format(layout)
}

// PreservedCopies are those of a path, the oldest first. A similar name that people have given is left out.
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
