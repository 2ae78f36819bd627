package storetest

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

// requests returns every method of a store.
func requests(t *testing.T, s store.Store) map[string]func() error {
	return map[string]func() error{
		"create":               func() error { return s.Put(testContext(t), "a", strings.NewReader("x")) },
		"create in two pieces": func() error { return s.Put(testContext(t), "a", Pattern(1, wire.PieceSize+1)) },
		"read":                 func() error { return readingOf(t, s) },
		"list":                 func() error { return listingOf(t, s) },
		"delete":               func() error { return s.Delete(testContext(t), "a") },
	}
}

func readingOf(t *testing.T, s store.Store) error {
	body, err := s.Get(testContext(t), "a", 0, -1)
	if err == nil {
		_ = body.Close() // it was only read
	}
	return err
}

// response is a response to every request, and its meaning.
type response struct {
	by       func(w http.ResponseWriter)
	creating error // nil for any error
	others   error
}

func (d Dialect) errors(t *testing.T) {
	unavailable := func(status int) response {
		return response{func(w http.ResponseWriter) { d.Refuse(w, status) }, store.ErrUnavailable, store.ErrUnavailable}
	}
	skewed := func(w http.ResponseWriter) {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
		d.Denied(w)
	}
	var all sync.WaitGroup // requests are repeated
	defer all.Wait()
	for name, answer := range map[string]response{
		"409":                 {func(w http.ResponseWriter) { d.Refuse(w, http.StatusConflict) }, d.Conflict, nil},
		"412":                 {func(w http.ResponseWriter) { d.Refuse(w, http.StatusPreconditionFailed) }, store.ErrExists, nil},
		"429":                 unavailable(http.StatusTooManyRequests),
		"500":                 unavailable(http.StatusInternalServerError),
		"503":                 unavailable(http.StatusServiceUnavailable),
		"expired credentials": {d.Expired, store.ErrDenied, store.ErrDenied},
		"a missing right":     {d.Denied, store.ErrDenied, store.ErrDenied},
		"a clock that is off": {skewed, store.ErrSkewed, store.ErrSkewed},
	} {
		s := d.open(t, patience, func(w http.ResponseWriter, _ *http.Request) { answer.by(w) })
		for asked, ask := range requests(t, s) {
			all.Go(func() {
				err, want := ask(), answer.others
				if strings.HasPrefix(asked, "create") {
					want = answer.creating
				}
				if assert.Error(t, err, "%s: %s", name, asked) && want != nil {
					assert.ErrorIs(t, err, want, "%s: %s", name, asked)
				}
				var failure store.Failure
				if errors.As(want, &failure) {
					assert.Equal(t, failure, store.FailureOf(err), "%s: %s", name, asked)
				}
				assert.NotErrorIs(t, err, store.ErrNotFound, "not ErrNotFound: %s: %s", name, asked)
			})
		}
	}
}

func (d Dialect) missingBucket(t *testing.T) {
	assertFailure(t, d.open(t, patience, func(w http.ResponseWriter, _ *http.Request) { d.NoBucket(w) }), store.ErrNoBucket)
}

// otherServer responds like a web server that is not the store's: every path is missing.
func (d Dialect) otherServer(t *testing.T) {
	assertFailure(t, d.open(t, patience, http.NotFound), store.ErrNoBucket)
}

func (d Dialect) unreachable(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	endpoint, err := url.Parse(server.URL)
	require.NoError(t, err)
	s := d.Open(t, endpoint, patience)
	server.Close()
	assertFailure(t, s, store.ErrUnavailable)
	assert.Equal(t, store.ErrUnavailable, store.FailureOf(s.Delete(testContext(t), "a")))
}

func (d Dialect) lastPage(t *testing.T) {
	for what, fails := range map[string]func(w http.ResponseWriter){
		"refused":           func(w http.ResponseWriter) { d.Refuse(w, http.StatusServiceUnavailable) },
		"not allowed":       d.Denied,
		"lost":              func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"a page for people": func(w http.ResponseWriter) { _, _ = w.Write([]byte("<html></html>")) },
		"another service's": func(w http.ResponseWriter) { _, _ = w.Write([]byte("{}")) },
	} {
		var pages atomic.Int32
		s := d.open(t, patience, func(w http.ResponseWriter, _ *http.Request) {
			if pages.Add(1) > 1 {
				fails(w)
				return
			}
			d.Page(w)
		})
		var found []string
		var last error
		for object, err := range s.List(testContext(t), "", "") {
			if last = err; err == nil {
				found = append(found, object.Name)
			}
		}
		assert.Equal(t, []string{"a"}, found, what)
		assert.Error(t, last, what)
	}
}

func (d Dialect) overwriteExisting(t *testing.T) {
	s := d.open(t, patience, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			d.Deleted(w)
			return
		}
		d.Created(w, r)
	})
	abilities, err := store.Probe(testContext(t), s)
	require.NoError(t, err)
	assert.False(t, abilities.CreateIfAbsent)
	assert.NoError(t, abilities.Delete)
}

// locked tests a bucket that is locked as a whole: some servers check the lock before the condition.
func (d Dialect) locked(t *testing.T) {
	var created atomic.Bool
	s := d.open(t, patience, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet:
			begin(w, "1")
			_, _ = io.WriteString(w, "x")
		case r.Method != http.MethodDelete && created.CompareAndSwap(false, true):
			d.Created(w, r)
		default:
			d.Locked(w)
		}
	})
	for range 2 {
		_, err := store.PutOnce(testContext(t), s, "a", strings.NewReader("x"))
		require.NoError(t, err)
	}
	_, err := store.PutOnce(testContext(t), s, "a", strings.NewReader("y"))
	assert.ErrorIs(t, err, store.ErrExists)
	created.Store(false)
	abilities, err := store.Probe(testContext(t), s)
	require.NoError(t, err)
	assert.True(t, abilities.CreateIfAbsent)
	assert.ErrorIs(t, abilities.Delete, store.ErrLocked)
}

// stalledUpload tests an upload that is larger than the buffers between two processes.
func (d Dialect) stalledUpload(t *testing.T) {
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(over) }) // before the server is closed
	endpoint, err := url.Parse(server.URL)
	require.NoError(t, err)
	err = d.Open(t, endpoint, soon).Put(testContext(t), "a", Pattern(1, wire.PieceSize))
	assert.ErrorIs(t, err, store.ErrUnavailable)
	assert.ErrorContains(t, err, "no data was transferred")
}
