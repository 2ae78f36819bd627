package format_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
)

const cluster = "cdf818194e3a8c32"

// start is the position after a full snapshot of revision 6.
func start() format.Start {
	return format.Start{
		Cluster: cluster, Generation: 1, Position: format.After(6), Before: format.Seed(cluster, 1, 6),
	}
}

// content is everything that is in a segment.
type content struct {
	format.Manifest
	rows    []format.Row
	markers []format.Marker
	hashes  []format.CompactionHash
	buckets []*format.Bucket
}

// readAll reads segments until the error that ends them, which is nil for the end.
func readAll(r io.Reader, keys *format.Keys) (all []content, err error) {
	reader := format.NewSegmentReader(r, keys)
	for {
		manifest, err := reader.Next()
		if format.Ended(err) {
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

func (c *content) read(reader *format.SegmentReader) error {
	for {
		record, err := reader.Record()
		if format.Ended(err) {
			return nil
		}
		if err != nil {
			return err
		}
		switch record := record.(type) {
		case *format.Row:
			c.rows = append(c.rows, format.Row{Key: bytes.Clone(record.Key), Value: bytes.Clone(record.Value)})
		case *format.Marker:
			c.markers = append(c.markers, *record)
		case *format.CompactionHash:
			c.hashes = append(c.hashes, *record)
		case *format.Bucket:
			c.buckets = append(c.buckets, record)
		}
	}
}

func contents(o format.Object) []byte {
	all, err := io.ReadAll(o.Reader())
	if err != nil {
		panic(err) // it is in memory
	}
	return all
}

// example has one of everything.
func example(t testing.TB, keys *format.Keys) format.Object {
	t.Helper()
	builder, err := format.NewSegmentBuilder(keys, start())
	require.NoError(t, err)
	require.NoError(t, builder.Row(Row(7, 0, "apple")))
	require.NoError(t, builder.Row(Row(7, 1, "")))
	require.NoError(t, builder.Marker(format.Marker{Revision: 7, Time: At(7)}))
	require.NoError(t, builder.Row(Tombstone(9, 0, "pear")))
	require.NoError(t, builder.CompactionHash(format.CompactionHash{Revision: 5, Compacted: 5, Hash: 1 << 31}))
	require.NoError(t, builder.Marker(format.Marker{Revision: 12, Time: At(12).Add(time.Microsecond)}))
	require.NoError(t, builder.Bucket(Bucket("lease", "1", "60", "2", "")))
	require.NoError(t, builder.Bucket(Bucket("alarm")))
	object, err := builder.Finish(format.Source{Compacted: 5, Term: 3, Member: "8e9e05c52164694d"})
	require.NoError(t, err)
	return object
}

func TestASegmentIsReadAsItWasBuilt(t *testing.T) {
	pair := NewKeys(t)
	for name, keys := range map[string]*format.Keys{"plain": {}, "sealed and signed": pair.Load(t)} {
		t.Run(name, func(t *testing.T) {
			object := example(t, keys)
			read, err := readAll(object.Reader(), keys)
			require.NoError(t, err)
			require.Len(t, read, 1)
			one := read[0]
			assert.Equal(t, object.Manifest, one.Manifest)
			assert.Equal(t, []format.Row{Row(7, 0, "apple"), Row(7, 1, ""), Tombstone(9, 0, "pear")}, one.rows)
			assert.Equal(t, []format.Marker{{Revision: 7, Time: At(7)}, {Revision: 12, Time: At(12)}}, one.markers)
			assert.Equal(t, []format.CompactionHash{{Revision: 5, Compacted: 5, Hash: 1 << 31}}, one.hashes)
			require.Len(t, one.buckets, 2)
			assert.Equal(t, Bucket("lease", "1", "60", "2", ""), one.buckets[0])
			assert.Equal(t, 0, one.buckets[1].Len())
			assert.Equal(t, []string{"lease", "alarm"}, one.Buckets)
			assert.EqualValues(t, 9, one.End)
			assert.Equal(t, format.Position{Revision: 10}, one.Next(), "a revision without rows is not covered")
			assert.Equal(t, object.Size(), int64(len(contents(object))))
			assert.Equal(t, contents(object), contents(object), "it may be read again")
		})
	}
}

func TestASegmentWithoutRowsMovesOnlyItsPart(t *testing.T) {
	first := Build(t, &format.Keys{}, start(), Rows(7, 9))
	second := Build(t, &format.Keys{}, first.Start(), nil, Bucket("lease", "1", "2"))
	third := Build(t, &format.Keys{}, second.Start(), nil, Bucket("lease"))
	fourth := Build(t, &format.Keys{}, third.Start(), Rows(10, 10))

	assert.Equal(t, format.Position{Revision: 10, Part: 1}, second.Next())
	assert.Equal(t, format.Position{Revision: 10, Part: 2}, third.Next())
	assert.Equal(t, format.Position{Revision: 11}, fourth.Next())
	assert.Equal(t, first.After, third.After, "no row, no other digest")
	assert.Equal(t, first.Last, third.Last)
	whole := Build(t, &format.Keys{}, start(), Rows(7, 10))
	assert.Equal(t, whole.After, fourth.After)
	assert.Equal(t, whole.Last, fourth.Last)
}

func TestSegmentsAreSkippedWithoutAnIdentity(t *testing.T) {
	pair := NewKeys(t)
	keys := pair.Load(t)
	first := Build(t, keys, start(), Rows(7, 9))
	second := Build(t, keys, first.Start(), Rows(10, 12))
	both := append(contents(first), contents(second)...)

	blind := LoadKeys(t, format.KeyFiles{TrustedKeys: pair.TrustedKeys})
	reader := format.NewSegmentReader(bytes.NewReader(both), blind)
	manifest, err := reader.Next()
	require.NoError(t, err)
	assert.Equal(t, first.Manifest, manifest)
	manifest, err = reader.Next()
	require.NoError(t, err)
	assert.Equal(t, second.Manifest, manifest)
	_, err = reader.Next()
	assert.Equal(t, io.EOF, err)

	reader = format.NewSegmentReader(bytes.NewReader(both), blind)
	_, err = reader.Next()
	require.NoError(t, err)
	_, err = reader.Record()
	assert.ErrorIs(t, err, format.ErrNoIdentity)
	_, again := reader.Next()
	assert.Equal(t, err, again, "an error stays")
}

func TestTheRestOfASegmentMayBeLeftUnread(t *testing.T) {
	first := Build(t, &format.Keys{}, start(), Rows(7, 1000))
	second := Build(t, &format.Keys{}, first.Start(), Rows(1001, 1001))
	reader := format.NewSegmentReader(io.MultiReader(first.Reader(), second.Reader()), &format.Keys{})
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
	large := format.NewBucket("lease")
	large.Add([]byte("b"), nil)
	large.Add([]byte("a"), nil)
	for name, add := range map[string]func(*format.SegmentBuilder) error{
		"a row before it":       func(b *format.SegmentBuilder) error { return b.Row(Row(6, 0, "")) },
		"a row again":           func(b *format.SegmentBuilder) error { return errors.Join(b.Row(Row(8, 0, "")), b.Row(Row(8, 0, ""))) },
		"a row out of order":    func(b *format.SegmentBuilder) error { return errors.Join(b.Row(Row(8, 0, "")), b.Row(Row(7, 0, ""))) },
		"something else":        func(b *format.SegmentBuilder) error { return b.Row(format.Row{Key: []byte("foo")}) },
		"a negative revision":   func(b *format.SegmentBuilder) error { return b.Row(Row(-1, 0, "")) },
		"a marker before it":    func(b *format.SegmentBuilder) error { return b.Marker(format.Marker{Revision: 5, Time: At(5)}) },
		"a marker without time": func(b *format.SegmentBuilder) error { return b.Marker(format.Marker{Revision: 7}) },
		"a bucket without name": func(b *format.SegmentBuilder) error { return b.Bucket(Bucket("")) },
		"a bucket out of order": func(b *format.SegmentBuilder) error { return b.Bucket(large) },
		"a bucket twice":        func(b *format.SegmentBuilder) error { return errors.Join(b.Bucket(Bucket("a")), b.Bucket(Bucket("a"))) },
		"a row behind a bucket": func(b *format.SegmentBuilder) error { return errors.Join(b.Bucket(Bucket("a")), b.Row(Row(7, 0, ""))) },
		"a hash of the future": func(b *format.SegmentBuilder) error {
			return b.CompactionHash(format.CompactionHash{Revision: 1, Compacted: 2})
		},
		"a hash of the past": func(b *format.SegmentBuilder) error {
			return b.CompactionHash(format.CompactionHash{Revision: -1, Compacted: -1})
		},
		"a row behind a marker's": func(b *format.SegmentBuilder) error {
			return errors.Join(b.Marker(format.Marker{Revision: 8, Time: At(8)}), b.Row(Row(8, 0, "")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			builder, err := format.NewSegmentBuilder(&format.Keys{}, start())
			require.NoError(t, err)
			assert.Error(t, add(builder))
		})
	}
}
