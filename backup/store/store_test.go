package store_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/folder"
	"etcd-wrapper/backup/store/memory"
)

func put(t *testing.T, s store.Store) (store.Digest, error) {
	return store.PutOnce(t.Context(), s, "a", strings.NewReader("content"))
}

func TestPutOnce_returnsDigest(t *testing.T) {
	digest, err := put(t, memory.New())
	require.NoError(t, err)
	assert.Equal(t, store.Digest{SHA256: sha256.Sum256([]byte("content")), Size: 7}, digest)
}

func TestPutOnce_lostReply(t *testing.T) {
	for _, lost := range []error{memory.ErrLostReply, memory.ErrServerError, memory.ErrExists} {
		s := memory.New()
		s.Inject(memory.Fault{Op: memory.Put, Times: 1, Err: lost, ReplyLost: true})
		_, err := put(t, s)
		assert.NoError(t, err, lost)
		_, err = put(t, s)
		assert.NoError(t, err, "the same content can be uploaded again, as after a restart")
	}
}

func TestPutOnce_differentContent(t *testing.T) {
	for _, stored := range []string{"", "conten", "Content", "content and more"} {
		s := memory.New()
		s.SetContent("a", []byte(stored))
		_, err := put(t, s)
		assert.ErrorIs(t, err, store.ErrExists, stored)
		s.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrLostReply})
		_, err = put(t, s)
		assert.ErrorIs(t, err, store.ErrExists, "the stored content decides if the reply is lost")
	}
}

func TestPutOnce_unreadableObject(t *testing.T) {
	s := memory.New()
	s.SetContent("a", []byte("content"))
	s.Inject(memory.Fault{Op: memory.Get, Times: 1, Cut: 3}, memory.Fault{Op: memory.Get, Times: 1, Err: memory.ErrThrottled})
	for range 2 {
		_, err := put(t, s)
		assert.ErrorIs(t, err, store.ErrUnavailable)
		assert.NotErrorIs(t, err, store.ErrExists, "a failed read does not prove that another writer exists")
	}
	_, err := put(t, s)
	assert.NoError(t, err)
}

func TestPutOnce_missingObjectThatExists(t *testing.T) {
	s := memory.New()
	s.Inject(memory.Fault{Op: memory.Put, Times: 1, Err: memory.ErrExists})
	_, err := put(t, s)
	assert.ErrorIs(t, err, store.ErrUnavailable)
	assert.NotErrorIs(t, err, store.ErrExists)
}

func TestPutOnce_failedUpload(t *testing.T) {
	s := memory.New()
	s.Inject(memory.Fault{Op: memory.Put, Times: 1, Err: memory.ErrThrottled})
	_, err := put(t, s)
	assert.ErrorIs(t, err, store.ErrUnavailable)
	assert.Equal(t, time.Second, store.RetryAfter(err))
}

func TestPutOnce_reportsUnreachableStoreOnce(t *testing.T) {
	s := memory.New()
	s.Inject(memory.Fault{Err: memory.ErrUnreachable})
	_, err := put(t, s)
	require.ErrorIs(t, err, store.ErrUnavailable)
	assert.Equal(t, 1, strings.Count(err.Error(), "store unavailable"), err)
	assert.NotContains(t, err.Error(), "cannot read")
}

func TestPutOnce_deniedRead(t *testing.T) {
	s := memory.New()
	s.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrUnreachable}, memory.Fault{Op: memory.Get, Err: memory.ErrDenied})
	_, err := put(t, s)
	require.ErrorIs(t, err, store.ErrDenied)
	assert.ErrorContains(t, err, "cannot determine who created a in")
}

func TestPutOnce_definiteErrorNeedsNoRead(t *testing.T) {
	for _, final := range []error{memory.ErrDenied, memory.ErrExpired, memory.ErrNoBucket, memory.ErrSkewed, errors.New("HTTP status 400")} {
		s := memory.New()
		s.Inject(memory.Fault{Op: memory.Put, Times: 1, Err: final})
		_, err := put(t, s)
		assert.ErrorIs(t, err, final)
		assert.Equal(t, []memory.Call{{Op: memory.Put, Name: "a"}}, s.Calls())
	}
}

