package archive_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/folder"
	"etcd-wrapper/backup/store/memory"
)

// snapshotOf returns a stock snapshot: a database followed by its digest.
func snapshotOf(database string) string {
	sum := sha256.Sum256([]byte(database))
	return database + string(sum[:])
}

func fullOf(revision int64) archive.Full {
	return archive.Full{
		Cluster: cluster, Generation: 1, Revision: revision, Chain: format.Seed(cluster, 1, revision), Time: TimeAt(revision),
	}
}

func read(t *testing.T, a *archive.Archive, full archive.Full) (string, error) {
	t.Helper()
	content, err := a.OpenFull(t.Context(), full)
	if err != nil {
		return "", err
	}
	defer content.Close()
	all, err := io.ReadAll(content)
	return string(all), err
}

func TestOpenFull_returnsAStockSnapshot(t *testing.T) {
	directory, err := folder.New(t.TempDir())
	require.NoError(t, err)
	database := strings.Repeat("pages of a database ", 200_000)
	for name, s := range map[string]store.Store{"memory": memory.New(), "folder": directory} {
		for sealing, keys := range map[string]*format.Keys{"plain": {}, "sealed": NewKeys(t).Load(t)} {
			t.Run(name+" "+sealing, func(t *testing.T) {
				a := archive.New(s, keys)
				full, err := archivetest.PutFull(t.Context(), a, fullOf(int64(10+len(sealing))), strings.NewReader(database))
				require.NoError(t, err)
				known, err := a.Full(t.Context(), 1, full.Name())
				require.NoError(t, err)
				assert.Equal(t, full, known)
				assert.EqualValues(t, len(database), known.Database.Bytes)
				assert.Equal(t, format.After(full.Revision), known.Next)
				assert.True(t, known.StartsChain())
				snapshot, err := read(t, a, known)
				require.NoError(t, err)
				assert.True(t, snapshot == snapshotOf(database))
			})
		}
	}
}

func TestPutSealedData_mayBeRepeated(t *testing.T) {
	s := memory.New()
	a := archive.New(s, NewKeys(t).Load(t))
	var spooled bytes.Buffer
	body, err := a.SealSnapshot(&spooled, strings.NewReader("database").WriteTo)
	require.NoError(t, err)
	full := fullOf(10)
	full.Database = body
	for range 2 {
		stored, err := a.PutSealedData(t.Context(), full, bytes.NewReader(spooled.Bytes()))
		require.NoError(t, err)
		require.NoError(t, a.Commit(t.Context(), stored))
		snapshot, err := read(t, a, stored)
		require.NoError(t, err)
		assert.Equal(t, snapshotOf("database"), snapshot)
	}
	_, err = a.PutSealedData(t.Context(), full, strings.NewReader("other data"))
	assert.ErrorIs(t, err, store.ErrExists)
}

func TestHistory_fullWithoutAManifest(t *testing.T) {
	broken := errors.New("disk error")
	for name, c := range map[string]struct {
		lost     string // name prefix of objects that cannot be stored
		database io.Reader
	}{
		"database cannot be read":   {"none", io.MultiReader(strings.NewReader("data"), iotest.ErrReader(broken))},
		"data cannot be stored":     {"gen/000001/full/", strings.NewReader("database")},
		"manifest cannot be stored": {archive.ManifestName(1, fullOf(20).Name()), strings.NewReader("database")},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestWriter(t, &format.Keys{})
			w.store.Inject(memory.Fault{Op: memory.Put, Prefix: c.lost, Err: broken})
			_, err := archivetest.PutFull(w.ctx, w.Archive, fullOf(20), c.database)
			assert.ErrorIs(t, err, broken)
			w.store.ClearFaults()
			kept := w.history().Newest()
			assert.Len(t, kept.Fulls, 1)
			assert.Len(t, kept.Orphans, len(w.names("gen/000001/full/"))-2)
			assert.EqualValues(t, 10, w.head().Full.Revision)
		})
	}
}

