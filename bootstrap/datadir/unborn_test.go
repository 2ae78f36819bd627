package datadir

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// losses are of a member that was born. etcd would take each for a new one and wait for ever to be elected, or to be heard.
var losses = map[string]func(t *testing.T, dir, segment string){
	"the log is lost": func(t *testing.T, dir, _ string) {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "member", "wal")))
	},
	"the log's segment is lost": func(t *testing.T, _, segment string) { require.NoError(t, os.Remove(segment)) },
	"the log is cut off":        func(t *testing.T, _, segment string) { require.NoError(t, os.Truncate(segment, 100)) },
	"the log is cut off, and etcd has repaired it": func(t *testing.T, _, segment string) {
		require.NoError(t, os.Truncate(segment, 100))
		require.True(t, wal.Repair(zap.NewNop(), filepath.Dir(segment)))
	},
	"the log's entries are zeros": func(t *testing.T, _, segment string) {
		datadirtest.ZeroEntries(t, segment)
	},
	"the log's entries are zeros and the database is lost": func(t *testing.T, dir, segment string) {
		datadirtest.ZeroEntries(t, segment)
		require.NoError(t, os.Remove(filepath.Join(dir, "member", "snap", "db")))
	},
}

func TestAMemberThatHasLostItsLogIsRefusedAndKept(t *testing.T) {
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			dir := datadirtest.Born(t)
			lose(t, dir, datadirtest.FirstSegment(dir))
			before := fingerprint(t, dir)
			err := Look(dir, "").Inspect(Identity{}, zerolog.Nop())
			require.ErrorContains(t, err, "names nobody who has a vote, although its member was born")
			require.Error(t, verdict(t, dir, bootstrap.Full))
			assert.Equal(t, before, fingerprint(t, dir))
		})
	}
}

// toldOfMembers makes a database one that etcd has told who the first members are, and nothing else.
func toldOfMembers(t *testing.T, dir string, members int) {
	update(t, dir, func(tx *bolt.Tx) error {
		var errs []error
		for _, name := range []string{"key", "meta", "members"} {
			if err := tx.DeleteBucket([]byte(name)); !errors.Is(err, bolterrors.ErrBucketNotFound) {
				errs = append(errs, err)
			}
			_, err := tx.CreateBucket([]byte(name))
			errs = append(errs, err)
		}
		for id := range members {
			errs = append(errs, tx.Bucket([]byte("members")).Put([]byte{byte(id)}, []byte("{}")))
		}
		applied := binary.BigEndian.AppendUint64(nil, uint64(members)) //nolint:gosec // a count
		return errors.Join(append(errs, tx.Bucket([]byte("meta")).Put([]byte("consistent_index"), applied))...)
	})
}

// Whoever asks gets the same answer: an unborn member may be opened.
func TestAnUnbornMemberIsValidAndInspected(t *testing.T) {
	for name, make := range map[string]func(t *testing.T, dir string){
		"with the head of a log": datadirtest.MakeUnborn,
		"with the head of a log and the first members": func(t *testing.T, dir string) {
			datadirtest.MakeUnborn(t, dir)
			toldOfMembers(t, dir, 3)
		},
		"without a log": func(t *testing.T, dir string) {
			datadirtest.MakeUnborn(t, dir)
			remove(t, filepath.Join(dir, "member", "wal"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "new.etcd")
			make(t, dir)
			requireValid(t, dir)
			logged := exists(filepath.Join(dir, "member", "wal"))
			require.NoError(t, Look(dir, "").Inspect(Identity{}, zerolog.Nop()))
			aside, err := filepath.Glob(filepath.Join(dir, "member.unborn-*"))
			require.NoError(t, err)
			assert.Equal(t, logged, len(aside) == 1, "etcd would take a log without voters for its own")
		})
	}
}

func TestADatabaseWithKeysWasBorn(t *testing.T) {
	dir := datadirtest.Born(t)
	update(t, dir, func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Delete([]byte("consistent_index")) })
	remove(t, filepath.Join(dir, "member", "wal"))
	for _, mode := range []bootstrap.Mode{bootstrap.Sanity, bootstrap.Full} {
		require.ErrorContains(t, verdict(t, dir, mode), "it has keys, but")
	}
	require.ErrorContains(t, Look(dir, "").Inspect(Identity{}, zerolog.Nop()), "names nobody who has a vote")
}

func TestADatabaseThatHasAppliedMoreThanTheFirstMembersWasBorn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	datadirtest.MakeUnborn(t, dir)
	toldOfMembers(t, dir, 1)
	update(t, dir, func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("meta")).Put([]byte("consistent_index"), binary.BigEndian.AppendUint64(nil, 2))
	})
	require.ErrorContains(t, verdict(t, dir, bootstrap.Full), "the database holds what came until 2")
	require.ErrorContains(t, Look(dir, "").Inspect(Identity{}, zerolog.Nop()), "names nobody who has a vote")
}

func TestAMemberThatHadASnapshotIsNotSetAside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	datadirtest.MakeUnborn(t, dir)
	write(t, filepath.Join(dir, "member", "snap", "0000000000000002-0000000000000005.snap.broken"), "?")
	require.NoError(t, Look(dir, "").Inspect(Identity{}, zerolog.Nop()))
	require.True(t, exists(filepath.Join(dir, "member")), "it was not moved")
}

// An index that can't be read is neither 0 nor any other number.
func TestADatabaseWithoutAReadableIndexIsNotUnborn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	datadirtest.MakeUnborn(t, dir)
	toldOfMembers(t, dir, 1)
	update(t, dir, func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("meta")).Put([]byte("consistent_index"), []byte("four"))
	})
	require.ErrorContains(t, verdict(t, dir, bootstrap.Sanity), "consistent index has 4 bytes instead of 8")
	require.NoError(t, Look(dir, "").Inspect(Identity{}, zerolog.Nop()), "etcd says what is wrong")
	require.True(t, exists(filepath.Join(dir, "member")), "it was not moved")
}

// Its directory alone, set aside, would leave the log behind.
func TestAnUnbornMemberWithALogElsewhereIsLeftToEtcd(t *testing.T) {
	dir, walDir := filepath.Join(t.TempDir(), "new.etcd"), filepath.Join(t.TempDir(), "wal")
	datadirtest.MakeUnborn(t, dir)
	require.NoError(t, os.Rename(filepath.Join(dir, "member", "wal"), walDir))
	before := fingerprint(t, dir)
	require.NoError(t, Look(dir, walDir).Inspect(Identity{}, zerolog.Nop()))
	assert.Equal(t, before, fingerprint(t, dir))
}
