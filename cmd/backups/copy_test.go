package backups

import (
	"context"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/folder"
	"etcd-wrapper/backup/store/memory"
)

func TestCopy_isCompleteAndRestorable(t *testing.T) {
	l := runSampleCluster(t)
	settings, to := l.store(t), memory.New()
	copied, err := Copy(t.Context(), settings, to, 0, NewMeter(nil))
	require.NoError(t, err)
	assert.Positive(t, copied.Objects)
	again, err := Copy(t.Context(), settings, to, 0, NewMeter(nil))
	require.NoError(t, err)
	assert.Equal(t, []int{0, copied.Objects}, []int{again.Objects, again.Kept})

	copyOf := settings
	copyOf.Store = to
	text, err := got(t, copyOf, l.last, Selection{Key: "key1"}, AsText)
	require.NoError(t, err)
	assert.Equal(t, "key1\nlater8\n", text)
}

func TestCopy_resumes(t *testing.T) {
	l := runSampleCluster(t)
	settings := l.store(t)
	whole, err := Copy(t.Context(), settings, memory.New(), 0, NewMeter(nil))
	require.NoError(t, err)
	for cut := range whole.Objects {
		to, puts := memory.New(), 0
		ctx, cancel := context.WithCancel(t.Context())
		_, err := Copy(ctx, settings, watched{to, func() {
			if puts++; puts > cut+1 { // the first put creates the mark
				cancel()
			}
		}}, 0, NewMeter(nil))
		require.ErrorIs(t, err, context.Canceled)
		rest, err := Copy(t.Context(), settings, to, 0, NewMeter(nil))
		require.NoError(t, err)
		assert.Equal(t, whole.Objects, rest.Objects+rest.Kept)
		cancel()
	}
}

// watched is a memory store that calls put before it stores an object.
type watched struct {
	*memory.Store
	put func()
}

func (w watched) Put(ctx context.Context, name string, content io.Reader) error {
	w.put()
	return w.Store.Put(ctx, name, content)
}

func TestCopy_refusesOtherBackups(t *testing.T) {
	l := runSampleCluster(t)
	settings := l.store(t)
	other := memory.New()
	_, err := archive.New(other, settings.Keys).Create(t.Context(), archive.Cluster{Cluster: "other", Created: noon}, 1)
	require.NoError(t, err)
	_, err = Copy(t.Context(), settings, other, 0, NewMeter(nil))
	require.ErrorIs(t, err, ErrNotCopy)
	other.SetContent(copyMark, []byte("{}\n"))
	_, err = Copy(t.Context(), settings, other, 0, NewMeter(nil))
	require.ErrorIs(t, err, ErrNotCopy)
	require.ErrorContains(t, err, "cluster.json differs")

	_, err = Copy(t.Context(), settings, corrupting{memory.New()}, 0, NewMeter(nil))
	require.ErrorIs(t, err, format.ErrDamaged)
	assert.ErrorContains(t, err, "is damaged")
}

// corrupting is a memory store that flips a bit in the content of every object except the mark.
type corrupting struct{ *memory.Store }

func (c corrupting) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if name == copyMark {
		return c.Store.Get(ctx, name, offset, length)
	}
	content, err := c.Store.Get(ctx, name, offset, length)
	if err != nil {
		return nil, err
	}
	return corruptingReader{content}, nil
}

type corruptingReader struct{ io.ReadCloser }

func (c corruptingReader) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if n > 0 {
		p[0] ^= 1
	}
	return n, err
}

func TestCopy_follow(t *testing.T) {
	l := runSampleCluster(t)
	settings, to := l.store(t), memory.New()
	ctx, cancel := context.WithCancel(t.Context())
	listings := 0
	from := listed{settings.Store, func() {
		if listings++; listings == 3 { // the first pass copies, the second finds nothing new, the third follows the interval
			cancel()
		}
	}}
	settings.Store = from
	copied, err := Copy(ctx, settings, to, time.Millisecond, NewMeter(nil))
	require.NoError(t, err)
	assert.Positive(t, copied.Objects)
}

// listed is a store that calls list before each listing.
type listed struct {
	store.Store
	list func()
}

func (l listed) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	l.list()
	return l.Store.List(ctx, prefix, after)
}

// restoreFrom starts a new generation in a store, as a cluster that is restored from that store would.
func restoreFrom(t *testing.T, s store.Store) {
	kept := archive.New(s, &format.Keys{})
	require.NoError(t, archivetest.BeginGeneration(t.Context(), kept, archive.Generation{
		Number: 2, Cluster: "c1", Parent: 1, ParentRevision: 2, Session: "rehearsal", Created: noon,
	}))
}

// extend adds a segment that contains only a marker, as an idle cluster would.
func (l sampleCluster) extend(t *testing.T, s store.Store) {
	kept := archive.New(s, &format.Keys{})
	head, err := kept.Head(t.Context(), 1)
	require.NoError(t, err)
	l.addMarker(t, kept, head.Start)
}

// merge merges all segments into one and deletes the originals.
func merge(t *testing.T, s store.Store) {
	kept := archive.New(s, &format.Keys{})
	segments, err := kept.Objects(t.Context(), 1, archive.Segment)
	require.NoError(t, err)
	_, err = kept.Merge(t.Context(), archive.Hour, segments)
	require.NoError(t, err)
	for _, segment := range segments {
		require.NoError(t, s.Delete(t.Context(), segment.Name()))
	}
}

