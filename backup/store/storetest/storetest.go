// Package storetest contains the tests that every store must pass.
package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

// Subject is a store under test.
type Subject struct {
	// Open returns an empty store at a new location.
	Open func(t *testing.T) store.Store
	// Server is the endpoint of the store's server, and Through opens an empty store through a proxy for the server.
	// Server and Through are nil for a store without a network.
	Server  *url.URL
	Through func(t *testing.T, proxied *url.URL) store.Store
	// Missing opens a store whose bucket does not exist, and Denied opens a store with invalid credentials. Missing
	// and Denied may be nil if they do not apply to the store.
	Missing, Denied func(t *testing.T) store.Store
	// SinglePiece means that the store does not split objects into pieces, so small test objects are sufficient.
	SinglePiece bool
	// InMemory means that the store keeps objects in this process's memory, so memory use is not tested.
	InMemory bool
}

const testTimeout = 2 * time.Minute // limits each call of a store in a test

// Run runs the tests.
func Run(t *testing.T, s Subject) {
	for name, test := range map[string]func(*testing.T){
		"reads back objects of any size":                    s.testCreate,
		"does not overwrite objects":                        s.testExists,
		"lets exactly one of several creators win":          s.testRace,
		"uploads objects of unknown size in bounded memory": s.testMemory,
		"reads ranges": s.testRange,
		"lists in order and resumes after a name":          s.testList,
		"lists prefixes that end within a name":            s.testPrefix,
		"recreates deleted objects":                        s.testDelete,
		"accepts every allowed character in names":         s.testNames,
		"rejects invalid names":                            s.testInvalidNames,
		"leaves nothing after an incomplete upload":        s.testIncompleteUpload,
		"returns when the context is canceled":             s.testCancel,
		"probes create-if-absent and cleans up":            s.testProbe,
		"reports a missing bucket and invalid credentials": s.testFailures,
		"recovers from a lost reply":                       s.testLostReply,
		"leaves nothing after a lost connection":           s.testCutUpload,
	} {
		t.Run(name, test)
	}
}

// large returns an object size that requires more than one piece, if the store splits objects.
func (s Subject) large() int {
	if s.SinglePiece {
		return 300_001
	}
	return 2*wire.PieceSize + 12345
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// Pattern returns a reader of the given length. The content is random but always the same for a seed.
func Pattern(seed byte, length int) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{seed}), int64(length))
}

// readerFunc implements io.Reader.
type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Broken returns a reader that fails with the error that fail returns.
func Broken(fail func() error) io.Reader {
	return readerFunc(func([]byte) (int, error) { return 0, fail() })
}

func put(t *testing.T, s store.Store, name string, content io.Reader) {
	t.Helper()
	require.NoError(t, s.Put(testContext(t), name, content))
}

func get(t *testing.T, s store.Store, name string, offset, length int64) []byte {
	t.Helper()
	body, err := s.Get(testContext(t), name, offset, length)
	require.NoError(t, err)
	defer body.Close()
	all, err := io.ReadAll(body)
	require.NoError(t, err)
	return all
}

// assertContent checks that the content of an object is the pattern.
func assertContent(t *testing.T, s store.Store, name string, seed byte, length int) {
	t.Helper()
	want, err := io.ReadAll(Pattern(seed, length))
	require.NoError(t, err)
	assert.True(t, bytes.Equal(want, get(t, s, name, 0, -1)), name)
}

func list(t *testing.T, s store.Store, prefix, after string) (names []string) {
	t.Helper()
	for object, err := range s.List(testContext(t), prefix, after) {
		require.NoError(t, err)
		names = append(names, object.Name)
	}
	return names
}

// assertEmpty checks that the store contains no objects and that the named object does not exist.
func assertEmpty(t *testing.T, s store.Store, name string) {
	t.Helper()
	_, err := s.Get(testContext(t), name, 0, -1)
	assert.ErrorIs(t, err, store.ErrNotFound)
	assert.Empty(t, list(t, s, "", ""))
}

