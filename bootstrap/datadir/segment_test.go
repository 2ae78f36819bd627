package datadir

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protowire"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// A reading contains the records of a segment, the offset at which the last one ends, and whether an incomplete
// record (torn) or any error (failed) ended the reading.
type reading struct {
	records []record
	ends    int64
	torn    bool
	failed  bool
}

func (r *reading) end(err error) {
	r.torn = errors.Is(err, io.ErrUnexpectedEOF)
	r.failed = err != nil && !errors.Is(err, io.EOF)
}

func readHere(path string) (read reading) {
	read.end(readSegment(path, func(s *segment) error {
		for r, err := range s.records() {
			if err != nil {
				return err
			}
			r.data = append([]byte(nil), r.data...)
			read.records, read.ends = append(read.records, r), s.at
		}
		return nil
	}))
	return read
}

func readByEtcd(t *testing.T, path string) (read reading) {
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close() // opened read-only, so a close error is harmless
	decoder := wal.NewDecoder(fileutil.NewFileReader(file))
	for r := (walpb.Record{}); ; {
		if err := decoder.Decode(&r); err != nil {
			read.end(err)
			return read
		}
		if r.Type == wal.CrcType {
			decoder.UpdateCRC(r.Crc)
		}
		read.records = append(read.records, record{kind: r.Type, crc: r.Crc, data: append([]byte(nil), r.Data...), sum: decoder.LastCRC()})
		read.ends = decoder.LastOffset()
	}
}

// The wrapper and etcd's own reader must return the same records and the same error for any segment.
func TestRecords_agreeWithEtcd(t *testing.T) {
	for _, original := range segmentsOf(t, datadirtest.New(t)) {
		content, err := os.ReadFile(original)
		require.NoError(t, err)
		whole := readByEtcd(t, original)
		require.Equal(t, whole, readHere(original))
		for _, r := range whole.records {
			if r.kind == wal.EntryType {
				require.Equal(t, wal.MustUnmarshalEntry(r.data).Index, entryIndex(r.data))
			}
		}
		path := filepath.Join(t.TempDir(), "segment")
		for seed := range uint64(300) {
			broken := damage(content, whole.ends, rand.New(rand.NewPCG(seed, 1)))
			require.NoError(t, os.WriteFile(path, broken, 0o600))
			assert.Equal(t, readByEtcd(t, path), readHere(path), "%s, seed %d", original, seed)
		}
	}
}

// damage flips a bit, zeroes a few bytes or a sector, or truncates the segment.
func damage(content []byte, used int64, random *rand.Rand) []byte {
	at := random.Int64N(used)
	if random.IntN(4) == 0 {
		return append([]byte(nil), content[:at]...)
	}
	return damageAt(content, at, random)
}

// damageAt damages the content at a position without truncating it.
func damageAt(content []byte, at int64, random *rand.Rand) []byte {
	broken := append([]byte(nil), content...)
	switch random.IntN(3) {
	case 0:
		broken[at] ^= 1 << random.IntN(8)
	case 1:
		clear(broken[at:min(at+16, int64(len(broken)))])
	case 2:
		at -= at % sector
		clear(broken[at:min(at+sector, int64(len(broken)))])
	}
	return broken
}

