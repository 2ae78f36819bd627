package bootstrap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// StoreConfig keeps a copy of the fetched configuration at path, readable by its owner only, for the operators' debug
// containers. The copy is replaced as a whole: a reader sees the old one or the new one. It need not survive a power
// loss, after which it is fetched again, so nothing waits for the disk.
func StoreConfig(path string, yaml []byte) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("cannot store etcd configuration: %w", err)
	}
	_, err = temporary.Write(yaml)
	err = errors.Join(err, temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("cannot store etcd configuration: %w", errors.Join(err, os.Remove(temporary.Name())))
	}
	return nil
}
