// Package formattest creates key files, etcd histories and segments for tests.
package formattest

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/format"
)

// Keys contains the paths of key files for one age identity and one signing key.
type Keys struct {
	format.KeyFiles
}

// NewKeys generates keys in temporary files.
func NewKeys(t testing.TB) Keys {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signing, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	trusted, err := x509.MarshalPKIXPublicKey(public)
	require.NoError(t, err)
	return Keys{KeyFiles: format.KeyFiles{
		Recipients:  WriteFile(t, "# test recipient\n"+identity.Recipient().String()+"\n"),
		Identities:  WriteFile(t, "# test identity\n"+identity.String()+"\n"),
		SigningKey:  WriteFile(t, PEM("PRIVATE KEY", signing)),
		TrustedKeys: WriteFile(t, PEM("PUBLIC KEY", trusted)),
	}}
}

// Load loads all key files.
func (p Keys) Load(t testing.TB) *format.Keys { return LoadKeys(t, p.KeyFiles) }

// LoadKeys loads key files and fails the test if one is invalid.
func LoadKeys(t testing.TB, files format.KeyFiles) *format.Keys {
	t.Helper()
	keys, err := format.LoadKeys(files)
	require.NoError(t, err)
	return keys
}

// WriteFile writes content to a temporary file and returns the file's path.
func WriteFile(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// JoinFiles concatenates files and returns the path of the result.
func JoinFiles(t testing.TB, paths ...string) string {
	t.Helper()
	var all strings.Builder
	for _, path := range paths {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		all.Write(content)
	}
	return WriteFile(t, all.String())
}

// PEM encodes bytes as a PEM block.
func PEM(kind string, bytes []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}))
}

// T is implemented by testing.TB and *rapid.T.
type T interface {
	require.TestingT
	Helper()
}

// Row returns a row. The argument sub is the number of earlier changes in the same revision.
func Row(revision, sub int64, value string) format.Row {
	key := binary.BigEndian.AppendUint64(nil, uint64(revision))
	key = binary.BigEndian.AppendUint64(append(key, '_'), uint64(sub))
	return format.Row{Key: key, Value: []byte(value)}
}

// Rows returns one row for each revision from first to last.
func Rows(first, last int64) (rows []format.Row) {
	for revision := first; revision <= last; revision++ {
		rows = append(rows, Row(revision, 0, fmt.Sprintf("value %d", revision)))
	}
	return rows
}

// Noon is the time of revision 0.
var Noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// TimeAt returns the time of a revision: Noon plus one second per revision.
func TimeAt(revision int64) time.Time { return Noon.Add(time.Duration(revision) * time.Second) }

// Build returns a segment with the rows and buckets, and a marker after each revision.
func Build(t T, keys *format.Keys, start format.Start, rows []format.Row, buckets ...*format.Bucket) format.Object {
	t.Helper()
	var records []format.Record
	for i, row := range rows {
		records = append(records, &row)
		if revision := revisionOf(t, row); i == len(rows)-1 || revisionOf(t, rows[i+1]) > revision {
			records = append(records, &format.Marker{Revision: revision, Time: TimeAt(revision)})
		}
	}
	for _, bucket := range buckets {
		records = append(records, bucket)
	}
	return Segment(t, keys, start, format.Source{Term: 2, Member: "8e9e05c52164694d"}, records...)
}

// Segment returns a segment with the records.
func Segment(t T, keys *format.Keys, start format.Start, source format.Source, records ...format.Record) format.Object {
	t.Helper()
	builder, err := format.NewSegmentBuilder(keys, start)
	require.NoError(t, err)
	for _, record := range records {
		require.NoError(t, builder.Add(record))
	}
	object, err := builder.Finish(source)
	require.NoError(t, err)
	return object
}

func revisionOf(t T, row format.Row) int64 {
	t.Helper()
	revision, err := row.Revision()
	require.NoError(t, err)
	return revision
}

// Bucket returns a bucket. The entries alternate between keys and values.
func Bucket(name string, entries ...string) *format.Bucket {
	bucket := format.NewBucket(name)
	for i := 0; i < len(entries); i += 2 {
		bucket.Add([]byte(entries[i]), []byte(entries[i+1]))
	}
	return bucket
}
