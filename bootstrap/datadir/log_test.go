package datadir

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// The wrapper must accept a damaged log only if etcd can replay it.
func TestLogsAreReplayedAsEtcdReplaysThem(t *testing.T) {
	dir := datadirtest.New(t)
	segments := segmentsOf(t, dir)
	whole, err := readLog(t.Context(), survey(dir, ""), nil)
	require.NoError(t, err)
	require.Greater(t, len(whole.snapshots), 2)
	noSuch, otherTerm := walpb.Snapshot{Index: 7, Term: 2}, walpb.Snapshot{Index: 51, Term: 1}
	require.ErrorIs(t, whole.checkStart(noSuch, 0), wal.ErrSnapshotNotFound)
	require.ErrorIs(t, whole.checkStart(otherTerm, 0), wal.ErrSnapshotMismatch)
	replayed := map[bool]int{}
	for seed := range *logsPerWriter * 4 {
		random := rand.New(rand.NewPCG(seed, 4))
		broken := segments[random.IntN(len(segments))]
		content, err := os.ReadFile(broken)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(broken, damage(content, int64(len(content)), random), 0o600))
		here := replayedHere(t, dir, walpb.Snapshot{})
		assert.Equal(t, openedByEtcd(t, dir), here, "seed %d, %s", seed, broken)
		replayed[here]++
		for _, from := range append(whole.snapshots, snapshotRecord{Snapshot: noSuch}, snapshotRecord{Snapshot: otherTerm}) {
			// The reverse need not hold, because the wrapper also checks the entries before the snapshot.
			if replayedHere(t, dir, from.Snapshot) {
				assert.True(t, verifiedByEtcd(dir, from.Snapshot), "seed %d, %s, from %d", seed, broken, from.Index)
			}
		}
		require.NoError(t, os.WriteFile(broken, content, 0o600))
	}
	assert.NotZero(t, replayed[true])
	assert.NotZero(t, replayed[false])
}

// verifiedByEtcd reads the log with etcd's code: first the whole log, as at startup, and then only the part after
// the snapshot.
func verifiedByEtcd(dir string, from walpb.Snapshot) bool {
	return nil == recoverPanic(func() error {
		if _, err := wal.ValidSnapshotEntries(zap.NewNop(), dir+"/member/wal"); err != nil {
			return err
		}
		_, err := wal.Verify(zap.NewNop(), dir+"/member/wal", from)
		return err
	})
}

// openedByEtcd opens and repairs a copy of the log with etcd's code, starting at the first entry.
func openedByEtcd(t *testing.T, dir string) bool {
	t.Helper()
	path := filepath.Join(t.TempDir(), "wal")
	require.NoError(t, os.CopyFS(path, os.DirFS(dir+"/member/wal")))
	open := func() error {
		log, err := wal.Open(zap.NewNop(), path, walpb.Snapshot{})
		if err != nil {
			return err
		}
		defer log.Close() // the log is a copy, so a close error is harmless
		_, _, _, err = log.ReadAll()
		return err
	}
	err := recoverPanic(open)
	if errors.Is(err, io.ErrUnexpectedEOF) && wal.Repair(zap.NewNop(), path) {
		err = recoverPanic(open)
	}
	return err == nil
}

func replayedHere(t *testing.T, dir string, from walpb.Snapshot) bool {
	t.Helper()
	m := survey(dir, "")
	written, err := readLog(t.Context(), m, nil)
	return err == nil && checkReplayStart(m, written, from) == nil
}
