package datadir

import (
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// logsPerWriter is the number of logs that are written and broken for each kind of writer.
var logsPerWriter = flag.Uint64("logs", 25, "how many logs of each kind are written and broken")

// writers are those who hand batches to wal.Save, by the commit index that they write with the entries from first to last.
var writers = map[string]struct {
	commit func(dice *rand.Rand, first, last uint64) uint64
	single bool
}{
	"single member of 3.6": {func(_ *rand.Rand, first, _ uint64) uint64 { return first - 1 }, true},
	"single member of 3.5": {func(_ *rand.Rand, _, last uint64) uint64 { return last }, false},
	"follower":             {func(dice *rand.Rand, first, last uint64) uint64 { return first - 1 + dice.Uint64N(last-first+2) }, false},
}

// written is a log's only segment, and up to where it had been flushed when each batch was written.
type writtenLog struct {
	content []byte
	flushed []int64
}

// writeLog has etcd's own code write entries in batches.
func writeLog(t *testing.T, dice *rand.Rand, commit func(dice *rand.Rand, first, last uint64) uint64, value func(*rand.Rand) []byte) (log writtenLog) {
	t.Helper()
	small := wal.SegmentSizeBytes
	wal.SegmentSizeBytes = 1 << 20 // more than is written
	defer func() { wal.SegmentSizeBytes = small }()
	dir := filepath.Join(t.TempDir(), "wal")
	w, err := wal.Create(zap.NewNop(), dir, []byte("metadata"))
	require.NoError(t, err)
	defer w.Close() // what counts was read
	require.NoError(t, w.SaveSnapshot(walpb.Snapshot{ConfState: &raftpb.ConfState{}}))
	w.SetUnsafeNoFsync()
	path, last := filepath.Join(dir, firstSegment), uint64(0)
	for range 10 + dice.IntN(10) {
		var batch []raftpb.Entry
		for i := range 1 + dice.Uint64N(4) {
			batch = append(batch, raftpb.Entry{Index: last + 1 + i, Term: 2, Data: value(dice)})
		}
		log.flushed = append(log.flushed, end(t, path))
		first := last + 1
		last += uint64(len(batch))
		require.NoError(t, w.Save(raftpb.HardState{Term: 2, Commit: commit(dice, first, last)}, batch))
		if dice.IntN(3) == 0 {
			require.NoError(t, w.Save(raftpb.HardState{Term: 2, Commit: last}, nil)) // not flushed before the next batch is
		}
	}
	log.flushed = append(log.flushed, end(t, path))
	log.content, err = os.ReadFile(path)
	require.NoError(t, err)
	return log
}

// noise is a value of up to two pages with no zeros in it.
func noise(dice *rand.Rand) []byte {
	value := make([]byte, dice.IntN(2500))
	for at := range value {
		value[at] = byte(1 + dice.IntN(255))
	}
	return value
}

// end returns the offset at which the records of an intact segment end.
func end(t *testing.T, path string) (at int64) {
	t.Helper()
	require.NoError(t, readSegment(path, func(s *segment) error {
		for _, err := range s.records() {
			require.NoError(t, err)
		}
		at = s.at
		return nil
	}))
	return at
}

// tailOf reads what was made of a segment.
func tailOf(t *testing.T, content []byte) *history {
	t.Helper()
	path, tail := filepath.Join(t.TempDir(), "segment"), &history{}
	require.NoError(t, os.WriteFile(path, content, 0o600))
	require.NoError(t, readSegment(path, func(s *segment) error {
		_ = tail.readLast(t.Context(), s) // that it is broken is the point
		return nil
	}))
	return tail
}

// Of what was written last, before it was flushed, a power loss may leave any part on the disk.
func TestLogAfterPowerLoss_isNotProven(t *testing.T) {
	for name, writer := range writers {
		for seed := range *logsPerWriter {
			dice := rand.New(rand.NewPCG(seed, 1))
			log := writeLog(t, dice, writer.commit, noise)
			tear(dice, log)
			tail := tailOf(t, log.content)
			assert.False(t, tail.cut.isLoss(writer.single), "%s, seed %d: %+v", name, seed, tail.cut)
		}
	}
}

// A value in etcd may be a log.
func TestLogInValue_isNotProven(t *testing.T) {
	writer := writers["single member of 3.6"]
	for seed := range *logsPerWriter {
		dice := rand.New(rand.NewPCG(seed, 3))
		stored := writeLog(t, dice, writer.commit, noise)
		log := writeLog(t, dice, writer.commit, func(dice *rand.Rand) []byte {
			return append(make([]byte, dice.IntN(8)), stored.content[:stored.flushed[2]]...)
		})
		tear(dice, log)
		tail := tailOf(t, log.content)
		assert.False(t, tail.cut.isLoss(writer.single), "seed %d: %+v", seed, tail.cut)
	}
}

// tear writes back what sectors of the last batch held before: nothing.
func tear(dice *rand.Rand, log writtenLog) {
	from, to := log.flushed[len(log.flushed)-2], log.flushed[len(log.flushed)-1]
	for at := from; at < to; {
		next := min(at-at%sector+sector, to)
		if dice.IntN(2) == 0 {
			clear(log.content[at:next])
		}
		at = next
	}
}

// A flipped bit or a zeroed sector is proven by the intact records after it.
func TestDamagedLog_isProven(t *testing.T) {
	for name, writer := range writers {
		for seed := range *logsPerWriter {
			dice := rand.New(rand.NewPCG(seed, 2))
			log := writeLog(t, dice, writer.commit, noise)
			whole := tailOf(t, log.content)
			require.False(t, whole.cut.isLoss(true), "%s, seed %d", name, seed)
			kept := log.flushed[len(log.flushed)-4] // of the batches behind, the first may be lost with what is damaged
			broken := damageAt(log.content, log.flushed[0]+dice.Int64N(kept-log.flushed[0]), dice)
			tail := tailOf(t, broken)
			if tail.last != whole.last {
				assert.True(t, tail.cut.isLoss(writer.single), "%s, seed %d: %+v", name, seed, tail.cut)
			}
		}
	}
}
