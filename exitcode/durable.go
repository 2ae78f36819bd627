package exitcode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ReplaceFile makes path hold exactly content with mode 0600, durably: temporary file, fsync, rename, fsync of the
// directory. At every instant the path holds the old content or the new one. Errors name the file and the cause.
func ReplaceFile(path string, content []byte) error {
	temporary := path + ".tmp"
	// A leftover of an interrupted write may be anything; O_EXCL below then guarantees a new regular file.
	if err := clearPath(temporary); err != nil {
		return err
	}
	if err := writeSynced(temporary, content); err != nil {
		return errors.Join(err, clearPath(temporary))
	}
	if err := os.Rename(temporary, path); err != nil {
		return errors.Join(err, clearPath(temporary))
	}
	return syncDirectory(filepath.Dir(path))
}

func writeSynced(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func syncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	err = directory.Sync()
	if err != nil {
		err = fmt.Errorf("cannot sync directory %s: %w", path, err)
	}
	return errors.Join(err, directory.Close())
}
