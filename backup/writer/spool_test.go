package writer

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/internal/disk"
)

const spoolLimit = 1 << 20

// segmentAt returns a segment that starts at the given position and contains one row.
func segmentAt(t *testing.T, start format.Start) format.Object {
	t.Helper()
	return segment(t, keys, start, format.Source{}, formattest.Row(start.Position.Revision, 0, "value"))
}

// segment returns a segment with the given rows that starts at the given position.
func segment(t *testing.T, by *format.Keys, start format.Start, source format.Source, rows ...format.Row) format.Object {
	t.Helper()
	builder, err := format.NewSegmentBuilder(by, start)
	require.NoError(t, err)
	for _, row := range rows {
		require.NoError(t, builder.Add(&row))
		require.NoError(t, builder.Add(&format.Marker{Revision: builder.End(), Time: time.Unix(1, 0)}))
	}
	object, err := builder.Finish(source)
	require.NoError(t, err)
	return object
}

// segmentsInOrder returns contiguous segments of one revision each, starting at revision 5.
func segmentsInOrder(t *testing.T, count int) (objects []format.Object) {
	t.Helper()
	start := format.Start{Cluster: "c", Generation: 1, Position: format.After(4), Before: format.Seed("c", 1, 4)}
	for range count {
		objects = append(objects, segmentAt(t, start))
		start = objects[len(objects)-1].Start()
	}
	return objects
}

func openSpool(t *testing.T, dir string) (*Spool, []error) {
	t.Helper()
	s, dropped, err := OpenSpool(dir, spoolLimit, keys)
	require.NoError(t, err)
	return s, dropped
}

func filledSpool(t *testing.T, dir string, objects []format.Object) *Spool {
	t.Helper()
	s, dropped := openSpool(t, dir)
	require.Empty(t, dropped)
	for _, object := range objects {
		require.NoError(t, s.Put(object, false))
	}
	return s
}

func positions(s *Spool) (found []int64) {
	for _, entry := range s.Entries() {
		found = append(found, entry.Position.Revision)
	}
	return found
}

func TestSpool_orderAndRestart(t *testing.T) {
	dir, objects := t.TempDir(), segmentsInOrder(t, 3)
	before := filledSpool(t, dir, objects)
	s, dropped := openSpool(t, dir)
	assert.Empty(t, dropped)
	assert.Equal(t, []int64{5, 6, 7}, positions(before))
	assert.Equal(t, before.Entries(), s.Entries())
	assert.Equal(t, objects[0].Size()+objects[1].Size()+objects[2].Size(), s.Bytes())
	first := s.Entries()[0]
	assert.Equal(t, Spooled{Manifest: objects[0].Manifest, Size: objects[0].Size()}, first)

	file, err := s.Open(first)
	require.NoError(t, err)
	defer file.Close()
	content, err := io.ReadAll(file)
	require.NoError(t, err)
	whole, err := io.ReadAll(objects[0].Reader())
	require.NoError(t, err)
	assert.Equal(t, whole, content)
}

func TestSpool_permissions(t *testing.T) {
	dir := t.TempDir()
	s := filledSpool(t, dir, segmentsInOrder(t, 1))
	making, err := s.Create("full")
	require.NoError(t, err)
	defer making.Close()
	require.NoError(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		require.NoError(t, err)
		if path != dir {
			assert.Zero(t, info.Mode().Perm()&0o077, path)
		}
		return nil
	}))
}

func TestSpool_removesUpToAPosition(t *testing.T) {
	dir, objects := t.TempDir(), segmentsInOrder(t, 3)
	s := filledSpool(t, dir, objects)
	require.NoError(t, s.Stored(objects[1].Position))
	assert.Equal(t, []int64{7}, positions(s))
	assert.Equal(t, objects[2].Size(), s.Bytes())
	started, _ := openSpool(t, dir)
	assert.Equal(t, []int64{6, 7}, positions(started), "the last stored segment remains for the next process")
	require.NoError(t, s.Rewind(objects[1].Position))
	assert.Equal(t, []int64{6, 7}, positions(s), "a segment that is missing from the store is queued again")
	require.NoError(t, s.Rewind(objects[2].Position))
	assert.Equal(t, []int64{7}, positions(s))
	assert.Equal(t, objects[2].Size(), s.Bytes())
	reopened, _ := openSpool(t, dir)
	assert.Equal(t, []int64{7}, positions(reopened))
	require.NoError(t, reopened.Clear())
	assert.Zero(t, reopened.Bytes())
	assert.Empty(t, reopened.Entries())
}

