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
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// reading holds the records of a segment, where the last one ends, and why there are no more.
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
	defer file.Close() // nothing was written
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

// etcd's own reader finds the same records in any segment and ends for the same reason.
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

// damage flips a bit, or zeros a few bytes or a sector, or cuts the end off.
func damage(content []byte, used int64, random *rand.Rand) []byte {
	at := random.Int64N(used)
	if random.IntN(4) == 0 {
		return append([]byte(nil), content[:at]...)
	}
	return damageAt(content, at, random)
}

// damageAt leaves the end where it is.
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

// etcd's parser takes fields in any order, fields that it does not know, and more bits than a checksum has.
func TestParse_agreesWithEtcd(t *testing.T) {
	content, err := (&walpb.Record{Type: wal.EntryType, Crc: 1 << 31, Data: []byte("data")}).Marshal()
	require.NoError(t, err)
	short, err := (&walpb.Record{Type: wal.CrcType, Crc: 7}).Marshal()
	require.NoError(t, err)
	for name, raw := range map[string][]byte{
		"as etcd writes it":       content,
		"without data":            short,
		"empty":                   {},
		"data first":              append([]byte{byte(dataTag), 1, 'd'}, short...),
		"data twice":              append(append([]byte(nil), content...), byte(dataTag), 1, 'd'),
		"with an unknown field":   append(append([]byte(nil), content...), 4<<3, 1),
		"with a longer checksum":  {byte(kindTag), 2, byte(crcTag), 0x81, 0x80, 0x80, 0x80, 0x80, 0x01},
		"with a negative kind":    {byte(kindTag), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, byte(crcTag), 1},
		"data of another kind":    {byte(kindTag), 2, byte(crcTag), 1, 3 << 3, 1},
		"with less data than due": {byte(kindTag), 2, byte(crcTag), 1, byte(dataTag), 9, 'd'},
		"cut off":                 content[:3],
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
