package member

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
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
	if err := refuseShort(m.config.Dir); err != nil {
		return err
	}
	return refuseStranger(m.config, m.options.Log)
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

// errCutOff is what a database is refused with that is shorter than it says of itself: to read on would end the process.
var errCutOff = errors.New("the database was cut off")

// readDatabase has the database looked at before etcd opens it.
func readDatabase(path string, look func(tx *bolt.Tx) error) (err error) {
	defer func() { err = errors.Join(err, recovered(recover())) }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // of a file that was cut off, what is mapped beyond its end faults
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	database, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: unlocked})
	if err != nil {
		return err
	}
	defer database.Close() // nothing was written
	return database.View(func(tx *bolt.Tx) error {
		if info.Size() < tx.Size() {
			return fmt.Errorf("%w: %q has %d bytes of %d", errCutOff, path, info.Size(), tx.Size())
		}
		return look(tx)
	})
}

// eachRecord visits the records of a log's segment, but for checksums, as long as visit returns true. A record that was
// cut off, or is longer than what is left, ends the segment: so does etcd take it.
func eachRecord(segment string, visit func(record *walpb.Record) bool) (err error) {
	defer func() { err = errors.Join(err, recovered(recover())) }()
	file, err := os.Open(segment)
	if err != nil {
		return err
	}
	defer file.Close() // nothing was written
	decoder := wal.NewDecoder(fileutil.NewFileReader(file))
	for record := (walpb.Record{}); ; {
		err := decoder.Decode(&record)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return err
		case record.Type == wal.CrcType:
			decoder.UpdateCRC(record.Crc)
		case !visit(&record):
			return nil
		}
	}
}

// recovered is the error of a panic: etcd's and bbolt's readers may panic on what they can't read.
func recovered(cause any) error {
	if cause == nil {
		return nil
	}
	return fmt.Errorf("cannot be read: %v", cause)
}