func TestSpool_preservesTornSegments(t *testing.T) {
	objects := segmentsInOrder(t, 4)
	for name, damage := range map[string]func(t *testing.T, path string){
		"cut off": func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, objects[1].Size()-1)) },
		"empty":   func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 0)) },
		"zeros at the end": func(t *testing.T, path string) {
			require.NoError(t, os.Truncate(path, objects[1].Size()-10))
			require.NoError(t, os.Truncate(path, objects[1].Size()))
		},
		"longer": func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, objects[1].Size()+1)) },
		"two segments": func(t *testing.T, path string) {
			next, err := io.ReadAll(objects[2].Reader())
			require.NoError(t, err)
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, append(content, next...), 0o600))
		},
		"copy of another segment": func(t *testing.T, path string) {
			other, err := os.ReadFile(filepath.Join(filepath.Dir(path), objects[0].Position.String()))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, other, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			filledSpool(t, dir, objects)
			damage(t, filepath.Join(dir, "segments", objects[1].Position.String()))
			s, torn := openSpool(t, dir)
			require.Len(t, torn, 1)
			assert.ErrorContains(t, torn[0], objects[1].Position.String())
			assert.NotContains(t, torn[0].Error(), "%!")
			assert.Equal(t, []int64{5, 7, 8}, positions(s))
			older, err := s.Newest()
			require.NoError(t, err)
			assert.ErrorContains(t, older, "gap in the spool from")
			assert.Equal(t, []int64{7, 8}, positions(s), "only the segments after the damaged one remain")
			reopened, torn := openSpool(t, dir)
			assert.Empty(t, torn)
			assert.Equal(t, []int64{7, 8}, positions(reopened))
			assert.Equal(t, objects[2].Size()+objects[3].Size(), s.Bytes())
			assert.ElementsMatch(t, []string{objects[0].Position.String(), objects[1].Position.String()}, preserved(t, dir), "all other segments are preserved")
		})
	}
}

// preserved returns the names of the preserved segments.
func preserved(t *testing.T, dir string) (names []string) {
	t.Helper()
	for _, kept := range disk.PreservedCopies(dir) {
		names = append(names, segmentsIn(t, kept.Path)...)
	}
	return names
}

func TestSpool_preservedCopyIsASpool(t *testing.T) {
	dir, objects := t.TempDir()+"/spool", segmentsInOrder(t, 3)
	s := filledSpool(t, dir, objects)
	where, err := s.Preserve(func(e Spooled) bool { return e.Position.Compare(objects[0].Position) > 0 })
	require.NoError(t, err)
	assert.Equal(t, []int64{5}, positions(s))
	assert.Equal(t, objects[0].Size(), s.Bytes())
	moved, torn := openSpool(t, where)
	assert.Empty(t, torn)
	assert.Equal(t, []int64{6, 7}, positions(moved))

	where, err = s.Preserve(func(Spooled) bool { return false })
	require.NoError(t, err)
	assert.Empty(t, where)
}

func TestSpool_preservingFails(t *testing.T) {
	dir, objects := t.TempDir()+"/spool", segmentsInOrder(t, 2)
	s := filledSpool(t, dir, objects)
	// No directory can be created next to this path, because its parent is a file.
	s.dir = filepath.Join(s.dir, "segments", objects[0].Position.String(), "spool")
	_, err := s.Preserve(func(Spooled) bool { return true })
	require.ErrorContains(t, err, "cannot preserve the spool")
	assert.Equal(t, []int64{5, 6}, positions(s))
	reopened, torn := openSpool(t, dir)
	assert.Empty(t, torn)
	assert.Equal(t, []int64{5, 6}, positions(reopened))
}

func TestSpool_removesUnfinishedFiles(t *testing.T) {
	dir := t.TempDir()
	s, _ := openSpool(t, dir)
	file, err := s.Create("full")
	require.NoError(t, err)
	require.NoError(t, file.Close())
	openSpool(t, dir)
	assert.NoFileExists(t, file.Name())
}

func TestSpool_limits(t *testing.T) {
	objects := segmentsInOrder(t, 2)
	s, _ := openSpool(t, t.TempDir())
	s.limit = objects[0].Size() + objects[1].Size() - 1
	require.NoError(t, s.Put(objects[0], true))
	require.ErrorIs(t, s.Put(objects[1], true), ErrSpoolFull)
	assert.Equal(t, []int64{5}, positions(s))

	s.limit = spoolLimit
	s.space = func(string) (int64, int64, error) { return SpoolReserve + objects[1].Size() - 1, 0, nil }
	require.ErrorIs(t, s.Put(objects[1], true), ErrSpoolFull)
	s.space = func(string) (int64, int64, error) { return SpoolReserve + objects[1].Size(), 0, nil }
	require.NoError(t, s.Put(objects[1], true))
	require.NoError(t, s.Sync())
}

func TestSpool_cannotBeCreated(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, _, err := OpenSpool(file, spoolLimit, keys)
	require.ErrorContains(t, err, "the spool")
}

func TestSpool_failedSync(t *testing.T) {
	dir, objects := t.TempDir(), segmentsInOrder(t, 2)
	s := filledSpool(t, dir, objects[:1])
	ioError := errors.New("input/output error")
	s.sync = func(string) error { return ioError }
	require.ErrorIs(t, s.Put(objects[1], true), ioError)
	assert.Equal(t, []int64{5}, positions(s))
	assert.Equal(t, objects[0].Size(), s.Bytes())
	reopened, dropped := openSpool(t, dir)
	assert.Empty(t, dropped)
	assert.Equal(t, []int64{5}, positions(reopened))
	require.NoError(t, reopened.Put(objects[1], true))
}
