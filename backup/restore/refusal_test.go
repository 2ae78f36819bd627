package restore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// snapshotOf returns the source of a snapshot without later rows.
func snapshotOf(content []byte) Source {
	return Source{Snapshot: func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }}
}

func smallFull(t *testing.T) (h *history, snapshot []byte) {
	h = newHistory(t, 9)
	h.run(6)
	h.fulls = nil
	h.takeFull()
	h.run(6)
	snapshot, err := os.ReadFile(h.fulls[0].path)
	require.NoError(t, err)
	return h, snapshot
}

func TestDatabase_rejectsInvalidSnapshots(t *testing.T) {
	_, good := smallFull(t)
	flipped := bytes.Clone(good)
	flipped[len(flipped)/2] ^= 1
	foreign := filepath.Join(t.TempDir(), "foreign")
	db, err := bolt.Open(foreign, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	notEtcd, err := os.ReadFile(foreign)
	require.NoError(t, err)
	const noDigest = "before the SHA-256 (must be a positive multiple of 512)"
	for what, example := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":                {nil, noDigest},
		"short":                {good[:20], ""},
		"only the digest":      {good[len(good)-32:], ""},
		"digest of no content": {withDigest(nil), noDigest},
		"last byte missing":    {good[:len(good)-1], ""},
		"digest missing":       {good[:len(good)-32], noDigest},
		"pages missing":        {append(bytes.Clone(good[:4096]), good[len(good)-32:]...), ""},
		"flipped bit":          {flipped, ""},
		"extra byte":           {append(bytes.Clone(good), 0), ""},
		"not an etcd database": {withDigest(notEtcd), ""},
		"noise":                {withDigest(bytes.Repeat([]byte("noise..."), 4096)), ""},
	} {
		path := filepath.Join(t.TempDir(), "db")
		_, err := Database(t.Context(), snapshotOf(example.content), path, Options{Above: 5})
		require.ErrorIs(t, err, ErrDamaged, what)
		require.ErrorContains(t, err, example.want, what)
		require.NoFileExists(t, path)
	}
}

// withDigest returns the content followed by its digest, as in a snapshot.
func withDigest(content []byte) []byte {
	sum := sha256.Sum256(content)
	return append(bytes.Clone(content), sum[:]...)
}

func TestDatabase_readsPiecesOfAnySize(t *testing.T) {
	_, good := smallFull(t)
	for what, pieces := range map[string]func(io.Reader) io.Reader{"one byte": iotest.OneByteReader, "half": iotest.HalfReader, "error with data": iotest.DataErrReader} {
		source := Source{Snapshot: func(context.Context) (io.ReadCloser, error) { return io.NopCloser(pieces(bytes.NewReader(good))), nil }}
		path := filepath.Join(t.TempDir(), "db")
		_, err := Database(t.Context(), source, path, Options{})
		require.NoError(t, err, what)
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, good[:len(good)-32], got)
	}
}

func TestDatabase_rejectsUnexpectedRevision(t *testing.T) {
	h, good := smallFull(t)
	for off, refused := range map[int64]bool{-1: true, 0: false, 1: true} {
		source, path := snapshotOf(good), filepath.Join(t.TempDir(), "db")
		source.Revision = h.fulls[0].revision + off
		_, err := Database(t.Context(), source, path, Options{})
		if !refused {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, ErrDamaged)
		require.ErrorContains(t, err, "last revision is")
		require.NoFileExists(t, path)
	}
}

func TestDatabase_rejectsRowsOutOfOrder(t *testing.T) {
	h, _ := smallFull(t)
	for what, at := range map[string]int64{"before the full snapshot": 1, "at the full snapshot": h.fulls[0].revision} {
		source := h.source(h.fulls[0], h.fulls[0].moment)
		source.Rows = func(_ context.Context, row func(format.Row) error) (archive.Reading, error) {
			return archive.Reading{}, row(format.Row{Key: revisionKey(at)})
		}
		_, err := Database(t.Context(), source, filepath.Join(t.TempDir(), "db"), Options{})
		require.ErrorContains(t, err, "is out of order", what)
	}
	twice := h.source(h.fulls[0], h.fulls[0].moment)
	twice.Rows = func(_ context.Context, row func(format.Row) error) (archive.Reading, error) {
		return archive.Reading{}, errors.Join(row(format.Row{Key: revisionKey(900)}), row(format.Row{Key: revisionKey(900)}))
	}
	_, err := Database(t.Context(), twice, filepath.Join(t.TempDir(), "db"), Options{})
	require.ErrorContains(t, err, "is out of order")
}