func TestPutOnce_endsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		s.Inject(memory.Fault{Hang: true})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := store.PutOnce(ctx, s, "a", strings.NewReader("content"))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestProbe_reportsCapabilities(t *testing.T) {
	for name, example := range map[string]struct {
		faults []memory.Fault
		want   string
		left   int // expected number of objects that remain in the store
	}{
		"all features":       {nil, "the store supports create-if-absent: multiple members can write to it", 0},
		"overwrites objects": {[]memory.Fault{{Op: memory.Put, Overwrite: true}}, "the store does not support create-if-absent and overwrites objects: only one member may write to it", 0},
		"object lock":        {[]memory.Fault{{Op: memory.Delete, Err: memory.ErrLocked}}, "the store supports create-if-absent: multiple members can write to it; old backups cannot be deleted", 1},
		"deletions denied":   {[]memory.Fault{{Op: memory.Delete, Err: memory.ErrDenied}}, "the store supports create-if-absent: multiple members can write to it; old backups cannot be deleted", 1},
		"lost reply":         {[]memory.Fault{{Op: memory.Put, Times: 1, Err: memory.ErrLostReply, ReplyLost: true}}, "the store supports create-if-absent: multiple members can write to it", 0},
	} {
		s := memory.New()
		s.Inject(example.faults...)
		abilities, err := store.Probe(t.Context(), s)
		require.NoError(t, err, name)
		assert.Equal(t, example.want, abilities.String(), name)
		left := 0
		for range s.List(t.Context(), "", "") {
			left++
		}
		assert.Equal(t, example.left, left, name)
	}
}

func TestProbe_failure(t *testing.T) {
	for _, op := range []memory.Op{memory.Put, memory.Delete} {
		for _, failure := range []error{memory.ErrUnreachable, memory.ErrNoBucket} {
			s := memory.New()
			s.Inject(memory.Fault{Op: op, Err: failure})
			_, err := store.Probe(t.Context(), s)
			assert.ErrorIs(t, err, failure)
			assert.ErrorContains(t, err, "cannot probe memory://test/")
		}
	}
}

func TestClock_usesTemporaryObject(t *testing.T) {
	s, now := memory.New(), time.Date(2026, time.November, 22, 12, 0, 0, 0, time.UTC)
	s.Now = func() time.Time { return now }
	left := func() (names []string) {
		for object, err := range s.List(t.Context(), "", "") {
			require.NoError(t, err)
			names = append(names, object.Name)
		}
		return names
	}
	requireTime := func() {
		t.Helper()
		at, err := store.Clock(t.Context(), s)
		require.NoError(t, err)
		assert.Equal(t, now, at)
	}
	requireTime()
	assert.Empty(t, left())

	s.Inject(memory.Fault{Op: memory.Delete, Err: memory.ErrLocked, Times: 1})
	requireTime()
	assert.Len(t, left(), 1, "a locked object remains")
	now = now.Add(59 * time.Minute)
	requireTime()
	assert.Len(t, left(), 1, "another process may be using an object that is less than an hour old")
	now = now.Add(time.Minute)
	requireTime()
	assert.Empty(t, left())

	for range 3 {
		s.Inject(memory.Fault{Op: memory.Delete, Err: memory.ErrLocked, Times: 1})
		requireTime()
	}
	now = now.Add(time.Hour)
	s.Inject(memory.Fault{Op: memory.Delete, Err: memory.ErrLocked, Times: 1})
	requireTime()
	assert.Len(t, left(), 4, "Clock must stop at the first locked object")
	requireTime()
	assert.Len(t, left(), 1)

	s.Inject(memory.Fault{Op: memory.Delete, Err: memory.ErrDenied, Times: 1})
	at, err := store.Clock(t.Context(), s)
	require.ErrorIs(t, err, store.ErrDenied)
	assert.Equal(t, now, at, "the time must be returned together with the error")
	s.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrDenied})
	_, err = store.Clock(t.Context(), s)
	require.ErrorIs(t, err, store.ErrDenied)

	files, err := folder.New(t.TempDir())
	require.NoError(t, err)
	at, err = store.Clock(t.Context(), files)
	require.NoError(t, err)
	assert.WithinDuration(t, time.Now(), at, time.Minute)
}

func listed(names ...string) func(func(store.Object, error) bool) {
	return func(yield func(store.Object, error) bool) {
		for _, name := range names {
			if !yield(store.Object{Name: name}, nil) {
				return
			}
		}
	}
}

func TestInOrder_rejectsUnorderedListing(t *testing.T) {
	var got []string
	var last error
	for object, err := range store.InOrder(listed("base/b", "other", "base/.hidden", "base/c d", "base/e", "base/d"), "base/", "a") {
		got, last = append(got, object.Name), err
	}
	assert.Equal(t, []string{"b", "e", ""}, got)
	assert.ErrorContains(t, last, "lists d after e")
}

func TestSweepIsOptional(t *testing.T) {
	removed, err := store.Sweep(t.Context(), memory.New())
	assert.NoError(t, err)
	assert.Zero(t, removed)
}