func (s Subject) testCreate(t *testing.T) {
	opened := s.Open(t)
	lengths := []int{0, 1, 100_000, s.large()}
	if !s.SinglePiece {
		lengths = append(lengths, wire.PieceSize-1, wire.PieceSize, wire.PieceSize+1)
	}
	for _, length := range lengths {
		name := fmt.Sprintf("sizes/%d", length)
		before := time.Now().Add(-time.Minute)
		put(t, opened, name, Pattern(1, length))
		assertContent(t, opened, name, 1, length)
		for object, err := range opened.List(testContext(t), name, "") {
			require.NoError(t, err)
			assert.Equal(t, int64(length), object.Size, name)
			assert.WithinRange(t, object.Modified, before, time.Now().Add(time.Minute))
			break
		}
	}
	assert.Len(t, list(t, opened, "", ""), len(lengths))
}

func (s Subject) testExists(t *testing.T) {
	opened := s.Open(t)
	for _, length := range []int{10, s.large()} {
		name := fmt.Sprintf("taken-%d", length)
		put(t, opened, name, Pattern(1, length))
		for _, second := range []int{20, s.large()} {
			assert.ErrorIs(t, opened.Put(testContext(t), name, Pattern(2, second)), store.ErrExists)
		}
		assertContent(t, opened, name, 1, length)
	}
}

// testRace checks that exactly one of six writers that concurrently create the same object succeeds.
func (s Subject) testRace(t *testing.T) {
	opened := s.Open(t)
	for _, length := range []int{1000, s.large()} {
		name := fmt.Sprintf("race-%d", length)
		var winner atomic.Uint32
		var racers sync.WaitGroup
		for racer := byte(1); racer <= 6; racer++ {
			racers.Go(func() {
				_, err := store.PutOnce(testContext(t), opened, name, Pattern(racer, length))
				// The server may refuse a writer while handling another writer's request.
				for errors.Is(err, store.ErrUnavailable) && t.Context().Err() == nil {
					_, err = store.PutOnce(testContext(t), opened, name, Pattern(racer, length))
				}
				if err == nil {
					assert.True(t, winner.CompareAndSwap(0, uint32(racer)), "only one writer may succeed")
				} else {
					assert.ErrorIs(t, err, store.ErrExists)
				}
			})
		}
		racers.Wait()
		require.NotZero(t, winner.Load(), "one writer must succeed")
		assertContent(t, opened, name, byte(winner.Load()), length)
	}
}

func (s Subject) testMemory(t *testing.T) {
	if s.InMemory {
		t.Skip("the store keeps all objects in memory")
	}
	const (
		length = 64 << 20
		limit  = 24 << 20 // one piece, a copy of the piece in some stores, and 8 MiB for everything else
	)
	opened := s.Open(t)
	before, read, most := liveHeap(), 0, uint64(0)
	content := Pattern(3, length)
	written, err := store.PutOnce(testContext(t), opened, "huge", readerFunc(func(p []byte) (int, error) {
		n, err := content.Read(p)
		if read%(8<<20) > (read+n)%(8<<20) {
			now := liveHeap()
			most = max(most, now-min(before, now))
		}
		read += n
		return n, err
	}))
	require.NoError(t, err)
	assert.Less(t, most, uint64(limit))
	assert.Equal(t, int64(length), written.Size)
	body, err := opened.Get(testContext(t), "huge", 0, -1)
	require.NoError(t, err)
	defer body.Close()
	hash := sha256.New()
	_, err = io.Copy(hash, body)
	require.NoError(t, err)
	assert.Equal(t, written.SHA256[:], hash.Sum(nil))
}

