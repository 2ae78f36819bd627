package storetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
)

func (c contract) listing(t *testing.T) {
	s := c.Open(t)
	want := []string{"other", "zz/last"}
	for i := range c.many() {
		// These sort differently as paths and as names: - and . precede the slash, = and letters follow it.
		want = append(want, fmt.Sprintf("dir%s%04d", []string{"/", "-", ".", "=", "/sub/", "x/"}[i%6], i))
	}
	create(t, s, want)
	slices.Sort(want)
	assert.Equal(t, want, names(t, s, "", ""))
	for _, after := range []string{want[0], want[150], want[150] + "-", "dir/", "dir/sub/0004", "dir/sub", want[len(want)-1]} {
		rest := want[upTo(want, after):]
		assert.Equal(t, len(rest), len(names(t, s, "", after)), after)
		assert.Equal(t, rest, append([]string{}, names(t, s, "", after)...), after)
	}
	inside := slices.DeleteFunc(slices.Clone(want), func(name string) bool { return !strings.HasPrefix(name, "dir/") })
	assert.Equal(t, inside, names(t, s, "dir/", ""))
	assert.Equal(t, inside[upTo(inside, "dir/sub/"):], names(t, s, "dir/", "dir/sub/"))
	for object, err := range s.List(testContext(t), "", "") {
		require.NoError(t, err)
		assert.Equal(t, want[0], object.Name)
		break // a listing may be abandoned
	}
}

// upTo returns how many of the sorted names sort up to after.
func upTo(sorted []string, after string) int {
	at, found := slices.BinarySearch(sorted, after)
	if found {
		at++
	}
	return at
}

func create(t *testing.T, s store.Store, names []string) {
	work := make(chan string)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for name := range work {
				assert.NoError(t, s.Put(testContext(t), name, strings.NewReader(name)))
			}
		})
	}
	for _, name := range names {
		work <- name
	}
	close(work)
	workers.Wait()
	require.False(t, t.Failed())
}

func (c contract) prefix(t *testing.T) {
	s := c.Open(t)
	assert.Empty(t, names(t, s, "", ""))
	create(t, s, []string{"ab/1", "ab/2", "abc", "abd/3/4", "b"})
	assert.Equal(t, []string{"ab/1", "ab/2", "abc", "abd/3/4"}, names(t, s, "ab", ""))
	assert.Equal(t, []string{"abd/3/4"}, names(t, s, "abd/3", ""))
	assert.Equal(t, []string{"abc", "abd/3/4"}, names(t, s, "ab", "ab/2"))
	assert.Equal(t, []string{"abd/3/4"}, names(t, s, "abd", "abc"))
	assert.Empty(t, names(t, s, "ab/1/", ""))
	assert.Empty(t, names(t, s, "c", ""))
	assert.Empty(t, names(t, s, "a", "b"))
}

func (c contract) deleted(t *testing.T) {
	s := c.Open(t)
	put(t, s, "a/b", strings.NewReader("first"))
	require.NoError(t, s.Delete(testContext(t), "a/b"))
	assertMissing(t, s, "a/b")
	assert.NoError(t, s.Delete(testContext(t), "a/b"), "what is absent")
	assert.NoError(t, s.Delete(testContext(t), "never/was"))
	put(t, s, "a/b", strings.NewReader("second"))
	assert.Equal(t, "second", string(get(t, s, "a/b", 0, -1)))
}

func (c contract) names(t *testing.T) {
	s := c.Open(t)
	want := []string{"+=@._-/2026-11-21T21.49.47Z+00=1@x", "A/b+c", "a=b/c@d", strings.Repeat("s", 200) + "/" + strings.Repeat("t", 200)}
	for _, name := range want {
		put(t, s, name, strings.NewReader("content of "+name))
	}
	assert.Equal(t, want, names(t, s, "", ""))
	for _, name := range want {
		assert.Equal(t, "content of "+name, string(get(t, s, name, 0, -1)))
		assert.Equal(t, []string{name}, names(t, s, name, ""))
		require.NoError(t, s.Delete(testContext(t), name))
	}
	assert.Empty(t, names(t, s, "", ""))
}

func (c contract) badNames(t *testing.T) {
	s := c.Open(t)
	for _, name := range []string{"", "/a", "a/", "a//b", "../a", "a/../b", ".a", "a/.b", "a b", "a%41", "ä", "a\\b", "a:b"} {
		assert.Error(t, s.Put(testContext(t), name, strings.NewReader("x")), name)
		_, err := s.Get(testContext(t), name, 0, -1)
		assert.Error(t, err, name)
		assert.Error(t, s.Delete(testContext(t), name), name)
	}
	for _, err := range s.List(testContext(t), "a b", "") {
		assert.Error(t, err)
	}
	assert.Empty(t, names(t, s, "", ""))
}

func (c contract) cancelledUpload(t *testing.T) {
	s := c.Open(t)
	for _, length := range []int{10, c.large()} {
		ctx, cancel := context.WithCancel(testContext(t))
		// The context ends after almost everything was read, with parts of a large object stored.
		content := io.MultiReader(Pattern(1, length-5), AtEnd(cancel), Pattern(2, 5))
		assert.ErrorIs(t, s.Put(ctx, "cancelled", content), context.Canceled)
		assertMissing(t, s, "cancelled")
		_, err := s.Get(ctx, "cancelled", 0, -1)
		assert.ErrorIs(t, err, context.Canceled)
		assert.ErrorIs(t, s.Delete(ctx, "cancelled"), context.Canceled)
	}
}

// AtEnd returns an empty content that calls a function.
type AtEnd func()

// Read implements io.Reader.
func (f AtEnd) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

func (c contract) cancelledListing(t *testing.T) {
	s := c.Open(t)
	put(t, s, "a", strings.NewReader("x"))
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	var last error
	for _, err := range s.List(ctx, "", "") {
		last = err
	}
	assert.ErrorIs(t, last, context.Canceled)
}

func (c contract) sourceFails(t *testing.T) {
	s := c.Open(t)
	for _, broken := range []error{errors.New("disk failed"), io.ErrUnexpectedEOF} {
		for _, length := range []int{10, c.large()} {
			content := io.MultiReader(Pattern(1, length), failing{broken})
			assert.ErrorIs(t, s.Put(testContext(t), "broken", content), broken)
			assertMissing(t, s, "broken")
			_, err := store.PutOnce(testContext(t), s, "broken", io.MultiReader(Pattern(1, length), failing{broken}))
			assert.ErrorIs(t, err, broken)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func (c contract) probe(t *testing.T) {
	s := c.Open(t)
	abilities, err := store.Probe(testContext(t), s)
	require.NoError(t, err)
	assert.True(t, abilities.CreateIfAbsent)
	assert.NoError(t, abilities.Delete)
	assert.Empty(t, names(t, s, "", ""))
}
