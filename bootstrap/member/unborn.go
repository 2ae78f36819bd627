package member

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rs/zerolog"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
)

// firstSegment is the name of the only segment that a WAL has before anything is written to it.
const firstSegment = "0000000000000000-0000000000000000.wal"

// errVoteless is what a log is refused with that was lost, or cut off at its beginning.
var errVoteless = errors.New("names nobody who has a vote, although its member was born: it was lost, cut off or damaged, or is of another database")

// settleVoteless deals with a log that names nobody who has a vote. etcd would open it and wait for ever to be elected;
// without any log it would begin a new one, and drop what is written until that is as long as the one before. If the
// database holds nothing either, etcd was killed in the first moment of its first start: no write was acknowledged, no
// vote was given, and the member directory is moved out of the way, so that etcd starts afresh. Nothing is deleted.
// Otherwise the error says what was lost.
func settleVoteless(dataDir string, log zerolog.Logger) error {
	segments, err := named(datadir.ToWALDir(dataDir), "*.wal")
	if err != nil || len(segments) > 0 && !voteless(dataDir, segments) {
		return nil
	}
	empty, err := emptyDatabase(datadir.ToBackendFileName(dataDir))
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case len(segments) == 0 && (empty || missing):
		return nil // a first start
	case empty:
		return setAside(dataDir, log)
	case err == nil || missing:
		return fmt.Errorf("the log in %q %w", datadir.ToWALDir(dataDir), errVoteless)
	default:
		return nil // etcd says what is wrong with the database
	}
}

func setAside(dataDir string, log zerolog.Logger) error {
	aside := filepath.Join(dataDir, "member.unborn-"+time.Now().UTC().Format("20060102T150405.000Z"))
	if err := os.Rename(datadir.ToMemberDir(dataDir), aside); err != nil {
		return fmt.Errorf("cannot set a member that was never born aside: %w", err)
	}
	log.Warn().Str("moved_to", aside).Msg("etcd was killed before it had stored anything; it starts afresh")
	return nil
}

// voteless is true if there is no snapshot, and nothing in the log's only segment but its head. The voters are in the
// first entries, so that no more than these is read.
func voteless(dataDir string, segments []string) bool {
	snapshots, err := named(datadir.ToSnapDir(dataDir), "*.snap*")
	return err == nil && len(snapshots) == 0 && slices.Equal(segments, []string{firstSegment}) &&
		onlyHead(filepath.Join(datadir.ToWALDir(dataDir), firstSegment))
}

// onlyHead leaves what it can't read to etcd, which says what is wrong. A record that was cut off is no record.
func onlyHead(segment string) (only bool) {
	defer func() { only = recovered(recover()) == nil && only }()
	file, err := os.Open(segment)
	if err != nil {
		return false
	}
	defer file.Close() // nothing was written
	decoder := wal.NewDecoder(fileutil.NewFileReader(file))
	for record := (walpb.Record{}); err == nil; {
		err = decoder.Decode(&record)
		switch record.Type {
		case wal.EntryType, wal.StateType:
			return false
		case wal.CrcType:
			decoder.UpdateCRC(record.Crc)
		}
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func emptyDatabase(path string) (empty bool, err error) {
	err = readDatabase(path, func(tx *bolt.Tx) error {
		empty = emptyBucket(tx, schema.Key.Name()) && emptyBucket(tx, schema.Members.Name()) && neverApplied(tx)
		return nil
	})
	return empty, err
}

// neverApplied reports whether no entry of the WAL ever reached the database.
func neverApplied(tx *bolt.Tx) bool {
	meta := tx.Bucket(schema.Meta.Name())
	if meta == nil {
		return true
	}
	index := meta.Get(schema.MetaConsistentIndexKeyName)
	return len(index) == 0 || bytes.Count(index, []byte{0}) == len(index)
}

func emptyBucket(tx *bolt.Tx, name []byte) bool {
	bucket := tx.Bucket(name)
	if bucket == nil {
		return true
	}
	first, _ := bucket.Cursor().First()
	return first == nil
}