func liveHeap() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func (s Subject) testRange(t *testing.T) {
	opened := s.Open(t)
	put(t, opened, "ten", strings.NewReader("0123456789"))
	put(t, opened, "empty", strings.NewReader(""))
	for _, one := range []struct {
		name           string
		offset, length int64
		want           string
	}{
		{"ten", 0, -1, "0123456789"},
		{"ten", 0, 3, "012"},
		{"ten", 4, 3, "456"},
		{"ten", 4, -1, "456789"},
		{"ten", 8, 100, "89"},
		{"ten", 0, 100, "0123456789"},
		{"ten", 9, 1, "9"},
		{"ten", 10, 1, ""},
		{"ten", 10, -1, ""},
		{"ten", 99, 5, ""},
		{"ten", 3, 0, ""},
		{"empty", 0, -1, ""},
		{"empty", 0, 5, ""},
		{"empty", 5, 5, ""},
	} {
		assert.Equal(t, one.want, string(get(t, opened, one.name, one.offset, one.length)), "%+v", one)
	}
	for _, length := range []int64{-1, 0, 7} {
		_, err := opened.Get(testContext(t), "absent", 0, length)
		assert.ErrorIs(t, err, store.ErrNotFound)
	}
}

func (s Subject) testList(t *testing.T) {
	opened, count := s.Open(t), 1100 // more than a page of 1,000; on Azure, a page has up to 5,000
	if s.SinglePiece {
		count = 200 // fewer for a folder, because every object is synced to disk
	}
	want := []string{"other", "zz/last"}
	for i := range count {
		// These names sort differently as paths and as strings: - and . sort before the slash, = and letters after
		// it.
		want = append(want, fmt.Sprintf("dir%s%04d", []string{"/", "-", ".", "=", "/sub/", "x/"}[i%6], i))
	}
	var writers sync.WaitGroup
	for part := range slices.Chunk(want, len(want)/8+1) {
		writers.Go(func() {
			for _, name := range part {
				assert.NoError(t, opened.Put(testContext(t), name, strings.NewReader(name)))
			}
		})
	}
	writers.Wait()
	slices.Sort(want)
	assert.Equal(t, want, list(t, opened, "", ""))
	for _, after := range []string{want[0], want[150], want[150] + "-", "dir/", "dir/sub/0004", "dir/sub", want[len(want)-1]} {
		assert.Equal(t, sortedAfter(want, after), append([]string{}, list(t, opened, "", after)...), after)
	}
	inside := slices.DeleteFunc(slices.Clone(want), func(name string) bool { return !strings.HasPrefix(name, "dir/") })
	assert.Equal(t, inside, list(t, opened, "dir/", ""))
	assert.Equal(t, sortedAfter(inside, "dir/sub/"), list(t, opened, "dir/", "dir/sub/"))
	for object, err := range opened.List(testContext(t), "", "") {
		require.NoError(t, err)
		assert.Equal(t, want[0], object.Name)
		break // callers may stop before the end of a listing
	}
}

// sortedAfter returns the sorted names after the given one.
func sortedAfter(sorted []string, after string) []string {
	return slices.DeleteFunc(slices.Clone(sorted), func(name string) bool { return name <= after })
}

func (s Subject) testPrefix(t *testing.T) {
	opened := s.Open(t)
	assert.Empty(t, list(t, opened, "", ""))
	for _, name := range []string{"ab/1", "ab/2", "abc", "abd/3/4", "b"} {
		put(t, opened, name, strings.NewReader(name))
	}
	for _, one := range []struct{ prefix, after, want string }{
		{"ab", "", "ab/1 ab/2 abc abd/3/4"},
		{"abd/3", "", "abd/3/4"},
		{"ab", "ab/2", "abc abd/3/4"},
		{"abd", "abc", "abd/3/4"},
		{"ab/1/", "", ""},
		{"c", "", ""},
		{"a", "b", ""},
	} {
		assert.Equal(t, one.want, strings.Join(list(t, opened, one.prefix, one.after), " "), one)
	}
}