func TestOpenFull_reportsDamage(t *testing.T) {
	t.Parallel()
	for sealing, keys := range map[string]*format.Keys{"plain": {}, "sealed": NewKeys(t).Load(t)} {
		t.Run(sealing, func(t *testing.T) {
			t.Parallel()
			w := newTestWriter(t, keys)
			full := *w.head().Full
			name := archive.DataName(1, full.Name())
			content, _ := w.store.Content(name)
			for bit := range 8 * len(content) {
				repair := w.damage(name, bit)
				_, err := read(t, w.Archive, full)
				assert.Error(t, err, "bit %d", bit)
				repair()
			}
			for length := range content {
				w.store.SetContent(name, content[:length])
				_, err := read(t, w.Archive, full)
				assert.ErrorIs(t, err, format.ErrDamaged, "cut at %d", length)
				assert.ErrorContains(t, err, name)
			}
			w.store.SetContent(name, append(content, 'x'))
			_, err := read(t, w.Archive, full)
			assert.ErrorIs(t, err, format.ErrDamaged)
			require.NoError(t, w.store.Delete(w.ctx, name))
			_, err = read(t, w.Archive, full)
			assert.ErrorIs(t, err, store.ErrNotFound)
		})
	}
}

func TestOpenFull_comparesTheDatabase(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	var spooled bytes.Buffer
	body, err := w.SealSnapshot(&spooled, strings.NewReader("database").WriteTo)
	require.NoError(t, err)
	for name, change := range map[string]func(*format.Body){
		"wrong digest": func(b *format.Body) { b.SHA256[0]++ },
		"shorter":      func(b *format.Body) { b.Bytes-- },
		"longer":       func(b *format.Body) { b.Bytes++ },
	} {
		full := fullOf(int64(20 + len(name)))
		full.Database = body
		change(&full.Database)
		stored, err := w.PutSealedData(w.ctx, full, bytes.NewReader(spooled.Bytes()))
		require.NoError(t, err)
		_, err = read(t, w.Archive, stored)
		assert.ErrorIs(t, err, format.ErrDamaged, name)
	}
}

func TestFull_rejectsContradictoryManifests(t *testing.T) {
	w := newTestWriter(t, &format.Keys{})
	full := *w.head().Full
	manifest, _ := w.store.Content(archive.ManifestName(1, full.Name()))
	other := archive.FullName(99, TimeAt(99))
	w.store.SetContent(archive.ManifestName(1, other), manifest)
	_, err := w.Full(w.ctx, 1, other)
	assert.ErrorIs(t, err, format.ErrDamaged)
	assert.EqualValues(t, 10, w.head().Full.Revision)

	for name, change := range map[string]func(*archive.Full){
		"no cluster":             func(f *archive.Full) { f.Cluster = "" },
		"no revision":            func(f *archive.Full) { f.Revision = 0 },
		"next position too high": func(f *archive.Full) { f.Next = format.After(100) },
		"no generation":          func(f *archive.Full) { f.Generation = 0 },
		"invalid next position":  func(f *archive.Full) { f.Next = format.Position{Part: 1} },
	} {
		full := fullOf(20)
		change(&full)
		_, err := archivetest.PutFull(w.ctx, w.Archive, full, strings.NewReader("database"))
		assert.Error(t, err, name)
	}
	implausible := fullOf(20)
	implausible.Data.Bytes, implausible.Database.Bytes, implausible.Next = 1<<20, 1<<50, format.After(20)
	assert.Error(t, w.Commit(w.ctx, implausible), "no compression reduces a petabyte to a megabyte")
	_, err = archivetest.PutFull(w.ctx, w.Archive, fullOf(20), strings.NewReader(""))
	assert.Error(t, err, "an empty database")
}

