package bootstrap

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// IsOpen reports whether another process has the database at path open, for reading or writing. What can't be looked at
// is not held against anybody.
func IsOpen(path string) bool { return refuses(path, unix.LOCK_EX) }

// isOpenForWriting reports whether some process has, be it an etcd that does not know the volume's lock.
func isOpenForWriting(path string) bool { return refuses(path, unix.LOCK_SH) }

// refuses reports whether bbolt's lock on the file stands in the way of one of that kind.
func refuses(path string, lock int) bool {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer file.Close() // lets go of the lock
	return errors.Is(unix.Flock(int(file.Fd()), lock|unix.LOCK_NB), unix.EWOULDBLOCK)
}