func (s Subject) testDelete(t *testing.T) {
	opened := s.Open(t)
	put(t, opened, "a/b", strings.NewReader("first"))
	require.NoError(t, opened.Delete(testContext(t), "a/b"))
	assertEmpty(t, opened, "a/b")
	assert.NoError(t, opened.Delete(testContext(t), "a/b"), "deleting a missing object must succeed")
	assert.NoError(t, opened.Delete(testContext(t), "never/existed"))
	put(t, opened, "a/b", strings.NewReader("second"))
	assert.Equal(t, "second", string(get(t, opened, "a/b", 0, -1)))
}

func (s Subject) testNames(t *testing.T) {
	opened := s.Open(t)
	want := []string{"+=@._-/2026-11-21T21.49.47Z+00=1@x", "A/b+c", "a=b/c@d", strings.Repeat("s", 200) + "/" + strings.Repeat("t", 200)}
	for _, name := range want {
		put(t, opened, name, strings.NewReader("content of "+name))
	}
	assert.Equal(t, want, list(t, opened, "", ""))
	for _, name := range want {
		assert.Equal(t, "content of "+name, string(get(t, opened, name, 0, -1)))
		assert.Equal(t, []string{name}, list(t, opened, name, ""))
		require.NoError(t, opened.Delete(testContext(t), name))
	}
	assert.Empty(t, list(t, opened, "", ""))
}

func (s Subject) testInvalidNames(t *testing.T) {
	opened := s.Open(t)
	for _, name := range []string{"", "/a", "a/", "a//b", "../a", "a/../b", ".a", "a/.b", "a b", "a%41", "ä", "a\\b", "a:b"} {
		assert.Error(t, opened.Put(testContext(t), name, strings.NewReader("x")), name)
		_, err := opened.Get(testContext(t), name, 0, -1)
		assert.Error(t, err, name)
		assert.Error(t, opened.Delete(testContext(t), name), name)
	}
	assert.Error(t, listError(testContext(t), opened, "a b"))
	assert.Empty(t, list(t, opened, "", ""))
}

// listError lists objects and returns the last error from the listing.
func listError(ctx context.Context, s store.Store, prefix string) (last error) {
	for _, err := range s.List(ctx, prefix, "") {
		last = err
	}
	return last
}

// testIncompleteUpload interrupts uploads when almost all of the content has been read and parts of a large object
// have been stored.
func (s Subject) testIncompleteUpload(t *testing.T) {
	opened := s.Open(t)
	for _, length := range []int{10, s.large()} {
		for _, want := range []error{errors.New("disk failed"), io.ErrUnexpectedEOF, syscall.EIO, fs.ErrExist, context.Canceled} {
			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			content := func() io.Reader {
				end := Broken(func() error { return want })
				if errors.Is(want, context.Canceled) {
					end = Broken(func() error { cancel(); return io.EOF })
				}
				return io.MultiReader(Pattern(1, length-5), end, Pattern(2, 5))
			}
			err := opened.Put(ctx, "incomplete", content())
			assert.ErrorIs(t, err, want)
			assert.Empty(t, store.FailureOf(err), "an error from content must not be a failure of the store")
			assert.NotErrorIs(t, err, store.ErrExists)
			assertEmpty(t, opened, "incomplete")
			_, err = store.PutOnce(ctx, opened, "incomplete", content())
			assert.ErrorIs(t, err, want)
		}
	}
}

func (s Subject) testCancel(t *testing.T) {
	opened := s.Open(t)
	put(t, opened, "a", strings.NewReader("x"))
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	for name, call := range methods(ctx, opened) {
		assert.ErrorIs(t, call(), context.Canceled, name)
	}
	put(t, opened, "large", Pattern(1, s.large()))
	ctx, stop := context.WithCancelCause(testContext(t))
	reader, err := opened.Get(ctx, "large", 0, -1)
	require.NoError(t, err)
	defer reader.Close()
	_, err = reader.Read(make([]byte, 1))
	require.NoError(t, err)
	why := errors.New("read canceled")
	stop(why)
	_, err = io.Copy(io.Discard, reader)
	assert.ErrorIs(t, err, why)
}

