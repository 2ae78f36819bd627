// Package aside names what is moved out of the way and kept, and finds it again: it lies beside the place that it had.
package aside

import (
	"path/filepath"
	"slices"
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

// Name is where what has a path goes at that time; a moment after what went before if a clock was put back, so that the newest is the
// last in any case.
func Name(path string, at time.Time) string {
	if all := Beside(path); len(all) > 0 {
		if newest := all[len(all)-1].At; !at.Truncate(time.Millisecond).After(newest) {
			at = newest.Add(time.Millisecond)
		}
	}
	return path + infix + at.UTC().Format(layout)
}

// Beside are those of a path, the oldest first. What people have given a name of that kind is none.
func Beside(path string) (all []Aside) {
	if path == "" {
		return nil
	}
	prefix := path + infix
	paths, _ := filepath.Glob(prefix + "*") // the pattern is well-formed, and what can't be listed is not there
	slices.Sort(paths)
	for _, found := range paths {
		if at, err := time.Parse(layout, strings.TrimPrefix(found, prefix)); err == nil {
			all = append(all, Aside{found, at})
		}
	}
	return all
}
