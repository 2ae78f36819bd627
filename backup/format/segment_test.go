package format_test

import (
	"bytes"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
)

const cluster = "cdf818194e3a8c32"

// start returns the start of a segment after a full snapshot at revision 6.
func start() format.Start {
	return format.Start{
		Cluster: cluster, Generation: 1, Position: format.After(6), Before: format.Seed(cluster, 1, 6),
	}
}

// content is a decoded segment.
type content struct {
	format.Manifest
	rows    []format.Row
	markers []format.Marker
	hashes  []format.Hash
	buckets []*format.Bucket
}

// readAll reads segments until the end or an error.
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
		case *format.Hash:
			c.hashes = append(c.hashes, *record)
		case *format.Bucket:
			c.buckets = append(c.buckets, record)
		}
	}
}

func contents(o format.Object) []byte {
	all, err := io.ReadAll(o.Reader())
	if err != nil {
		panic(err) // never fails, because the object is in memory
	}
	return all
}

// example returns a segment with all kinds of records.
func example(t testing.TB, keys *format.Keys) format.Object {
	t.Helper()
	return Segment(t, keys, start(), format.Source{Compacted: 5, Term: 3, Member: "8e9e05c52164694d"},
		new(Row(7, 0, "apple")), new(Row(7, 1, "")), &format.Marker{Revision: 7, Time: TimeAt(7)}, new(tombstone(9, 0, "pear")),
		&format.Hash{Revision: 5, Compacted: 5, Hash: 1 << 31},
		&format.Marker{Revision: 12, Time: TimeAt(12).Add(time.Microsecond)},
		Bucket("lease", "1", "60", "2", ""), Bucket("alarm"))
}

func TestSegment_roundTrip(t *testing.T) {
	pair := NewKeys(t)
	for name, keys := range map[string]*format.Keys{"plain": {}, "sealed and signed": pair.Load(t)} {
		t.Run(name, func(t *testing.T) {
			object := example(t, keys)
			read, err := readAll(object.Reader(), keys)
			require.NoError(t, err)
			require.Len(t, read, 1)
			one := read[0]
			assert.Equal(t, object.Manifest, one.Manifest)
			assert.Equal(t, []format.Row{Row(7, 0, "apple"), Row(7, 1, ""), tombstone(9, 0, "pear")}, one.rows)
			assert.Equal(t, []format.Marker{{Revision: 7, Time: TimeAt(7)}, {Revision: 12, Time: TimeAt(12)}}, one.markers)
			assert.Equal(t, []format.Hash{{Revision: 5, Compacted: 5, Hash: 1 << 31}}, one.hashes)
			require.Len(t, one.buckets, 2)
			assert.Equal(t, Bucket("lease", "1", "60", "2", ""), one.buckets[0])
			assert.Equal(t, 0, one.buckets[1].Len())
			assert.Equal(t, []string{"lease", "alarm"}, one.Buckets)
			assert.EqualValues(t, 9, one.End)
			assert.Equal(t, format.Position{Revision: 10}, one.Next(), "revisions after the last row are not covered")
			assert.Equal(t, object.Size(), int64(len(contents(object))))
			assert.Equal(t, contents(object), contents(object), "the object can be read repeatedly")
		})
	}
}

func TestSegment_withoutRowsAdvancesThePart(t *testing.T) {
	first := Build(t, &format.Keys{}, start(), Rows(7, 9))
	second := Build(t, &format.Keys{}, first.Start(), nil, Bucket("lease", "1", "2"))
	third := Build(t, &format.Keys{}, second.Start(), nil, Bucket("lease"))
	fourth := Build(t, &format.Keys{}, third.Start(), Rows(10, 10))

	assert.Equal(t, format.Position{Revision: 10, Part: 1}, second.Next())
	assert.Equal(t, format.Position{Revision: 10, Part: 2}, third.Next())
	assert.Equal(t, format.Position{Revision: 11}, fourth.Next())
	assert.Equal(t, first.After, third.After, "segments without rows do not change the digest")
	assert.Equal(t, first.Last, third.Last)
	whole := Build(t, &format.Keys{}, start(), Rows(7, 10))
	assert.Equal(t, whole.After, fourth.After)
	assert.Equal(t, whole.Last, fourth.Last)
}

func TestSegmentReader_skipsWithoutAnIdentity(t *testing.T) {
	pair := NewKeys(t)
	keys := pair.Load(t)
	first := Build(t, keys, start(), Rows(7, 9))
	second := Build(t, keys, first.Start(), Rows(10, 12))
	both := append(contents(first), contents(second)...)

	withoutIdentity := LoadKeys(t, format.KeyFiles{TrustedKeys: pair.TrustedKeys})
	reader := format.NewSegmentReader(bytes.NewReader(both), withoutIdentity)
	manifest, err := reader.Next()
	require.NoError(t, err)
	assert.Equal(t, first.Manifest, manifest)
	manifest, err = reader.Next()
	require.NoError(t, err)
	assert.Equal(t, second.Manifest, manifest)
	_, err = reader.Next()
	assert.Equal(t, io.EOF, err)

	reader = format.NewSegmentReader(bytes.NewReader(both), withoutIdentity)
	_, err = reader.Next()
	require.NoError(t, err)
	_, err = reader.Record()
	assert.ErrorIs(t, err, format.ErrNoIdentity)
	_, laterErr := reader.Next()
	assert.Equal(t, err, laterErr, "every later call returns the same error")
}

