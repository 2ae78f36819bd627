package member

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rs/zerolog"
	bolt "go.etcd.io/bbolt"
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

func onlyHead(segment string) bool {
	only := true
	err := eachRecord(segment, func(record *walpb.Record) bool {
		only = record.Type != wal.EntryType && record.Type != wal.StateType
		return only
	})
	return err == nil && only
}

// emptyDatabase is one without a key. etcd may have told it who the first members are, before the log had that.
func emptyDatabase(path string) (empty bool, err error) {
	err = readDatabase(path, func(tx *bolt.Tx) error {
		empty = size(tx, schema.Key.Name()) == 0 && appliedIndex(tx) <= uint64(size(tx, schema.Members.Name()))
		return nil
	})
	return empty, err
}

// appliedIndex is that of the last entry of the log that has reached the database.
func appliedIndex(tx *bolt.Tx) uint64 {
	meta := tx.Bucket(schema.Meta.Name())
	if meta == nil {
		return 0
	}
	index := meta.Get(schema.MetaConsistentIndexKeyName)
	if len(index) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(index)
}

// size is how much a bucket holds; counting ends at 100.
func size(tx *bolt.Tx, bucket []byte) (n int) {
	content := tx.Bucket(bucket)
	if content == nil {
		return 0
	}
	cursor := content.Cursor()
	for key, _ := cursor.First(); key != nil && n < 100; key, _ = cursor.Next() {
		n++
	}
	return n
}