// parse must agree with etcd's parser on unusual records, such as records with reordered fields, unknown fields or
// checksums with too many bits.
func TestParse_agreesWithEtcd(t *testing.T) {
	content, err := (&walpb.Record{Type: wal.EntryType, Crc: 1 << 31, Data: []byte("data")}).Marshal()
	require.NoError(t, err)
	short, err := (&walpb.Record{Type: wal.CrcType, Crc: 7}).Marshal()
	require.NoError(t, err)
	const kindTag, crcTag, dataTag = recordType<<3 | byte(protowire.VarintType), recordCRC<<3 | byte(protowire.VarintType), recordData<<3 | byte(protowire.BytesType)
	for name, raw := range map[string][]byte{
		"as etcd writes it":                   content,
		"without data":                        short,
		"empty":                               {},
		"data first":                          append([]byte{dataTag, 1, 'd'}, short...),
		"data twice":                          append(append([]byte(nil), content...), dataTag, 1, 'd'),
		"with an unknown field":               append(append([]byte(nil), content...), 4<<3, 1),
		"checksum longer than 32 bits":        {kindTag, 2, crcTag, 0x81, 0x80, 0x80, 0x80, 0x80, 0x01},
		"negative type":                       {kindTag, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, crcTag, 1},
		"data field with the wrong wire type": {kindTag, 2, crcTag, 1, 3 << 3, 1},
		"data shorter than its length":        {kindTag, 2, crcTag, 1, dataTag, 9, 'd'},
		"truncated":                           content[:3],
		"malformed checksum":                  {kindTag, 0x81, 0, 0xff},
		"type twice":                          {kindTag, 2, kindTag, 4},
	} {
		var want walpb.Record
		wantErr := want.Unmarshal(raw)
		got, err := frame{record: raw}.parse()
		assert.Equal(t, wantErr, err, name)
		if wantErr == nil {
			assert.Equal(t, record{kind: want.Type, crc: want.Crc, data: want.Data}, got, name)
		}
	}
}

// parse must agree with etcd's parser even if arbitrary bytes of a record are altered.
func FuzzParse_agreesWithEtcd(f *testing.F) {
	content, err := (&walpb.Record{Type: wal.EntryType, Crc: 1 << 31, Data: []byte("data")}).Marshal()
	require.NoError(f, err)
	for i := range content {
		for bit := range 8 {
			broken := bytes.Clone(content)
			broken[i] ^= 1 << bit
			f.Add(broken)
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var want walpb.Record
		wantErr := want.Unmarshal(raw)
		got, err := frame{record: raw}.parse()
		require.Equal(t, wantErr, err)
		if wantErr == nil {
			require.Equal(t, [...]any{want.Type, want.Crc, string(want.Data)}, [...]any{got.kind, got.crc, string(got.data)})
		}
	})
}

// logsPerWriter is the number of logs to write and damage for each kind of writer.
var logsPerWriter = flag.Uint64("logs", 25, "number of logs to write and damage for each kind of writer")

// writers contains the kinds of members that call wal.Save. commit returns the commit index that such a member saves
// with the entries from first to last. single is the argument for isLoss.
var writers = map[string]struct {
	commit func(random *rand.Rand, first, last uint64) uint64
	single bool
}{
	"single member running etcd 3.6": {func(_ *rand.Rand, first, _ uint64) uint64 { return first - 1 }, true},
	"single member running etcd 3.5": {func(_ *rand.Rand, _, last uint64) uint64 { return last }, false},
	"follower":                       {func(random *rand.Rand, first, last uint64) uint64 { return first - 1 + random.Uint64N(last-first+2) }, false},
}

// writtenLog is a log with a single segment. flushed contains the offset at which each batch of entries starts,
// followed by the offset at which the last batch ends.
type writtenLog struct {
	content []byte
	flushed []int64
}

// writeLog writes batches of entries with etcd's own code.
func writeLog(t *testing.T, random *rand.Rand, commit func(random *rand.Rand, first, last uint64) uint64, value func(*rand.Rand) []byte) (log writtenLog) {
	t.Helper()
	small := wal.SegmentSizeBytes
	wal.SegmentSizeBytes = 1 << 20 // large enough for a single segment
	defer func() { wal.SegmentSizeBytes = small }()
	dir := filepath.Join(t.TempDir(), "wal")
	w, err := wal.Create(zap.NewNop(), dir, []byte("metadata"))
	require.NoError(t, err)
	defer w.Close()
	require.NoError(t, w.SaveSnapshot(walpb.Snapshot{ConfState: &raftpb.ConfState{}}))
	w.SetUnsafeNoFsync()
	path, last := filepath.Join(dir, firstSegment), uint64(0)
	for range 10 + random.IntN(10) {
		var batch []raftpb.Entry
		for i := range 1 + random.Uint64N(4) {
			batch = append(batch, raftpb.Entry{Index: last + 1 + i, Term: 2, Data: value(random)})
		}
		log.flushed = append(log.flushed, end(t, path))
		first := last + 1
		last += uint64(len(batch))
		require.NoError(t, w.Save(raftpb.HardState{Term: 2, Commit: commit(random, first, last)}, batch))
		if random.IntN(3) == 0 {
			require.NoError(t, w.Save(raftpb.HardState{Term: 2, Commit: last}, nil)) // not synced before the next batch
		}
	}
	log.flushed = append(log.flushed, end(t, path))
	log.content, err = os.ReadFile(path)
	require.NoError(t, err)
	return log
}