// methods returns functions that call the methods of a store, by name.
func methods(ctx context.Context, s store.Store) map[string]func() error {
	return map[string]func() error{
		"create":               func() error { return s.Put(ctx, "a", strings.NewReader("x")) },
		"create in two pieces": func() error { return s.Put(ctx, "a", Pattern(1, wire.PieceSize+1)) },
		"read": func() error {
			body, err := s.Get(ctx, "a", 0, -1)
			if err == nil {
				_ = body.Close() // nothing was written, so a close error is harmless
			}
			return err
		},
		"list":   func() error { return listError(ctx, s, "") },
		"delete": func() error { return s.Delete(ctx, "a") },
	}
}

func (s Subject) testProbe(t *testing.T) {
	opened := s.Open(t)
	abilities, err := store.Probe(testContext(t), opened)
	require.NoError(t, err)
	assert.True(t, abilities.CreateIfAbsent)
	assert.NoError(t, abilities.Delete)
	assert.Empty(t, list(t, opened, "", ""))
}

func (s Subject) testFailures(t *testing.T) {
	for want, open := range map[store.Failure]func(*testing.T) store.Store{store.ErrNoBucket: s.Missing, store.ErrDenied: s.Denied} {
		if open == nil {
			continue // the store has no buckets or no credentials
		}
		opened := open(t)
		assertFailure(t, opened, want)
		_, err := store.Probe(testContext(t), opened)
		assert.Equal(t, want, store.FailureOf(err))
	}
}

// assertFailure checks that every method except Delete returns the error want. A server may report success for
// deleting an object in a missing bucket.
func assertFailure(t *testing.T, s store.Store, want store.Failure) {
	t.Helper()
	for name, call := range methods(testContext(t), s) {
		if err := call(); name != "delete" {
			assert.Equal(t, want, store.FailureOf(err), "%s: %v", name, err)
			assert.NotErrorIs(t, err, store.ErrNotFound, "a missing bucket must not look like a missing object")
		}
	}
}

func (s Subject) openProxy(t *testing.T) (store.Store, *Proxy) {
	if s.Through == nil {
		t.Skip("the store is not accessed over a network")
	}
	proxy := NewProxy(t, s.Server)
	return s.Through(t, proxy.Endpoint), proxy
}

func (s Subject) testLostReply(t *testing.T) {
	opened, proxy := s.openProxy(t)
	for name, length := range map[string]int{"small": 1000, "large": s.large()} {
		proxy.Inject(Faults{LostReplies: 1})
		_, err := store.PutOnce(testContext(t), opened, name, Pattern(1, length))
		require.NoError(t, err)
		assert.Zero(t, proxy.Faults().LostReplies, "the proxy must discard a reply")
		assert.Equal(t, []string{name}, list(t, opened, name, ""))
		_, err = store.PutOnce(testContext(t), opened, name, Pattern(1, length))
		assert.NoError(t, err, "uploading the same content again must succeed")
		_, err = store.PutOnce(testContext(t), opened, name, Pattern(2, length))
		assert.ErrorIs(t, err, store.ErrExists)
	}
}

func (s Subject) testCutUpload(t *testing.T) {
	opened, proxy := s.openProxy(t)
	for _, length := range []int{100_000, s.large()} {
		proxy.Inject(Faults{UploadLimit: 50_000})
		assert.ErrorIs(t, opened.Put(testContext(t), "cut", Pattern(1, length)), store.ErrUnavailable)
		proxy.Inject(Faults{})
		assertEmpty(t, opened, "cut")
		put(t, opened, "cut", Pattern(2, length))
		require.NoError(t, opened.Delete(testContext(t), "cut"))
	}
}