func TestDatabase_returnsSourceErrors(t *testing.T) {
	h, good := smallFull(t)
	lost := errors.New("store unavailable")
	path := filepath.Join(t.TempDir(), "db")
	for what, source := range map[string]Source{
		"open": {Snapshot: func(context.Context) (io.ReadCloser, error) { return nil, lost }},
		"read": {Snapshot: func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(io.MultiReader(bytes.NewReader(good), iotest.ErrReader(lost))), nil
		}},
		"rows": {Snapshot: snapshotOf(good).Snapshot, Rows: func(_ context.Context, row func(format.Row) error) (archive.Reading, error) {
			return archive.Reading{}, errors.Join(row(format.Row{Key: revisionKey(900), Value: []byte("x")}), lost)
		}},
	} {
		_, err := Database(t.Context(), source, path, Options{})
		require.ErrorIs(t, err, lost, what)
		require.NoFileExists(t, path)
	}
	_, err := Database(t.Context(), h.source(h.fulls[0], h.fulls[0].moment), path, Options{Finish: func(*bolt.Tx) error { return lost }})
	require.ErrorIs(t, err, lost)
	require.NoFileExists(t, path)
}

func TestDatabase_endsWithItsContext(t *testing.T) {
	h, _ := smallFull(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	path := filepath.Join(t.TempDir(), "db")
	_, err := Database(ctx, h.source(h.fulls[0], h.moments[len(h.moments)-1]), path, Options{Progress: func(_, _ int64) { cancel(stopped) }})
	require.ErrorIs(t, err, stopped)
	require.NoFileExists(t, path)
}

func TestDatabase_keepsAnExistingFile(t *testing.T) {
	_, good := smallFull(t)
	path := filepath.Join(t.TempDir(), "db")
	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	_, err := Database(t.Context(), snapshotOf(good), path, Options{})
	require.ErrorIs(t, err, os.ErrExist)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "precious", string(content))
}

func TestDatabase_checksSpaceFirst(t *testing.T) {
	source := Source{DatabaseBytes: math.MaxInt64 / 4, RowBytes: 10, Snapshot: func(context.Context) (io.ReadCloser, error) {
		return nil, errors.New("the snapshot must not be fetched")
	}}
	dir := t.TempDir()
	_, err := Database(t.Context(), source, filepath.Join(dir, "db"), Options{})
	require.ErrorIs(t, err, ErrNoRoom)
	require.Regexp(t, `not enough space on the volume of `+dir+`: \d+ MiB needed, \d+ MiB free`, err.Error())
}

func TestDatabase_reportsProgress(t *testing.T) {
	h, good := smallFull(t)
	source := h.source(h.fulls[0], h.moments[len(h.moments)-1])
	source.DatabaseBytes = int64(len(good) - 32)
	var last, of int64
	result, err := Database(t.Context(), source, filepath.Join(t.TempDir(), "db"), Options{Progress: func(bytes, total int64) {
		require.GreaterOrEqual(t, bytes, last)
		last, of = bytes, total
	}})
	require.NoError(t, err)
	require.Equal(t, source.DatabaseBytes, of)
	require.Greater(t, last, source.DatabaseBytes, "the progress must include the rows")
	require.Positive(t, result.Rows)
}

func TestDatabase_doesNotReplaceKeyBucket(t *testing.T) {
	h, _ := smallFull(t)
	source := h.source(h.fulls[0], h.fulls[0].moment)
	source.Rows = func(context.Context, func(format.Row) error) (archive.Reading, error) {
		return archive.Reading{Buckets: []*format.Bucket{format.NewBucket("key")}}, nil
	}
	_, err := Database(t.Context(), source, filepath.Join(t.TempDir(), "db"), Options{})
	require.ErrorContains(t, err, `cannot replace bucket "key"`)
}

// inspected is the argument that makes the child process of these tests inspect a database.
const inspected = "inspect"

func inChild(what string) func(context.Context, string) error {
	return InspectInChild(os.Args[0], func(path string) []string { return []string{what, path} })
}

// makeInconsistent makes the pages of a snapshot's database inconsistent, and corrects the digest.
func makeInconsistent(snapshot []byte) []byte {
	broken := append([]byte{}, snapshot[:len(snapshot)-sha256.Size]...)
	datadirtest.BreakDatabase(broken)
	return withDigest(broken)
}

// The check must run in a child process, because bbolt panics in a goroutine of its own, where this process cannot
// recover the panic.
func TestInspectInChild_findsInconsistentPages(t *testing.T) {
	_, snapshot := smallFull(t)
	path := filepath.Join(t.TempDir(), "db")
	_, err := Database(t.Context(), snapshotOf(makeInconsistent(snapshot)), path, Options{Above: 1000, Inspect: inChild(inspected)})
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "cannot read the database: panic: ")
	require.NoFileExists(t, path)

	_, err = Database(t.Context(), snapshotOf(snapshot), path, Options{Above: 1000, Inspect: inChild(inspected)})
	require.NoError(t, err)
}

func TestInspectInChild_failsWithoutAResult(t *testing.T) {
	_, snapshot := smallFull(t)
	_, err := Database(t.Context(), snapshotOf(snapshot), filepath.Join(t.TempDir(), "db"), Options{Above: 1000, Inspect: inChild("unknown")})
	require.ErrorContains(t, err, "cannot check the database: exit status 3")
	require.NotErrorIs(t, err, ErrDamaged)
}
