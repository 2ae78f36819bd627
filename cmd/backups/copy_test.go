package backups

import (
	"context"
	"io"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

func TestACopyHasAllAndIsRestoredFrom(t *testing.T) {
	l := live(t)
	settings, to := l.keep(t), memory.New()
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

func TestACopyThatWasCutOffGoesOn(t *testing.T) {
	l := live(t)
	settings := l.keep(t)
	whole, err := Copy(t.Context(), settings, memory.New(), 0, NewMeter(nil))
	require.NoError(t, err)
	for cut := range whole.Objects {
		to, puts := memory.New(), 0
		ctx, cancel := context.WithCancel(t.Context())
		_, err := Copy(ctx, settings, watched{to, func() {
			if puts++; puts > cut {
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

// watched is a store whose puts a test hears of before they are done.
type watched struct {
	*memory.Store
	put func()
}

func (w watched) Put(ctx context.Context, name string, content io.Reader) error {
	w.put()
	return w.Store.Put(ctx, name, content)
}

func TestAPlaceWithSomethingElseIsNotMixed(t *testing.T) {
	l := live(t)
	settings := l.keep(t)
	anothers := memory.New()
	_, err := archive.New(anothers, settings.Keys).Found(t.Context(), archive.Cluster{Cluster: "another", Created: noon}, 1)
	require.NoError(t, err)
	_, err = Copy(t.Context(), settings, anothers, 0, NewMeter(nil))
	require.ErrorIs(t, err, ErrAnother)

	lying := flipped{memory.New()}
	_, err = Copy(t.Context(), settings, lying, 0, NewMeter(nil))
	require.ErrorIs(t, err, ErrAnother)
	assert.ErrorContains(t, err, "other bytes come back")
}

// flipped is a store that gives back other bytes than it was given.
type flipped struct{ *memory.Store }

func (f flipped) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	content, err := f.Store.Get(ctx, name, offset, length)
	if err != nil {
		return nil, err
	}
	return turned{content}, nil
}

type turned struct{ io.ReadCloser }

func (t turned) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if n > 0 {
		p[0] ^= 1
	}
	return n, err
}

func TestACopyFollowsUntilItIsStopped(t *testing.T) {
	l := live(t)
	settings, to := l.keep(t), memory.New()
	ctx, cancel := context.WithCancel(t.Context())
	looks := 0
	from := listed{settings.Store, func() {
		if looks++; looks == 3 { // a pass that copies, one that finds nothing new, and the one after the pause
			cancel()
		}
	}}
	settings.Store = from
	copied, err := Copy(ctx, settings, to, time.Millisecond, NewMeter(nil))
	require.NoError(t, err)
	assert.Positive(t, copied.Objects)
}

// listed is a store whose listings a test hears of.
type listed struct {
	store.Store
	list func()
}

func (l listed) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	l.list()
	return l.Store.List(ctx, prefix, after)
}
