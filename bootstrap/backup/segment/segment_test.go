package segment_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/backup/seal"
	"etcd-wrapper/bootstrap/backup/seal/sealtest"
	"etcd-wrapper/bootstrap/backup/segment"
	. "etcd-wrapper/bootstrap/backup/segment/segmenttest"
	"etcd-wrapper/bootstrap/backup/store"
)

const cluster = "cdf818194e3a8c32"

// start is behind a full of revision 6.
func start() segment.Start {
	return segment.Start{
		Cluster: cluster, Generation: 1, Position: segment.After(6), Before: segment.Seed(cluster, 1, 6),
	}
}

// content is everything that is in a segment.
type content struct {
	segment.Manifest
	rows    []segment.Row
	markers []segment.Marker
	hashes  []segment.CompactionHash
	buckets []*segment.Bucket
}

// readAll reads segments until the error that ends them, which is nil for the end.
func readAll(r io.Reader, keys *seal.Keys) (all []content, err error) {
	reader := segment.NewReader(r, keys)
	for {
		manifest, err := reader.Next()
		if seal.Ended(err) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		one := content{Manifest: manifest}
		if err := one.read(reader); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
}

func (c *content) read(reader *segment.Reader) error {
	for {
		record, err := reader.Record()
		if seal.Ended(err) {
			return nil
		}
		if err != nil {
			return err
		}
		switch record := record.(type) {
		case *segment.Row:
			c.rows = append(c.rows, segment.Row{Key: bytes.Clone(record.Key), Value: bytes.Clone(record.Value)})
		case *segment.Marker:
			c.markers = append(c.markers, *record)
		case *segment.CompactionHash:
			c.hashes = append(c.hashes, *record)
		case *segment.Bucket:
			c.buckets = append(c.buckets, record)
		}
	}
}

func contents(o segment.Object) []byte {
	all, err := io.ReadAll(o.Reader())
	if err != nil {
		panic(err) // it is in memory
	}
	return all
}

// example has one of everything.
func example(t testing.TB, keys *seal.Keys) segment.Object {
	t.Helper()
	builder, err := segment.NewBuilder(keys, start())
	require.NoError(t, err)
	require.NoError(t, builder.Row(Row(7, 0, "apple")))
	require.NoError(t, builder.Row(Row(7, 1, "")))
	require.NoError(t, builder.Marker(segment.Marker{Revision: 7, Time: At(7)}))
	require.NoError(t, builder.Row(Tombstone(9, 0, "pear")))
	require.NoError(t, builder.CompactionHash(segment.CompactionHash{Revision: 5, Compacted: 5, Hash: 1 << 31}))
	require.NoError(t, builder.Marker(segment.Marker{Revision: 12, Time: At(12).Add(time.Microsecond)}))
	require.NoError(t, builder.Bucket(Bucket("lease", "1", "60", "2", "")))
	require.NoError(t, builder.Bucket(Bucket("alarm")))
	object, err := builder.Finish(segment.Source{Compacted: 5, Term: 3, Member: "8e9e05c52164694d"})
	require.NoError(t, err)
	return object
}

func TestASegmentIsReadAsItWasBuilt(t *testing.T) {
	pair := sealtest.New(t)
	for name, keys := range map[string]*seal.Keys{"plain": {}, "sealed and signed": pair.Load(t)} {
		t.Run(name, func(t *testing.T) {
			object := example(t, keys)
			read, err := readAll(object.Reader(), keys)
			require.NoError(t, err)
			require.Len(t, read, 1)
			one := read[0]
			assert.Equal(t, object.Manifest, one.Manifest)
			assert.Equal(t, []segment.Row{Row(7, 0, "apple"), Row(7, 1, ""), Tombstone(9, 0, "pear")}, one.rows)
			assert.Equal(t, []segment.Marker{{Revision: 7, Time: At(7)}, {Revision: 12, Time: At(12)}}, one.markers)
			assert.Equal(t, []segment.CompactionHash{{Revision: 5, Compacted: 5, Hash: 1 << 31}}, one.hashes)
			require.Len(t, one.buckets, 2)
			assert.Equal(t, Bucket("lease", "1", "60", "2", ""), one.buckets[0])
			assert.Equal(t, 0, one.buckets[1].Len())
			assert.Equal(t, []string{"lease", "alarm"}, one.Buckets)
			assert.EqualValues(t, 9, one.End)
			assert.Equal(t, segment.Position{Revision: 10}, one.Next(), "a revision without rows is not covered")
			assert.Equal(t, object.Size(), int64(len(contents(object))))
			assert.Equal(t, contents(object), contents(object), "it may be read again")
		})
	}
}

func TestASegmentWithoutRowsMovesOnlyItsPart(t *testing.T) {
	first := Build(t, &seal.Keys{}, start(), Rows(7, 9))
	second := Build(t, &seal.Keys{}, first.Start(), nil, Bucket("lease", "1", "2"))
	third := Build(t, &seal.Keys{}, second.Start(), nil, Bucket("lease"))
	fourth := Build(t, &seal.Keys{}, third.Start(), Rows(10, 10))

	assert.Equal(t, segment.Position{Revision: 10, Part: 1}, second.Next())
	assert.Equal(t, segment.Position{Revision: 10, Part: 2}, third.Next())
	assert.Equal(t, segment.Position{Revision: 11}, fourth.Next())
	assert.Equal(t, first.After, third.After, "no row, no other digest")
	assert.Equal(t, first.Last, third.Last)
	whole := Build(t, &seal.Keys{}, start(), Rows(7, 10))
	assert.Equal(t, whole.After, fourth.After)
	assert.Equal(t, whole.Last, fourth.Last)
}

func TestAFlippedBitInASegmentIsAnError(t *testing.T) {
	pair := sealtest.New(t)
	for name, keys := range map[string]*seal.Keys{"plain": {}, "sealed and signed": pair.Load(t)} {
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

// skipAll reads no records.
func skipAll(r io.Reader, keys *seal.Keys) error {
	reader := segment.NewReader(r, keys)
	for {
		if _, err := reader.Next(); seal.Ended(err) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func TestASegmentThatIsCutOffOrGoesOnIsDamaged(t *testing.T) {
	object := contents(example(t, &seal.Keys{}))
	for cut := 1; cut < len(object); cut++ {
		_, err := readAll(bytes.NewReader(object[:cut]), &seal.Keys{})
		assert.ErrorIs(t, err, seal.ErrDamaged, "cut at %d", cut)
	}
	_, err := readAll(bytes.NewReader(append(object, "more"...)), &seal.Keys{})
	assert.ErrorIs(t, err, seal.ErrDamaged)
}

func TestWhatReadingFailsWithIsNotDamage(t *testing.T) {
	broken := &store.Unavailable{Cause: io.EOF} // of a connection, not of the object
	object := contents(example(t, &seal.Keys{}))
	for cut := range object {
		_, err := readAll(io.MultiReader(bytes.NewReader(object[:cut]), iotest.ErrReader(broken)), &seal.Keys{})
		assert.ErrorIs(t, err, broken, "cut at %d", cut)
		assert.NotErrorIs(t, err, seal.ErrDamaged, "cut at %d", cut)
	}
}

func TestSegmentsAreSkippedWithoutAnIdentity(t *testing.T) {
	pair := sealtest.New(t)
	keys := pair.Load(t)
	first := Build(t, keys, start(), Rows(7, 9))
	second := Build(t, keys, first.Start(), Rows(10, 12))
	both := append(contents(first), contents(second)...)

	blind := sealtest.Load(t, seal.Files{TrustedKeys: pair.TrustedKeys})
	reader := segment.NewReader(bytes.NewReader(both), blind)
	manifest, err := reader.Next()
	require.NoError(t, err)
	assert.Equal(t, first.Manifest, manifest)
	manifest, err = reader.Next()
	require.NoError(t, err)
	assert.Equal(t, second.Manifest, manifest)
	assert.Equal(t, first.Size(), reader.Offset())
	_, err = reader.Next()
	assert.Equal(t, io.EOF, err)

	reader = segment.NewReader(bytes.NewReader(both), blind)
	_, err = reader.Next()
	require.NoError(t, err)
	_, err = reader.Record()
	assert.ErrorIs(t, err, seal.ErrNoIdentity)
	_, again := reader.Next()
	assert.Equal(t, err, again, "an error stays")
}

func TestTheRestOfASegmentMayBeLeftUnread(t *testing.T) {
	first := Build(t, &seal.Keys{}, start(), Rows(7, 1000))
	second := Build(t, &seal.Keys{}, first.Start(), Rows(1001, 1001))
	reader := segment.NewReader(io.MultiReader(first.Reader(), second.Reader()), &seal.Keys{})
	_, err := reader.Next()
	require.NoError(t, err)
	_, err = reader.Record()
	require.NoError(t, err)
	manifest, err := reader.Next()
	require.NoError(t, err)
	assert.Equal(t, second.Position, manifest.Position)
	_, err = reader.Record()
	assert.NoError(t, err)
}

func TestWhatDoesNotBelongIntoASegmentIsRefused(t *testing.T) {
	large := segment.NewBucket("lease")
	large.Add([]byte("b"), nil)
	large.Add([]byte("a"), nil)
	for name, add := range map[string]func(*segment.Builder) error{
		"a row before it":       func(b *segment.Builder) error { return b.Row(Row(6, 0, "")) },
		"a row again":           func(b *segment.Builder) error { return errors.Join(b.Row(Row(8, 0, "")), b.Row(Row(8, 0, ""))) },
		"a row out of order":    func(b *segment.Builder) error { return errors.Join(b.Row(Row(8, 0, "")), b.Row(Row(7, 0, ""))) },
		"something else":        func(b *segment.Builder) error { return b.Row(segment.Row{Key: []byte("foo")}) },
		"a negative revision":   func(b *segment.Builder) error { return b.Row(Row(-1, 0, "")) },
		"a marker before it":    func(b *segment.Builder) error { return b.Marker(segment.Marker{Revision: 5, Time: At(5)}) },
		"a marker without time": func(b *segment.Builder) error { return b.Marker(segment.Marker{Revision: 7}) },
		"a bucket without name": func(b *segment.Builder) error { return b.Bucket(Bucket("")) },
		"a bucket out of order": func(b *segment.Builder) error { return b.Bucket(large) },
		"a bucket twice":        func(b *segment.Builder) error { return errors.Join(b.Bucket(Bucket("a")), b.Bucket(Bucket("a"))) },
		"a row behind a bucket": func(b *segment.Builder) error { return errors.Join(b.Bucket(Bucket("a")), b.Row(Row(7, 0, ""))) },
		"a hash of the future": func(b *segment.Builder) error {
			return b.CompactionHash(segment.CompactionHash{Revision: 1, Compacted: 2})
		},
		"a hash of the past": func(b *segment.Builder) error {
			return b.CompactionHash(segment.CompactionHash{Revision: -1, Compacted: -1})
		},
		"a row behind a marker's": func(b *segment.Builder) error {
			return errors.Join(b.Marker(segment.Marker{Revision: 8, Time: At(8)}), b.Row(Row(8, 0, "")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			builder, err := segment.NewBuilder(&seal.Keys{}, start())
			require.NoError(t, err)
			assert.Error(t, add(builder))
		})
	}
}

func TestTheLastPartLeavesNoFurtherOne(t *testing.T) {
	last := start()
	last.Position.Part = 999_999
	object := Build(t, &seal.Keys{}, last, nil)
	_, err := segment.NewBuilder(&seal.Keys{}, object.Start())
	assert.ErrorContains(t, err, "take a full")
}

func TestPositionsHaveTheOrderOfTheirNames(t *testing.T) {
	positions := []segment.Position{{1, 0}, {1, 1}, {1, 10}, {2, 0}, {10, 0}, {1 << 62, 0}}
	for i, position := range positions {
		parsed, err := segment.ParsePosition(position.String())
		require.NoError(t, err)
		assert.Equal(t, position, parsed)
		if i > 0 {
			assert.Positive(t, position.Compare(positions[i-1]))
			assert.Positive(t, strings.Compare(position.String(), positions[i-1].String()))
		}
	}
	for _, bad := range []string{
		"", "1.0", "0000000000000000001", "0000000000000000001.0000000", "0000000000000000000.000000", "000000000000000000a.000000",
		"-000000000000000001.000000", "0000000000000000001.00000a", "0000000000000000001.000000x", "+000000000000000001.000000",
		"9999999999999999999.000000",
	} {
		_, err := segment.ParsePosition(bad)
		assert.Error(t, err, bad)
	}
}

func TestADigestIsReadFromItsTextOnly(t *testing.T) {
	digest := segment.Seed(cluster, 1, 1)
	text, err := digest.MarshalText()
	require.NoError(t, err)
	var read segment.Digest
	require.NoError(t, read.UnmarshalText(text))
	assert.Equal(t, digest, read)
	assert.Error(t, read.UnmarshalText(text[2:]))
	assert.Error(t, read.UnmarshalText(append([]byte("x"), text[1:]...)))
	assert.NotEqual(t, digest, segment.Seed(cluster, 2, 1))
	assert.NotEqual(t, digest, segment.Seed(cluster, 1, 2))
}