func TestCopy_comparesHistories(t *testing.T) {
	l := runSampleCluster(t)
	for name, c := range map[string]struct {
		change func(t *testing.T, original, copied store.Store) // called between the first Copy and the second
		err    string                                           // expected error; empty if the second Copy succeeds
	}{
		"nothing changes":                      {func(*testing.T, store.Store, store.Store) {}, ""},
		"the store is extended":                {func(t *testing.T, original, _ store.Store) { l.extend(t, original) }, ""},
		"the store is extended and merged":     {func(t *testing.T, original, _ store.Store) { l.extend(t, original); merge(t, original) }, ""},
		"a cluster is restored from the store": {func(t *testing.T, original, _ store.Store) { restoreFrom(t, original) }, ""},
		"the store is pruned": {func(t *testing.T, original, _ store.Store) {
			l.addFullWithoutData(t, Settings{Store: original, Keys: &format.Keys{}}, 5)
			segments, err := archive.New(original, &format.Keys{}).Objects(t.Context(), 1, archive.Segment)
			require.NoError(t, err)
			for _, segment := range segments {
				require.NoError(t, original.Delete(t.Context(), segment.Name()))
			}
		}, ""},
		"a restore test of the copy is recorded": {func(t *testing.T, _, copied store.Store) {
			require.NoError(t, copied.Put(t.Context(), "gen/000001/tested/20261122T120000Z.json", strings.NewReader("{}")))
		}, ""},
		"a cluster is restored from the copy": {func(t *testing.T, _, copied store.Store) { restoreFrom(t, copied) }, "which memory://test/ does not: a cluster has written to it"},
		"a cluster is restored from the copy, and the store is extended": {func(t *testing.T, original, copied store.Store) {
			restoreFrom(t, copied)
			l.extend(t, original)
			l.extend(t, original)
		}, "is not a copy of"},
		"a restore has ended a generation of the copy": {func(t *testing.T, _, copied store.Store) {
			restoreFrom(t, copied)
			require.NoError(t, copied.Delete(t.Context(), "gen/000002/generation.json"))
		}, "which memory://test/ does not"},
		"a restore has ended a generation of the copy, and the store is extended and merged": {func(t *testing.T, original, copied store.Store) {
			restoreFrom(t, copied)
			require.NoError(t, copied.Delete(t.Context(), "gen/000002/generation.json"))
			l.extend(t, original)
			l.extend(t, original)
			merge(t, original)
		}, "gen/000001/segment/"},
		"the copy is extended": {func(t *testing.T, _, copied store.Store) { l.extend(t, copied) }, "gen/000001/segment/"},
		"the copy contains a reservation": {func(t *testing.T, _, copied store.Store) {
			require.NoError(t, copied.Put(t.Context(), "reservation/0000000000000999999", strings.NewReader("{}")))
		}, "a reservation of revision 999999"},
		"different generations have the same number": {func(t *testing.T, original, copied store.Store) {
			restoreFrom(t, copied)
			kept := archive.New(original, &format.Keys{})
			require.NoError(t, archivetest.BeginGeneration(t.Context(), kept, archive.Generation{
				Number: 2, Cluster: "c1", Parent: 1, ParentRevision: 3, Session: "restore", Created: noon,
			}))
		}, "differs; copy to another location"},
	} {
		t.Run(name, func(t *testing.T) {
			settings, copied := l.store(t), memory.New()
			_, err := Copy(t.Context(), settings, copied, 0, NewMeter(nil))
			require.NoError(t, err)
			c.change(t, settings.Store, copied)
			before, err := list(t.Context(), copied)
			require.NoError(t, err)
			_, err = Copy(t.Context(), settings, copied, 0, NewMeter(nil))
			if c.err == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrNotCopy)
			require.ErrorContains(t, err, c.err)
			after, err := list(t.Context(), copied)
			require.NoError(t, err)
			assert.Equal(t, before, after, "the failed Copy leaves the copy unchanged")
		})
	}
}

func TestCopy_ontoTheClustersStore(t *testing.T) {
	l := runSampleCluster(t)
	settings, copied := l.store(t), memory.New()
	_, err := Copy(t.Context(), settings, copied, 0, NewMeter(nil))
	require.NoError(t, err)
	for _, change := range []func(){func() {}, func() { restoreFrom(t, copied) }} {
		change()
		_, err = Copy(t.Context(), Settings{Store: copied, Keys: settings.Keys}, settings.Store, 0, NewMeter(nil))
		require.ErrorIs(t, err, ErrNotCopy)
		require.ErrorContains(t, err, "it contains backups that backup copy did not create")
	}
}

func TestCopy_ontoItself(t *testing.T) {
	l := runSampleCluster(t)
	settings, copied := l.store(t), memory.New()
	_, err := Copy(t.Context(), settings, settings.Store, 0, NewMeter(nil))
	require.ErrorIs(t, err, ErrNotCopy)
	_, err = Copy(t.Context(), settings, copied, 0, NewMeter(nil))
	require.NoError(t, err)
	_, err = Copy(t.Context(), Settings{Store: copied, Keys: settings.Keys}, copied, 0, NewMeter(nil))
	require.ErrorIs(t, err, ErrNotCopy)
	require.ErrorContains(t, err, "it is the same location")

	dir := t.TempDir()
	outer, err := folder.New(dir)
	require.NoError(t, err)
	_, err = Copy(t.Context(), settings, outer, 0, NewMeter(nil))
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "copies"), 0o700))
	inner, err := folder.New(filepath.Join(dir, "copies"))
	require.NoError(t, err)
	_, err = Copy(t.Context(), Settings{Store: outer, Keys: settings.Keys}, inner, 0, NewMeter(nil))
	require.ErrorContains(t, err, "it is the same location or a folder inside it")
}
