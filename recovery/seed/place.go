package seed

import (
	"fmt"
	"os"
	"path/filepath"
)

// longestWay is how many symbolic links may lie behind each other, as for the kernel.
const longestWay = 40

// Place is where a data directory really is, or will be: a symbolic link in its place, which may lead to nothing yet, is followed. What
// gets the directory's name, or gives it up, lies beside it, and so on the same volume.
func Place(dataDir string) string {
	place := dataDir
	for range longestWay {
		place = filepath.Clean(place)
		if parent, err := filepath.EvalSymlinks(filepath.Dir(place)); err == nil {
			place = filepath.Join(parent, filepath.Base(place))
		}
		target, err := os.Readlink(place)
		if err != nil {
			return place
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(place), target)
		}
		place = target
	}
	return dataDir
}

// CheckPlace says why a finished directory cannot be given that name.
func CheckPlace(place string) error {
	if isMountPoint(place) {
		return fmt.Errorf("%s is a mount point, and nothing can be given its name; name a directory below it", place)
	}
	return nil
}

// MountedWithin is a part of a data directory that is a mount point; empty if none is. It stays with the data that are set aside, and
// comes back into the place of that part of the restored ones when it is mounted again.
func MountedWithin(place string) string {
	for _, part := range []string{"member", "member/wal", "member/snap"} {
		if at := filepath.Join(place, part); isMountPoint(at) {
			return at
		}
	}
	return ""
}
