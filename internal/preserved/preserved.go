// Package preserved names the copies that are kept of what is moved out of the way, and finds them again. A copy stays in the
// directory of what it was.
package preserved

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

// Copy is what was at a path before.
type Copy struct {
	Path string
	At   time.Time
}

// Name is where to move what lies at a path at that time. Where the clock was set back it is a moment later than the newest
// copy, so that the newest always comes last.
func Name(path string, at time.Time) string {
	if all := Copies(path); len(all) > 0 {
		if newest := all[len(all)-1].At; !at.Truncate(time.Millisecond).After(newest) {
			at = newest.Add(time.Millisecond)
		}
	}
	return path + infix + at.UTC().Format(layout)
}

// Copies are those of a path, the oldest first. A similar name that people have given is left out.
func Copies(path string) (all []Copy) {
	if path == "" {
		return nil
	}
	prefix := path + infix
	entries, _ := os.ReadDir(filepath.Dir(prefix)) // sorted; what can't be listed is not there
	for _, entry := range entries {
		stamp, found := strings.CutPrefix(entry.Name(), filepath.Base(prefix))
		if at, err := time.Parse(layout, stamp); found && err == nil {
			all = append(all, Copy{prefix + stamp, at})
		}
	}
	return all
}
