package spool

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/storage/mvcc"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/internal/preserved"
)

const limit = 1 << 20

var keys = &format.Keys{}

// made is a segment of one row.
func made(t *testing.T, start format.Start) format.Object {
	t.Helper()
	builder, err := format.NewSegmentBuilder(keys, start)
	require.NoError(t, err)
	key := mvcc.RevToBytes(mvcc.Revision{Main: start.Position.Revision}, mvcc.NewRevBytes())
	require.NoError(t, builder.Row(format.Row{Key: key, Value: []byte("value")}))
	require.NoError(t, builder.Marker(format.Marker{Revision: start.Position.Revision, Time: time.Unix(1, 0)}))
	object, err := builder.Finish(format.Source{Member: "1"})
	require.NoError(t, err)
	return object
}

// chain is so many segments from revision 5 on.
func chain(t *testing.T, count int) (objects []format.Object) {
	t.Helper()
	start := format.Start{Cluster: "c", Generation: 1, Position: format.After(4), Before: format.Seed("c", 1, 4)}
	for range count {
		objects = append(objects, made(t, start))
		start = objects[len(objects)-1].Start()
	}
	return objects
}

func open(t *testing.T, dir string) (*Spool, []error) {
	t.Helper()
	s, dropped, err := Open(dir, limit, keys)
	require.NoError(t, err)
	return s, dropped
}

func filled(t *testing.T, dir string, objects []format.Object) *Spool {
	t.Helper()
	s, dropped := open(t, dir)
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

func TestSegmentsWaitInOrderAndSurviveTheProcess(t *testing.T) {
	dir, objects := t.TempDir(), chain(t, 3)
	before := filled(t, dir, objects)
	s, dropped := open(t, dir)
	assert.Empty(t, dropped)
	assert.Equal(t, before.Entries(), s.Entries())
	assert.Equal(t, objects[0].Size()+objects[1].Size()+objects[2].Size(), s.Bytes())
	first, ok := s.First()
	require.True(t, ok)
	assert.Equal(t, Entry{Position: objects[0].Position, Next: objects[1].Position, Size: objects[0].Size()}, first)

	file, err := s.Open(first.Position)
	require.NoError(t, err)
	defer file.Close()
	content, err := io.ReadAll(file)
	require.NoError(t, err)
	whole, err := io.ReadAll(objects[0].Reader())
	require.NoError(t, err)
	assert.Equal(t, whole, content)
	manifest, err := s.Manifest(objects[2].Position, keys)
	require.NoError(t, err)
	assert.Equal(t, objects[2].After, manifest.After)
}

func TestWhatIsThereIsForItsOwnerAlone(t *testing.T) {
	dir := t.TempDir()
	s := filled(t, dir, chain(t, 1))
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

func TestSegmentsAreRemovedUpToAPosition(t *testing.T) {
	dir, objects := t.TempDir(), chain(t, 3)
	s := filled(t, dir, objects)
	require.NoError(t, s.Remove(objects[2].Position))
	assert.Equal(t, []int64{7}, positions(s))
	assert.Equal(t, objects[2].Size(), s.Bytes())
	again, _ := open(t, dir)
	assert.Equal(t, []int64{7}, positions(again))
	require.NoError(t, again.Clear())
	assert.Zero(t, again.Bytes())
	_, ok := again.First()
	assert.False(t, ok)
}

func TestWhatWasTornIsSetAsideAndWhatItWasToFollowToo(t *testing.T) {
	objects := chain(t, 4)
	for name, harm := range map[string]func(t *testing.T, path string){
		"cut off": func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, objects[1].Size()-1)) },
		"empty":   func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 0)) },
		"zeroes at its end": func(t *testing.T, path string) {
			require.NoError(t, os.Truncate(path, objects[1].Size()-10))
			require.NoError(t, os.Truncate(path, objects[1].Size()))
		},
		"longer": func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, objects[1].Size()+1)) },
		"another's": func(t *testing.T, path string) {
			other, err := os.ReadFile(filepath.Join(filepath.Dir(path), objects[0].Position.String()))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, other, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			filled(t, dir, objects)
			harm(t, filepath.Join(dir, "segments", objects[1].Position.String()))
			s, torn := open(t, dir)
			require.Len(t, torn, 1)
			assert.ErrorContains(t, torn[0], objects[1].Position.String())
			assert.Equal(t, []int64{5, 7, 8}, positions(s))
			older, err := s.Newest()
			require.NoError(t, err)
			assert.ErrorContains(t, older, "does not follow")
			assert.Equal(t, []int64{7, 8}, positions(s), "what begins behind the hole can be taken up once the database has been captured up to there")
			again, torn := open(t, dir)
			assert.Empty(t, torn)
			assert.Equal(t, []int64{7, 8}, positions(again))
			assert.Equal(t, objects[2].Size()+objects[3].Size(), s.Bytes())
			assert.ElementsMatch(t, []string{objects[0].Position.String(), objects[1].Position.String()}, beside(t, dir), "nothing is deleted")
		})
	}
}

