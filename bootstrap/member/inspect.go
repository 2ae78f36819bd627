package member

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
)

// unlocked bounds the wait for a database that nobody else holds any more.
const unlocked = time.Second

// inspect refuses data that etcd would take without a word. With a log elsewhere nothing can be told here.
func (m *Member) inspect() error {
	if m.config.WalDir != "" {
		return nil
	}
	if err := settleVoteless(m.config.Dir, m.options.Log); err != nil {
		return err
	}
	return refuseStranger(m.config)
}

// named are the files whose names match; none if there is no directory.
func named(dir, pattern string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range entries {
		if ok, _ := filepath.Match(pattern, entry.Name()); ok { // the patterns are well formed
			names = append(names, entry.Name())
		}
	}
	return names, err
}

// readDatabase has the database looked at before etcd opens it.
func readDatabase(path string, look func(tx *bolt.Tx) error) (err error) {
	defer func() { err = errors.Join(err, recovered(recover())) }()
	if _, err := os.Stat(path); err != nil {
		return err
	}
	database, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: unlocked})
	if err != nil {
		return err
	}
	defer database.Close() // nothing was written
	return database.View(look)
}

// recovered is the error of a panic: etcd's and bbolt's readers may panic on what they can't read.
func recovered(cause any) error {
	if cause == nil {
		return nil
	}
	return fmt.Errorf("cannot be read: %v", cause)
}