func TestSegmentReader_skipsTheRestOfASegment(t *testing.T) {
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

func TestSegmentBuilder_rejectsRecordsOutOfOrder(t *testing.T) {
	for name, records := range map[string][]format.Record{
		"a row before the start":                 {new(Row(6, 0, ""))},
		"a row twice":                            {new(Row(8, 0, "")), new(Row(8, 0, ""))},
		"a row out of order":                     {new(Row(8, 0, "")), new(Row(7, 0, ""))},
		"a row with an invalid key":              {&format.Row{Key: []byte("foo")}},
		"a negative revision":                    {new(Row(-1, 0, ""))},
		"a marker before the start":              {&format.Marker{Revision: 5, Time: TimeAt(5)}},
		"a marker without time":                  {&format.Marker{Revision: 7}},
		"a bucket without name":                  {Bucket("")},
		"bucket entries out of order":            {Bucket("lease", "b", "", "a", "")},
		"a bucket twice":                         {Bucket("a"), Bucket("a")},
		"a row after a bucket":                   {Bucket("a"), new(Row(7, 0, ""))},
		"a hash of a later compaction":           {&format.Hash{Revision: 1, Compacted: 2}},
		"a hash of a negative revision":          {&format.Hash{Revision: -1, Compacted: -1}},
		"a row after the marker of its revision": {&format.Marker{Revision: 8, Time: TimeAt(8)}, new(Row(8, 0, ""))},
	} {
		t.Run(name, func(t *testing.T) {
			builder, err := format.NewSegmentBuilder(&format.Keys{}, start())
			require.NoError(t, err)
			last := len(records) - 1
			for _, record := range records[:last] {
				require.NoError(t, builder.Add(record))
			}
			assert.Error(t, builder.Add(records[last]))
		})
	}
}

// tombstone returns a row that deletes a key.
func tombstone(revision, sub int64, value string) format.Row {
	row := Row(revision, sub, value)
	row.Key = append(row.Key, 't')
	return row
}

// fence matches a code block in a documentation page.
var fence = regexp.MustCompile("(?s)```\n(.*?)```")

// page returns a page of the documentation.
func page(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	require.NoError(t, err)
	return string(content)
}

// documented returns the statement, body and records of the documented example.
func documented(t *testing.T) (line, body, records []byte) {
	t.Helper()
	blocks := fence.FindAllStringSubmatch(page(t, "backup-format-example.md"), -1)
	require.Len(t, blocks, 3)
	return []byte(blocks[0][1]), undump(t, blocks[1][1]), undump(t, blocks[2][1])
}

// undump parses the output of hex.Dump.
func undump(t *testing.T, dump string) (all []byte) {
	t.Helper()
	for line := range strings.Lines(dump) {
		middle, _, _ := strings.Cut(line[10:], "|")
		bytes, err := hex.DecodeString(strings.ReplaceAll(middle, " ", ""))
		require.NoError(t, err)
		all = append(all, bytes...)
	}
	return all
}

func TestDocumentedExample(t *testing.T) {
	line, body, records := documented(t)
	plain, err := new(format.Keys).Open(bytes.NewReader(body), false)
	require.NoError(t, err)
	defer plain.Close()
	opened, err := io.ReadAll(plain)
	require.NoError(t, err)
	assert.Equal(t, records, opened)

	read, err := readAll(bytes.NewReader(append(line, body...)), &format.Keys{})
	require.NoError(t, err)
	want := example(t, &format.Keys{}).Manifest
	want.Body = read[0].Body // a different zstd version may produce different bytes
	assert.Equal(t, want, read[0].Manifest)
	assert.Equal(t, format.Position{Revision: 10}, read[0].Next())
	assert.Equal(t, []format.Row{Row(7, 0, "apple"), Row(7, 1, ""), tombstone(9, 0, "pear")}, read[0].rows)
}

// jsonName matches a field name in a line of JSON.
var jsonName = regexp.MustCompile(`"(\w+)":`)

func TestManifest_fieldsAreDocumented(t *testing.T) {
	whole := page(t, "backup-format.md")
	section := whole[strings.Index(whole, "## Segments"):strings.Index(whole, "## The chain")]
	object := example(t, &format.Keys{})
	statement, _, _ := strings.Cut(string(object.Line), `,"sha256":"`+object.Body.SHA256.String())
	for _, name := range jsonName.FindAllStringSubmatch(statement, -1) {
		switch name[1] {
		case "statement", "format", "kind", "revision", "part", "bytes": // part of the surrounding JSON, or explained by an example
		default:
			assert.Contains(t, section, "`"+name[1]+"`")
		}
	}
	assert.Contains(t, section, "`encrypted`")
}
