// Package aside gives a name to what is moved out of the way and kept, and finds it again: it stays in the same directory.
package aside

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	infix = ".aside-"
	// layout is how the names tell when it was set aside. They sort by it.
	layout = "20060102T150405.000Z"
)

// Aside is something that was set aside.
type Aside struct {
	Path string
	At   time.Time
}

// Name is the path that what lies at path is moved to at that time. Where a clock was put back it is a moment later than the
// newest one there is, so that the newest always comes last.
func Name(path string, at time.Time) string {
	if all := Beside(path); len(all) > 0 {
		if newest := all[len(all)-1].At; !at.Truncate(time.Millisecond).After(newest) {
			at = newest.Add(time.Millisecond)
		}
	}
	return path + infix + at.UTC().Format(layout)
}

// Beside is what was set aside from a path, the oldest first. A similar name that people have given is left out.
func Beside(path string) (all []Aside) {
	if path == "" {
		return nil
	}
	prefix := path + infix
	entries, _ := os.ReadDir(filepath.Dir(prefix)) // sorted; what can't be listed is not there
	for _, entry := range entries {
		stamp, found := strings.CutPrefix(entry.Name(), filepath.Base(prefix))
		if at, err := time.Parse(layout, stamp); found && err == nil {
			all = append(all, Aside{prefix + stamp, at})
		}
	}
	return all
}
