package format_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
)

// empty returns the manifest of a segment without rows.
func empty() format.Manifest {
	begin := start()
	return format.Manifest{
		Cluster: begin.Cluster, Generation: 1, Position: begin.Position, End: 6, Before: begin.Before, After: begin.Before,
	}
}

func forged(t testing.TB, manifest format.Manifest, records string) io.Reader {
	t.Helper()
	object, err := format.Forge(&format.Keys{}, manifest, []byte(records))
	require.NoError(t, err)
	return object.Reader()
}

// record encodes a record of varints.
func record(kind string, numbers ...uint64) string {
	bytes := []byte(kind)
	for _, n := range numbers {
		bytes = binary.AppendUvarint(bytes, n)
	}
	return string(bytes)
}

func TestSegmentReader_rejectsForgedRecords(t *testing.T) {
	key := string(Row(7, 0, "").Key)
	for name, records := range map[string]string{
		"no records":                           "",
		"no end record":                        record("M", 7, 1),
		"an end record with a wrong count":     record("Z", 1),
		"data after the end record":            record("Z", 0) + record("Z", 0),
		"an unknown record type":               record("X", 0) + record("Z", 1),
		"a row that is not in the manifest":    record("R", 17) + key + record("", 0) + record("Z", 1),
		"a bucket that is not in the manifest": record("B", 1) + "a" + record("", 0, 0) + record("Z", 1),
		"a marker that is not in the manifest": record("M", 7, 1) + record("Z", 1),
		"a key that is too long":               record("R", 19) + key + "tt" + record("", 0) + record("Z", 1),
		"a missing value":                      record("R", 17) + key + record("", 1<<27),
		"a value length above the limit":       record("R", 17) + key + record("", 1<<62),
		"a bucket length above the limit":      record("B", 1) + "a" + record("", 1, 1<<40),
		"a bucket name length above the limit": record("B", 1<<20),
		"a bucket with a wrong entry count":    record("B", 1) + "a" + record("", 2, 2) + record("", 0, 0) + record("Z", 1),
		"a bucket with a truncated entry":      record("B", 1) + "a" + record("", 1, 2) + record("", 0, 9) + record("Z", 1),
		"an endless number":                    "M" + strings.Repeat("\xff", 30),
		"a number of 64 bits":                  record("M", 1<<63, 1) + record("Z", 1),
		"a hash of 33 bits":                    record("H", 1, 1, 1<<32) + record("Z", 1),
		"too many hashes":                      strings.Repeat(record("H", 1, 1, 1), 5000) + record("Z", 5000),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readAll(forged(t, empty(), records), &format.Keys{})
			assert.ErrorIs(t, err, format.ErrDamaged)
			assert.ErrorContains(t, err, "segment 0000000000000000007.000000000: ")
		})
	}
	_, err := readAll(forged(t, empty(), record("Z", 0)), &format.Keys{})
	assert.NoError(t, err, "an end record alone is valid")
	_, err = readAll(forgedWithSize(t, 100, record("Z", 0)), &format.Keys{})
	assert.ErrorIs(t, err, format.ErrDamaged, "fewer bytes than the manifest states")
}

func TestSegmentReader_limitsMemoryForForgedLengths(t *testing.T) {
	zeros := strings.Repeat("\x00", 64<<20)
	for name, object := range map[string]io.Reader{
		"a value":                             forged(t, empty(), record("R", 17)+string(Row(7, 0, "").Key)+record("", 200<<20)),
		"a bucket":                            forged(t, empty(), record("B", 1)+"a"+record("", 1, 200<<20)),
		"a bucket's name":                     forged(t, empty(), record("B", 60<<20)+zeros),
		"more bytes than the manifest states": forgedWithSize(t, 100, record("B", 1)+"a"+record("", 1, 60<<20)+zeros),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := readAll(object, &format.Keys{})
			runtime.ReadMemStats(&after)
			assert.ErrorIs(t, err, format.ErrDamaged)
			assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(24<<20))
		})
	}
}

// forgedWithSize is like forged, but the manifest states that the records are raw bytes long.
func forgedWithSize(t testing.TB, raw int64, records string) io.Reader {
	manifest := empty()
	manifest.RawBytes = raw
	return forged(t, manifest, records)
}

func TestManifest_inconsistentFieldsAreDamage(t *testing.T) {
	for name, change := range map[string]func(*format.Manifest){
		"no cluster":                func(m *format.Manifest) { m.Cluster = "" },
		"no generation":             func(m *format.Manifest) { m.Generation = 0 },
		"no position":               func(m *format.Manifest) { m.Position = format.Position{} },
		"negative rows":             func(m *format.Manifest) { m.Rows = -1 },
		"rows without revision":     func(m *format.Manifest) { m.Rows = 1 },
		"revision without rows":     func(m *format.Manifest) { m.End = 9 },
		"other digest without rows": func(m *format.Manifest) { m.After = format.Digest{} },
		"size above the limit":      func(m *format.Manifest) { m.RawBytes = 1 << 60 },
		"negative size":             func(m *format.Manifest) { m.RawBytes = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			manifest := empty()
			change(&manifest)
			_, err := readAll(forged(t, manifest, record("Z", 0)), &format.Keys{})
			assert.ErrorIs(t, err, format.ErrDamaged)
		})
	}
}

