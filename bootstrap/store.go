package bootstrap

import (
	"fmt"

	"etcd-wrapper/exitcode"
)

// StoreConfig keeps a copy of the fetched configuration at path, readable by its owner only, for the operators' debug
// containers. The copy is replaced as a whole: a reader sees the old one or the new one.
func StoreConfig(path string, yaml []byte) error {
	if err := exitcode.ReplaceFile(path, yaml); err != nil {
		return fmt.Errorf("cannot store etcd configuration: %w", err)
	}
	return nil
}