func TestHistory_newestResultCounts(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t))
	full := *w.head().Full
	assert.Nil(t, w.history().Newest().Fulls[0].Result)
	w.result(w.Archive, full, archive.Failed, 20, false)
	assert.False(t, w.history().Newest().Fulls[0].Usable())
	_, err := w.tryRestore(archive.Target{})
	assert.ErrorIs(t, err, archive.ErrNotKept)
	w.result(w.Archive, full, archive.Verified, 30, false)
	kept := w.history().Newest().Fulls[0]
	assert.True(t, kept.Usable())
	assert.Equal(t, archive.Verified, kept.Result.Outcome)

	w.result(w.Archive, full, archive.Verified, 40, true)
	w.result(w.Archive, full, archive.Failed, 50, true)
	tests, err := w.RestoreTests(w.ctx, 1, TimeAt(40))
	require.NoError(t, err)
	assert.Len(t, tests, 2)
	tests, err = w.RestoreTests(w.ctx, 1, TimeAt(41))
	require.NoError(t, err)
	require.Len(t, tests, 1)
	assert.Equal(t, archive.Failed, tests[0].Outcome)
	assert.True(t, w.history().Newest().Fulls[0].Usable(), "tests with segments do not count")
}

// PutResult must be able to store two results for the same full snapshot in the same second.
func TestPutResult_sameSecond(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t))
	full := *w.head().Full
	for _, test := range []bool{false, true} {
		for _, outcome := range []archive.Outcome{archive.Verified, archive.Verified, archive.Failed} {
			w.result(w.Archive, full, outcome, 20, test)
		}
	}
	assert.Len(t, w.names("gen/000001/verified/"), 3)
	assert.Equal(t, archive.Failed, w.history().Newest().Fulls[0].Result.Outcome, "the last result is used")
	tests, err := w.RestoreTests(w.ctx, 1, TimeAt(20))
	require.NoError(t, err)
	assert.Len(t, tests, 3)
}

// An invalid result whose name sorts last must not hide valid results, because pruning relies on them.
func TestHistory_takesTheNewestResultThatVerifies(t *testing.T) {
	keys := NewKeys(t).Load(t)
	w := newTestWriter(t, keys)
	full := *w.head().Full
	w.result(w.Archive, full, archive.Verified, 1, false)
	w.result(w.Archive, full, archive.Failed, 2, false)
	w.result(archive.New(w.store, NewKeys(t).Load(t)), full, archive.Verified, 3, false)
	for _, name := range []string{full.Name() + "_99991231T235959Z.json", full.Name() + "_z", full.Name() + "_"} {
		w.store.SetContent("gen/000001/verified/"+name, []byte("garbage"))
	}
	kept := w.history().Newest().Fulls[0]
	require.NotNil(t, kept.Result)
	assert.Equal(t, archive.Failed, kept.Result.Outcome, "the newest verifiable result is used")
	assert.False(t, kept.Usable())
	assert.Empty(t, w.history().Newest().Chains, "no chain starts with a full snapshot whose test failed")
}

func TestHistory_ignoresResultsOfOtherFulls(t *testing.T) {
	w := newTestWriter(t, &format.Keys{}, 12)
	first, second := *w.head().Full, w.full()
	w.result(w.Archive, first, archive.Verified, 60, false)
	result := w.names("gen/000001/verified/")[0]
	content, _ := w.store.Content(result)
	w.store.SetContent(strings.Replace(result, first.Name(), second.Name(), 1), content)
	fulls := w.history().Newest().Fulls
	assert.NotNil(t, fulls[0].Result)
	assert.Nil(t, fulls[1].Result)
}

// A damaged result must not prevent listing, testing and deleting other backups.
func TestRestoreTests_ignoresUnverifiable(t *testing.T) {
	w := newTestWriter(t, NewKeys(t).Load(t))
	full := *w.head().Full
	w.result(w.Archive, full, archive.Verified, 20, true)
	w.result(w.Archive, full, archive.Verified, 30, true)
	w.result(archive.New(w.store, NewKeys(t).Load(t)), full, archive.Failed, 40, true)
	w.damage(w.names("gen/000001/tested/")[1], 300)
	tests, err := w.RestoreTests(w.ctx, 1, TimeAt(0))
	require.NoError(t, err)
	require.Len(t, tests, 1)
	assert.Equal(t, TimeAt(20), tests[0].At)
}