func TestManifest_mustMatchTheRecords(t *testing.T) {
	right := example(t, &format.Keys{})
	records := recordsOf(t, right)
	for name, change := range map[string]func(*format.Manifest){
		"other digest":        func(m *format.Manifest) { m.After[0]++ },
		"other chain":         func(m *format.Manifest) { m.Before[0]++ },
		"other last revision": func(m *format.Manifest) { m.Last[0]++ },
		"other end":           func(m *format.Manifest) { m.End++ },
		"more rows":           func(m *format.Manifest) { m.Rows++ },
		"no buckets":          func(m *format.Manifest) { m.Buckets = nil },
		"other first time":    func(m *format.Manifest) { m.From = TimeAt(1) },
		"other last time":     func(m *format.Manifest) { m.To = TimeAt(100) },
		"other position":      func(m *format.Manifest) { m.Position.Revision = 8 },
		"unchanged":           func(*format.Manifest) {},
	} {
		manifest := right.Manifest
		change(&manifest)
		_, err := readAll(forged(t, manifest, records), &format.Keys{})
		if name == "unchanged" {
			assert.NoError(t, err)
		} else {
			assert.ErrorIs(t, err, format.ErrDamaged, name)
		}
	}
}

// recordsOf returns the decompressed records of an unencrypted segment.
func recordsOf(t testing.TB, object format.Object) string {
	t.Helper()
	plain, err := new(format.Keys).Open(bytes.NewReader(contents(object)[len(object.Line):]), false)
	require.NoError(t, err)
	defer plain.Close()
	records, err := io.ReadAll(plain)
	require.NoError(t, err)
	return string(records)
}

func TestSegmentBuilder_needsLittleMoreMemoryThanItsContent(t *testing.T) {
	value := make([]byte, 8<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(value) // random data cannot be compressed
	row := Row(7, 0, string(value))
	keys := &format.Keys{}
	Build(t, keys, start(), nil) // initializes zstd's tables, which stay allocated
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	object := Build(t, keys, start(), []format.Row{row})
	runtime.ReadMemStats(&after)
	assert.Greater(t, object.Size(), int64(len(value)))
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(len(value)+len(value)/2))
}

func TestSegmentReader_reportsANewerFormat(t *testing.T) {
	manifest := empty()
	manifest.Heading = format.Heading{Format: 2, Kind: format.SegmentKind}
	line, err := new(format.Keys).Sign(manifest)
	require.NoError(t, err)
	_, err = readAll(bytes.NewReader(line), &format.Keys{})
	assert.EqualError(t, err, "written by a newer etcd-wrapper: format 2")
}

func FuzzSegment(f *testing.F) {
	f.Add(contents(example(f, &format.Keys{})))
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, object []byte) {
		_, err := readAll(bytes.NewReader(object), &format.Keys{})
		requireDocumented(t, err)
	})
}

// FuzzRecords reads arbitrary records after a manifest with matching digests.
func FuzzRecords(f *testing.F) {
	seed := example(f, &format.Keys{})
	f.Add([]byte(recordsOf(f, seed)))
	f.Add([]byte(record("Z", 0)))
	f.Fuzz(func(t *testing.T, records []byte) {
		for _, manifest := range []format.Manifest{empty(), seed.Manifest} {
			manifest.RawBytes = 0
			read, err := readAll(forged(t, manifest, string(records)), &format.Keys{})
			requireDocumented(t, err)
			if err == nil && manifest.Rows > 0 {
				assert.Equal(t, []format.Row{Row(7, 0, "apple"), Row(7, 1, ""), tombstone(9, 0, "pear")}, read[0].rows)
			}
		}
	})
}

// requireDocumented fails the test unless err is nil or one of the documented errors.
func requireDocumented(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	for _, documented := range []error{format.ErrDamaged, format.ErrNewer, format.ErrNoIdentity} {
		if errors.Is(err, documented) {
			return
		}
	}
	require.NoError(t, err)
}

func TestSegmentReader_findsEveryFlippedBit(t *testing.T) {
	for name, keys := range map[string]*format.Keys{"plain": {}, "sealed and signed": NewKeys(t).Load(t)} {
		t.Run(name, func(t *testing.T) {
			object := contents(example(t, keys))
			for bit := range 8 * len(object) {
				object[bit/8] ^= 1 << (bit % 8)
				_, err := readAll(bytes.NewReader(object), keys)
				assert.Error(t, err, "bit %d", bit)
				assert.Error(t, skipAll(bytes.NewReader(object), keys), "bit %d", bit)
				object[bit/8] ^= 1 << (bit % 8)
			}
		})
	}
}

