package storetest

import (
	"crypto/sha256"
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
)

// memoryLimit limits the memory of an upload, in bytes: one piece, and another for those who wrap it.
const memoryLimit = 24 << 20

func (c contract) bounded(t *testing.T) {
	if c.Holds {
		t.Skip("this store holds everything in memory")
	}
	s := c.Open(t)
	content := &memoryReader{content: Pattern(3, huge), before: liveHeap()}
	written, err := store.PutOnce(testContext(t), s, "huge", content)
	require.NoError(t, err)
	assert.Less(t, content.most, uint64(memoryLimit))
	assert.Equal(t, int64(huge), written.Size)
	body, err := s.Get(testContext(t), "huge", 0, -1)
	require.NoError(t, err)
	defer body.Close()
	hash := sha256.New()
	_, err = io.Copy(hash, body)
	require.NoError(t, err)
	assert.Equal(t, written.SHA256[:], hash.Sum(nil))
}

// memoryReader measures the memory in use every 8 MB.
type memoryReader struct {
	content io.Reader
	read    int
	before  uint64
	most    uint64
}

func (w *memoryReader) Read(p []byte) (int, error) {
	n, err := w.content.Read(p)
	if w.read%(8<<20) > (w.read+n)%(8<<20) {
		w.most = max(w.most, liveHeap()-min(w.before, liveHeap()))
	}
	w.read += n
	return n, err
}

func liveHeap() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func (c contract) missing(t *testing.T) {
	if c.Missing == nil {
		t.Skip("this store has no bucket")
	}
	s := c.Missing(t)
	assertFailure(t, s, store.ErrNoBucket)
	assert.ErrorIs(t, s.Put(testContext(t), "a", Pattern(1, c.large())), store.ErrNoBucket)
	_, err := store.Probe(testContext(t), s)
	assert.Equal(t, store.ErrNoBucket, store.FailureOf(err))
}

func (c contract) denied(t *testing.T) {
	if c.Denied == nil {
		t.Skip("this store has no credentials")
	}
	s := c.Denied(t)
	assertFailure(t, s, store.ErrDenied)
	assert.Equal(t, store.ErrDenied, store.FailureOf(s.Delete(testContext(t), "a")))
}

// assertFailure checks that every method fails with want. Delete is excluded: a server may report that an object of a missing bucket
// is deleted.
func assertFailure(t *testing.T, s store.Store, want store.Failure) {
	t.Helper()
	for asked, ask := range requests(t, s) {
		if err := ask(); asked != "delete" {
			assert.Equal(t, want, store.FailureOf(err), "%s: %v", asked, err)
			assert.NotErrorIs(t, err, store.ErrNotFound, "or the data on a volume would be compared with an empty store")
		}
	}
}

func (c contract) through(t *testing.T) (store.Store, *Proxy) {
	if c.Through == nil {
		t.Skip("this store has no network")
	}
	proxy := NewProxy(t)
	return c.Through(t, proxy), proxy
}

func (c contract) lostReply(t *testing.T) {
	s, proxy := c.through(t)
	for name, length := range map[string]int{"small": 1000, "large": c.large()} {
		proxy.LoseReply(1)
		_, err := store.PutOnce(testContext(t), s, name, Pattern(1, length))
		require.NoError(t, err)
		assert.Zero(t, proxy.Left(), "no reply was lost")
		assert.Equal(t, []string{name}, names(t, s, name, ""))
		_, err = store.PutOnce(testContext(t), s, name, Pattern(1, length))
		assert.NoError(t, err, "the same again")
		_, err = store.PutOnce(testContext(t), s, name, Pattern(2, length))
		assert.ErrorIs(t, err, store.ErrExists)
	}
}

func (c contract) cutUpload(t *testing.T) {
	s, proxy := c.through(t)
	for _, length := range []int{100_000, c.large()} {
		proxy.CutUploads(50_000)
		assert.ErrorIs(t, s.Put(testContext(t), "cut", Pattern(1, length)), store.ErrUnavailable)
		proxy.Heal()
		assertMissing(t, s, "cut")
		put(t, s, "cut", Pattern(2, length))
		require.NoError(t, s.Delete(testContext(t), "cut"))
	}
}

func (c contract) cutDownload(t *testing.T) {
	s, proxy := c.through(t)
	put(t, s, "cut", Pattern(1, c.large()))
	proxy.CutDownloads(100_000)
	body, err := s.Get(testContext(t), "cut", 0, -1)
	require.NoError(t, err)
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	assert.ErrorIs(t, err, store.ErrUnavailable)
}