// noise returns fewer than 2,500 random bytes, none of which is zero.
func noise(random *rand.Rand) []byte {
	value := make([]byte, random.IntN(2500))
	for at := range value {
		value[at] = byte(1 + random.IntN(255))
	}
	return value
}

// end returns the offset of the end of the records in an intact segment.
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

// tailOf reads a damaged segment like the last segment of a log.
func tailOf(t *testing.T, content []byte) *history {
	t.Helper()
	path, tail := filepath.Join(t.TempDir(), "segment"), &history{}
	require.NoError(t, os.WriteFile(path, content, 0o600))
	require.NoError(t, readSegment(path, func(s *segment) error {
		_ = tail.readLast(t.Context(), s) // returns an error for a damaged segment, but what was read is in tail
		return nil
	}))
	return tail
}

// A power failure must never count as proof of a loss, regardless of which unsynced writes reached the disk.
func TestLogAfterPowerLoss_isNotProven(t *testing.T) {
	for name, writer := range writers {
		for seed := range *logsPerWriter {
			random := rand.New(rand.NewPCG(seed, 1))
			log := writeLog(t, random, writer.commit, noise)
			tear(random, log)
			tail := tailOf(t, log.content)
			assert.False(t, tail.cut.isLoss(writer.single), "%s, seed %d: %+v", name, seed, tail.cut)
		}
	}
}

// If a client stores a WAL file as a value, its records must not be mistaken for records of the segment.
func TestLogInValue_isNotProven(t *testing.T) {
	writer := writers["single member running etcd 3.6"]
	for seed := range *logsPerWriter {
		random := rand.New(rand.NewPCG(seed, 3))
		stored := writeLog(t, random, writer.commit, noise)
		log := writeLog(t, random, writer.commit, func(random *rand.Rand) []byte {
			return append(make([]byte, random.IntN(8)), stored.content[:stored.flushed[2]]...)
		})
		tear(random, log)
		tail := tailOf(t, log.content)
		assert.False(t, tail.cut.isLoss(writer.single), "seed %d: %+v", seed, tail.cut)
	}
}

// tear zeroes some sectors of the last batch, as if they had never been written.
func tear(random *rand.Rand, log writtenLog) {
	from, to := log.flushed[len(log.flushed)-2], log.flushed[len(log.flushed)-1]
	for at := from; at < to; {
		next := min(at-at%sector+sector, to)
		if random.IntN(2) == 0 {
			clear(log.content[at:next])
		}
		at = next
	}
}

// If intact records follow a flipped bit or a zeroed sector, the loss must be detected.
func TestDamagedLog_isProven(t *testing.T) {
	for name, writer := range writers {
		for seed := range *logsPerWriter {
			random := rand.New(rand.NewPCG(seed, 2))
			log := writeLog(t, random, writer.commit, noise)
			whole := tailOf(t, log.content)
			require.False(t, whole.cut.isLoss(true), "%s, seed %d", name, seed)
			until := log.flushed[len(log.flushed)-4] // keep the last three batches intact, because they prove the loss
			broken := damageAt(log.content, log.flushed[0]+random.Int64N(until-log.flushed[0]), random)
			tail := tailOf(t, broken)
			if tail.last != whole.last {
				assert.True(t, tail.cut.isLoss(writer.single), "%s, seed %d: %+v", name, seed, tail.cut)
			}
		}
	}
}