// skipAll reads all manifests and skips the records.
func skipAll(r io.Reader, keys *format.Keys) error {
	reader := format.NewSegmentReader(r, keys)
	for {
		if _, err := reader.Next(); format.Ended(err) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func TestSegmentReader_findsMissingAndExtraBytes(t *testing.T) {
	object := contents(example(t, &format.Keys{}))
	for cut := 1; cut < len(object); cut++ {
		_, err := readAll(bytes.NewReader(object[:cut]), &format.Keys{})
		assert.ErrorIs(t, err, format.ErrDamaged, "cut at %d", cut)
	}
	_, err := readAll(bytes.NewReader(append(object, "more"...)), &format.Keys{})
	assert.ErrorIs(t, err, format.ErrDamaged)
}

func TestSegmentReader_returnsErrorsOfItsSource(t *testing.T) {
	broken := &store.Unavailable{Cause: io.EOF} // the connection failed, but the object is intact
	object := contents(example(t, &format.Keys{}))
	for cut := range object {
		_, err := readAll(io.MultiReader(bytes.NewReader(object[:cut]), iotest.ErrReader(broken)), &format.Keys{})
		assert.ErrorIs(t, err, broken, "cut at %d", cut)
		assert.NotErrorIs(t, err, format.ErrDamaged, "cut at %d", cut)
	}
}

// history generates rows from revision 7 on, grouped by revision: transactions, tombstones, and revisions without
// rows.
func history(t *rapid.T) (revisions [][]format.Row) {
	revision := int64(6)
	for range rapid.IntRange(0, 12).Draw(t, "revisions") {
		revision += rapid.Int64Range(1, 3).Draw(t, "step")
		var rows []format.Row
		for sub := range rapid.Int64Range(1, 3).Draw(t, "changes") {
			row := Row(revision, sub, rapid.StringN(0, 20, 40).Draw(t, "value"))
			if rapid.Bool().Draw(t, "deleted") {
				row = tombstone(revision, sub, string(row.Value))
			}
			rows = append(rows, row)
		}
		revisions = append(revisions, rows)
	}
	return revisions
}

// cut splits a history into segments at random revisions.
func cut(t *rapid.T, tb testing.TB, keys *format.Keys, revisions [][]format.Row) (segments []format.Object) {
	next := start()
	for len(revisions) > 0 {
		n := rapid.IntRange(0, len(revisions)).Draw(t, "revisions of a segment")
		var rows []format.Row
		for _, revision := range revisions[:n] {
			rows = append(rows, revision...)
		}
		object := Build(tb, keys, next, rows)
		segments, revisions, next = append(segments, object), revisions[n:], object.Start()
	}
	return segments
}

func TestChain_doesNotDependOnSegmentBoundaries(t *testing.T) {
	keys := NewKeys(t).Load(t)
	rapid.Check(t, func(rt *rapid.T) {
		revisions := history(rt)
		first, second := cut(rt, t, keys, revisions), cut(rt, t, keys, revisions)
		if len(revisions) == 0 {
			return
		}
		one, other := first[len(first)-1], second[len(second)-1]
		assert.Equal(t, one.After, other.After)
		assert.Equal(t, one.Last, other.Last)
		assert.Equal(t, text(join(revisions)), text(rowsOf(t, keys, first)))
		assert.Equal(t, text(join(revisions)), text(rowsOf(t, keys, second)))
	})
}

func TestChain_differsForDifferentRows(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		revisions := append(history(rt), []format.Row{Row(1000, 0, "last")})
		before := Build(t, &format.Keys{}, start(), join(revisions))
		changed := rapid.IntRange(0, len(revisions)-1).Draw(rt, "changed")
		i := rapid.IntRange(0, len(revisions[changed])-1).Draw(rt, "row")
		if rapid.Bool().Draw(rt, "removed") {
			revisions[changed] = append(revisions[changed][:i:i], revisions[changed][i+1:]...)
		} else {
			revisions[changed][i].Value = append([]byte("x"), revisions[changed][i].Value...)
		}
		assert.NotEqual(t, before.After, Build(t, &format.Keys{}, start(), join(revisions)).After)
	})
}

func join(revisions [][]format.Row) (rows []format.Row) {
	for _, revision := range revisions {
		rows = append(rows, revision...)
	}
	return rows
}

// text formats rows for comparison, so that empty and nil values are equal.
func text(rows []format.Row) (lines []string) {
	for _, row := range rows {
		lines = append(lines, fmt.Sprintf("%x %q", row.Key, row.Value))
	}
	return lines
}

// rowsOf reads concatenated segments, as in a merged object.
func rowsOf(t testing.TB, keys *format.Keys, segments []format.Object) (rows []format.Row) {
	t.Helper()
	var readers []io.Reader
	for _, object := range segments {
		readers = append(readers, object.Reader())
	}
	read, err := readAll(io.MultiReader(readers...), keys)
	require.NoError(t, err)
	require.Len(t, read, len(segments))
	for _, one := range read {
		rows = append(rows, one.rows...)
	}
	return rows
}
