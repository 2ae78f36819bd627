package recovery

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"etcd-wrapper/bootstrap"
)

// Two wrappers with volumes of their own may have been given one data directory. Neither must remove what the other one builds, nor
// set aside what it serves by now.

var errTaken = errors.New("another process uses the data directory")

// hold keeps what was built for this process until release.
func (r *run) hold() error {
	r.release()
	built, err := os.Open(r.restoredDir())
	if err != nil {
		return err
	}
	if err := unix.Flock(int(built.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) { // not every file system has locks
		return errors.Join(elsewhere(r.restoredDir()), built.Close())
	}
	r.held = built
	return nil
}

func (r *run) release() {
	if r.held != nil {
		_ = r.held.Close() // nothing was written
		r.held = nil
	}
}

// inUse tells whether another process has locked a directory.
func inUse(dir string) bool {
	file, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer file.Close() // lets go of the lock
	return errors.Is(unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

func elsewhere(dir string) error {
	return fmt.Errorf("%w: it restores data into %s; end it, or give this one a data-dir of its own", errTaken, dir)
}

// unserved says that the data directory is as it was examined, and that nobody has it open.
func (r *run) unserved() error {
	facts := r.core.Facts
	if there, err := holdsMember(r.member.DataDir); err != nil || there && facts.Condition == Empty && !facts.Remains {
		return errors.Join(err, errors.New("data have appeared there since it was looked at"))
	}
	if database := filepath.Join(r.member.DataDir, "member", "snap", "db"); bootstrap.UseOf(database) == bootstrap.Writing {
		return fmt.Errorf("%w: an etcd that runs has %s open; end that", errTaken, database)
	}
	return nil
}