// beside are the segments that were set aside.
func beside(t *testing.T, dir string) (names []string) {
	t.Helper()
	for _, kept := range preserved.Copies(dir) {
		found, err := os.ReadDir(filepath.Join(kept.Path, "segments"))
		require.NoError(t, err)
		for _, entry := range found {
			names = append(names, entry.Name())
		}
	}
	return names
}

func TestWhatIsSetAsideIsASpool(t *testing.T) {
	dir, objects := t.TempDir()+"/spool", chain(t, 3)
	s := filled(t, dir, objects)
	where, err := s.SetAside(func(e Entry) bool { return e.Position.Compare(objects[0].Position) > 0 })
	require.NoError(t, err)
	assert.Equal(t, []int64{5}, positions(s))
	assert.Equal(t, objects[0].Size(), s.Bytes())
	moved, torn := open(t, where)
	assert.Empty(t, torn)
	assert.Equal(t, []int64{6, 7}, positions(moved))

	where, err = s.SetAside(func(Entry) bool { return false })
	require.NoError(t, err)
	assert.Empty(t, where)
}

func TestWhatCannotBeSetAsideStays(t *testing.T) {
	dir, objects := t.TempDir()+"/spool", chain(t, 2)
	s := filled(t, dir, objects)
	s.dir = filepath.Join(s.dir, "segments", objects[0].Position.String(), "spool") // beside it there is room for nothing
	_, err := s.SetAside(func(Entry) bool { return true })
	require.ErrorContains(t, err, "cannot set aside what waited for the store")
	assert.Equal(t, []int64{5, 6}, positions(s))
	again, torn := open(t, dir)
	assert.Empty(t, torn)
	assert.Equal(t, []int64{5, 6}, positions(again))
}

func TestWhatIsNotFinishedGoesAtTheNextStart(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	file, err := s.Create("full")
	require.NoError(t, err)
	require.NoError(t, file.Close())
	open(t, dir)
	assert.NoFileExists(t, file.Name())
}

func TestTheSpoolIsFullAtItsLimitAndWhereEtcdNeedsTheVolume(t *testing.T) {
	objects := chain(t, 2)
	s, _ := open(t, t.TempDir())
	s.limit = objects[0].Size() + objects[1].Size() - 1
	require.NoError(t, s.Put(objects[0], true))
	require.ErrorIs(t, s.Put(objects[1], true), ErrFull)
	assert.Equal(t, []int64{5}, positions(s))

	s.limit = limit
	s.free = func(string) (int64, error) { return Reserve + objects[1].Size() - 1, nil }
	require.ErrorIs(t, s.Put(objects[1], true), ErrFull)
	s.free = func(string) (int64, error) { return Reserve + objects[1].Size(), nil }
	require.NoError(t, s.Put(objects[1], true))
	require.NoError(t, s.Sync())
}

func TestASpoolThatCannotBeMadeSaysWhy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, _, err := Open(file, limit, keys)
	require.ErrorContains(t, err, "the spool")
}

func TestASegmentThatCouldNotBeMadeDurableDoesNotWait(t *testing.T) {
	dir, objects := t.TempDir(), chain(t, 2)
	s := filled(t, dir, objects[:1])
	broken := errors.New("input/output error")
	s.sync = func(string) error { return broken }
	require.ErrorIs(t, s.Put(objects[1], true), broken)
	assert.Equal(t, []int64{5}, positions(s))
	assert.Equal(t, objects[0].Size(), s.Bytes())
	again, dropped := open(t, dir)
	assert.Empty(t, dropped)
	assert.Equal(t, []int64{5}, positions(again))
	require.NoError(t, again.Put(objects[1], true))
}
