package storetest

import (
	"bytes"
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

// Dialect is how the servers of a store answer, for one that a test makes as hostile as it wants.
type Dialect struct {
	// Open returns a store at an endpoint that gives a request up when nothing moves for so long.
	Open func(t *testing.T, endpoint *url.URL, patience time.Duration) store.Store
	// What a server answers to creating an object with a request that it has read, to creating it once more, and to deleting one.
	Created         func(w http.ResponseWriter, r *http.Request)
	Exists, Deleted func(w http.ResponseWriter)
	// What it answers to what is not allowed, is not allowed any longer, is not allowed yet, and is asked of a bucket that is not there.
	Denied, Expired, Locked, NoBucket func(w http.ResponseWriter)
	// Refuse answers with an HTTP status and what servers say with it.
	Refuse func(w http.ResponseWriter, status int)
	// Conflict is what 409 means to who creates an object.
	Conflict error
	// Page answers with the object a, and says that there are more.
	Page func(w http.ResponseWriter)
}

// Hostile runs what has to be so whatever becomes of requests and answers.
func Hostile(t *testing.T, dialect Dialect) {
	t.Run("a server that says nothing is given up", dialect.silent)
	t.Run("an answer that drips is given up", dialect.drips)
	t.Run("an answer that ends too early does not seem complete", dialect.truncated)
	t.Run("a lost reply after success is resolved", dialect.lost)
	t.Run("what something else answers is not stored", dialect.somethingElse)
	t.Run("who may not delete can make backups", dialect.keeps)
	t.Run("a store that overwrites is found out", dialect.overwrites)
	t.Run("what is locked is there", dialect.locked)
	t.Run("a server that takes nothing is given up", dialect.takesNothing)
	t.Run("every refusal is told apart, whatever was asked", dialect.told)
	t.Run("a bucket that is not there is no empty one", dialect.absent)
	t.Run("a 404 of another server is no absent object", dialect.elsewhere)
	t.Run("a server that is down is unavailable", dialect.unreachable)
	t.Run("a listing that does not get to its last page does not seem complete", dialect.lastPage)
}

const soon = 100 * time.Millisecond

func (d Dialect) against(t *testing.T, patience time.Duration, handler http.HandlerFunc) store.Store {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, _ := io.ReadAll(r.Body) // so that it is noticed when the client leaves
		r.Body = io.NopCloser(bytes.NewReader(content))
		handler(w, r)
	}))
	t.Cleanup(server.Close)
	endpoint, err := url.Parse(server.URL)
	require.NoError(t, err)
	return d.Open(t, endpoint, patience)
}

func (d Dialect) silent(t *testing.T) {
	var asked atomic.Int32
	s := d.against(t, soon, func(_ http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		<-r.Context().Done()
	})
	var all sync.WaitGroup
	asks := []func() error{
		func() error { return s.Put(within(t), "a", strings.NewReader("x")) },
		func() error { return s.Delete(within(t), "a") },
		func() error { _, err := s.Get(within(t), "a", 0, -1); return err },
		func() error { return listingOf(t, s) },
	}
	for _, ask := range asks {
		all.Go(func() {
			err := ask()
			assert.ErrorIs(t, err, store.ErrUnavailable)
			assert.ErrorContains(t, err, "nothing moved")
		})
	}
	all.Wait()
	assert.EqualValues(t, len(asks), asked.Load(), "a minute of silence each: nothing is asked again")
}

func listingOf(t *testing.T, s store.Store) (last error) {
	for _, err := range s.List(within(t), "", "") {
		last = err
	}
	return last
}

// begin is how the answer to reading an object begins.
func begin(w http.ResponseWriter, length string) {
	w.Header().Set("Content-Length", length)
	w.Header().Set("ETag", `"1"`)
	w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
}

func (d Dialect) drips(t *testing.T) {
	s := d.against(t, 10*soon, func(w http.ResponseWriter, r *http.Request) { // a busy machine is no silence
		begin(w, "1000000")
		drop := time.NewTicker(soon / 10)
		defer drop.Stop()
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, "x")
			_ = http.NewResponseController(w).Flush()
			<-drop.C
		}
	})
	body, err := s.Get(within(t), "a", 0, -1)
	require.NoError(t, err)
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	assert.ErrorIs(t, err, store.ErrUnavailable)
}

func (d Dialect) truncated(t *testing.T) {
	s := d.against(t, patience, func(w http.ResponseWriter, _ *http.Request) {
		begin(w, "100")
		_, _ = io.WriteString(w, "<a>{") // of a listing, or of an object
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	body, err := s.Get(within(t), "a", 0, -1)
	require.NoError(t, err)
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	assert.ErrorIs(t, err, store.ErrUnavailable)
	assert.ErrorIs(t, listingOf(t, s), store.ErrUnavailable)
}

func (d Dialect) lost(t *testing.T) {
	var created atomic.Bool
	s := d.against(t, patience, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet:
			begin(w, "1")
			_, _ = io.WriteString(w, "x")
		case created.CompareAndSwap(false, true):
			panic(http.ErrAbortHandler)
		default:
			d.Exists(w)
		}
	})
	_, err := store.PutOnce(within(t), s, "a", strings.NewReader("x"))
	require.NoError(t, err)
	assert.True(t, created.Load())
	_, err = store.PutOnce(within(t), s, "a", strings.NewReader("y"))
	assert.ErrorIs(t, err, store.ErrExists)
}

// somethingElse is a console, a proxy or a captive portal: it says yes to everything, with a page for people.
func (d Dialect) somethingElse(t *testing.T) {
	for _, status := range []int{http.StatusOK, http.StatusCreated} {
		s := d.against(t, patience, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "<!DOCTYPE html><html><body>Welcome</body></html>")
		})
		assert.Error(t, s.Put(within(t), "a", strings.NewReader("x")))
		assert.Error(t, s.Put(within(t), "a", Pattern(1, wire.PieceSize+1)))
		_, err := store.PutOnce(within(t), s, "a", strings.NewReader("x"))
		assert.Error(t, err)
	}
}

func (d Dialect) keeps(t *testing.T) {
	var created atomic.Bool
	s := d.against(t, patience, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodDelete:
			d.Denied(w)
		case created.CompareAndSwap(false, true):
			d.Created(w, r)
		default:
			d.Exists(w)
		}
	})
	abilities, err := store.Probe(within(t), s)
	require.NoError(t, err)
	assert.True(t, abilities.CreateIfAbsent)
	assert.ErrorIs(t, abilities.Delete, store.ErrDenied)
}
