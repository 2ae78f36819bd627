package member

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3"
	"go.uber.org/zap"
)

// unlocked bounds the wait for a database that nobody else holds any more.
const unlocked = time.Second

// firstSegment is the name of the only segment that a WAL has before anything is written to it.
const firstSegment = "0000000000000000-0000000000000000.wal"

// setUnbornAside moves the member directory of an etcd that was killed in the first moment of its first start out of the
// way, so that etcd starts afresh. Its WAL was created and nothing was ever written to it, not even who has a vote: etcd
// would start such a member again and wait for ever to be elected. No write was acknowledged, no vote was given. Nothing
// is deleted.
func setUnbornAside(dataDir string, log zerolog.Logger) error {
	if !unborn(dataDir) {
		return nil
	}
	aside := filepath.Join(dataDir, "member.unborn-"+time.Now().UTC().Format("20060102T150405.000Z"))
	if err := os.Rename(datadir.ToMemberDir(dataDir), aside); err != nil {
		return fmt.Errorf("cannot set a member that was never born aside: %w", err)
	}
	log.Warn().Str("moved_to", aside).Msg("etcd was killed before it had stored anything; it starts afresh")
	return nil
}

// unborn is true only if database and WAL are there, can be read and hold nothing: a lost database beside a WAL is not
// unborn, whatever the WAL holds. The database goes first: of a member that lives, nothing else is read.
func unborn(dataDir string) bool {
	snapshots, err := filepath.Glob(filepath.Join(datadir.ToSnapDir(dataDir), "*.snap*"))
	return err == nil && len(snapshots) == 0 && emptyDatabase(datadir.ToBackendFileName(dataDir)) && emptyLog(datadir.ToWALDir(dataDir))
}

func emptyLog(dir string) (empty bool) {
	defer func() { empty = recover() == nil && empty }() // etcd's reader may panic on what it can't read
	segments, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(segments) != 1 || filepath.Base(segments[0]) != firstSegment {
		return false
	}
	log, err := wal.OpenForRead(zap.NewNop(), dir, walpb.Snapshot{})
	if err != nil {
		return false
	}
	defer log.Close()
	_, state, entries, err := log.ReadAll()
	return err == nil && len(entries) == 0 && raft.IsEmptyHardState(state)
}

func emptyDatabase(path string) (empty bool) {
	defer func() { empty = recover() == nil && empty }()
	if _, err := os.Stat(path); err != nil {
		return false
	}
	database, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: unlocked})
	if err != nil {
		return false
	}
	defer database.Close()
	err = database.View(func(tx *bolt.Tx) error {
		empty = emptyBucket(tx, schema.Key.Name()) && emptyBucket(tx, schema.Members.Name()) && neverApplied(tx)
		return nil
	})
	return err == nil && empty
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
