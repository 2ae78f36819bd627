package backup_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer"
	"etcd-wrapper/internal/disk"
)

// waiting is a spool with segments of the revisions 11 to 13, 14 to 16 and 17 to 19, and a store that ends at revision 10.
type waiting struct {
	*testing.T
	*backup.Backups
	store   *memory.Store
	archive *archive.Archive
	dir     string
	objects []format.Object
	log     bytes.Buffer
}

var unsealed = &format.Keys{}

func newWaiting(t *testing.T) *waiting {
	t.Helper()
	w := &waiting{T: t, store: memory.New(), dir: filepath.Join(t.TempDir(), "spool")}
	w.archive = archive.New(w.store, unsealed)
	w.Backups = backup.New(backup.Options{Store: w.store, Keys: unsealed, SpoolDir: w.dir, SpoolLimit: 1 << 20, Log: zerolog.New(&w.log)})
	w.found("c")
	start := format.Start{Cluster: "c", Generation: 1, Position: format.After(10), Before: format.Seed("c", 1, 10)}
	filled, torn, err := writer.OpenSpool(w.dir, 1<<20, unsealed)
	require.NoError(t, err)
	require.Empty(t, torn)
	for last := int64(13); last < 20; last += 3 {
		object := Build(t, unsealed, start, Rows(last-2, last), Bucket("lease", "l", "1"))
		require.NoError(t, filled.Put(object, true))
		w.objects, start = append(w.objects, object), object.Start()
	}
	return w
}

// found creates the cluster in the store, with a full snapshot.
func (w *waiting) found(cluster string) {
	w.Helper()
	_, err := w.archive.Create(w.Context(), archive.Cluster{Cluster: cluster, Created: Noon}, 1)
	require.NoError(w, err)
	_, err = archivetest.PutFull(w.Context(), w.archive, archive.Full{
		Cluster: cluster, Generation: 1, Revision: 10, Chain: format.Seed(cluster, 1, 10), Time: Noon, Reason: "asked for",
	}, strings.NewReader("database"))
	require.NoError(w, err)
}

func (w *waiting) head() archive.Head {
	w.Helper()
	head, err := w.archive.Head(w.Context(), 1)
	require.NoError(w, err)
	return head
}

func (w *waiting) flush() error { return w.FlushSpool(w.Context(), archive.Identity{}, 0) }

// requireLeft requires that the given segments are in the spool and in its preserved copies.
func (w *waiting) requireLeft(waits, moved []format.Object) {
	w.Helper()
	here, there := names(w.T, w.dir), []string(nil)
	for _, kept := range disk.PreservedCopies(w.dir) {
		there = append(there, names(w.T, kept.Path)...)
	}
	require.ElementsMatch(w, positions(waits), here, "in the spool")
	require.ElementsMatch(w, positions(moved), there, "preserved")
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	found, err := os.ReadDir(filepath.Join(dir, "segments"))
	require.NoError(t, err)
	for _, entry := range found {
		all = append(all, entry.Name())
	}
	return all
}

func positions(of []format.Object) (all []string) {
	for _, object := range of {
		all = append(all, object.Position.String())
	}
	return all
}

func (w *waiting) tear(which int) {
	w.Helper()
	path := filepath.Join(w.dir, "segments", w.objects[which].Position.String())
	require.NoError(w, os.Truncate(path, w.objects[which].Size()-1))
}
