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

// Dialect describes how the servers of a store respond, for a test server with arbitrary faults.
type Dialect struct {
	// Open returns a store at an endpoint, with a patience for stalled requests.
	Open func(t *testing.T, endpoint *url.URL, patience time.Duration) store.Store
	// Responses to creating an object whose request was read, to creating it again, and to deleting it.
	Created         func(w http.ResponseWriter, r *http.Request)
	Exists, Deleted func(w http.ResponseWriter)
	// Responses to a request that is not allowed, no longer allowed, or not yet allowed, and to one for a missing bucket.
	Denied, Expired, Locked, NoBucket func(w http.ResponseWriter)
	// Refuse responds with an HTTP status and the error code that servers send with it.
	Refuse func(w http.ResponseWriter, status int)
	// Conflict is the error for a 409 to creating an object.
	Conflict error
	// Page responds with the object a and the mark of another page.
	Page func(w http.ResponseWriter)
}

// RunFaults tests a store against a server with faults.
func RunFaults(t *testing.T, dialect Dialect) {
	t.Run("a server that does not respond fails the request", dialect.stalledServer)
	t.Run("an answer that drips is given up", dialect.slowResponse)
	t.Run("an answer that ends too early does not seem complete", dialect.truncatedResponse)
	t.Run("a lost reply after success is resolved", dialect.lostReply)
	t.Run("what something else answers is not stored", dialect.unexpectedResponse)
	t.Run("who may not delete can make backups", dialect.denyDelete)
	t.Run("a store that overwrites is found out", dialect.overwriteExisting)
	t.Run("what is locked is there", dialect.locked)
	t.Run("a server that takes nothing is given up", dialect.stalledUpload)
	t.Run("every method returns the error that fits a response", dialect.errors)
	t.Run("a missing bucket is not an empty one", dialect.missingBucket)
	t.Run("a 404 of another server is no absent object", dialect.otherServer)
	t.Run("a server that is down is unavailable", dialect.unreachable)
	t.Run("a listing that does not get to its last page does not seem complete", dialect.lastPage)
}

const soon = 100 * time.Millisecond

func (d Dialect) open(t *testing.T, patience time.Duration, handler http.HandlerFunc) store.Store {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, _ := io.ReadAll(r.Body) // so that the server notices when the client leaves
		r.Body = io.NopCloser(bytes.NewReader(content))
		handler(w, r)
	}))
	t.Cleanup(server.Close)
	endpoint, err := url.Parse(server.URL)
	require.NoError(t, err)
	return d.Open(t, endpoint, patience)
}

func (d Dialect) stalledServer(t *testing.T) {
	var asked atomic.Int32
	s := d.open(t, soon, func(_ http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		<-r.Context().Done()
	})
	var all sync.WaitGroup
	asks := []func() error{
		func() error { return s.Put(testContext(t), "a", strings.NewReader("x")) },
		func() error { return s.Delete(testContext(t), "a") },
		func() error { _, err := s.Get(testContext(t), "a", 0, -1); return err },
		func() error { return listingOf(t, s) },
	}
	for _, ask := range asks {
		all.Go(func() {
			err := ask()
			assert.ErrorIs(t, err, store.ErrUnavailable)
			assert.ErrorContains(t, err, "no data was transferred")
		})
	}
	all.Wait()
	assert.EqualValues(t, len(asks), asked.Load(), "a minute of silence each: nothing is asked again")
}

func listingOf(t *testing.T, s store.Store) (last error) {
	for _, err := range s.List(testContext(t), "", "") {
		last = err
	}
	return last
}

// begin writes the headers of a response to reading an object.
func begin(w http.ResponseWriter, length string) {
	w.Header().Set("Content-Length", length)
	w.Header().Set("ETag", `"1"`)
	w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
}

func (d Dialect) slowResponse(t *testing.T) {
	s := d.open(t, 10*soon, func(w http.ResponseWriter, r *http.Request) { // a busy machine does not count as a stall
		begin(w, "1000000")
		drop := time.NewTicker(soon / 10)
		defer drop.Stop()
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, "x")
			_ = http.NewResponseController(w).Flush()
			<-drop.C
		}
	})
	body, err := s.Get(testContext(t), "a", 0, -1)
	require.NoError(t, err)
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	assert.ErrorIs(t, err, store.ErrUnavailable)
}

func (d Dialect) truncatedResponse(t *testing.T) {
	s := d.open(t, patience, func(w http.ResponseWriter, _ *http.Request) {
		begin(w, "100")
		_, _ = io.WriteString(w, "<a>{") // the start of a listing, or of an object
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	body, err := s.Get(testContext(t), "a", 0, -1)
	require.NoError(t, err)
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	assert.ErrorIs(t, err, store.ErrUnavailable)
	assert.ErrorIs(t, listingOf(t, s), store.ErrUnavailable)
}

func (d Dialect) lostReply(t *testing.T) {
	var created atomic.Bool
	s := d.open(t, patience, func(w http.ResponseWriter, r *http.Request) {
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
	_, err := store.PutOnce(testContext(t), s, "a", strings.NewReader("x"))
	require.NoError(t, err)
	assert.True(t, created.Load())
	_, err = store.PutOnce(testContext(t), s, "a", strings.NewReader("y"))
	assert.ErrorIs(t, err, store.ErrExists)
}

// unexpectedResponse tests a console, a proxy or a captive portal that answers every request with success and a web page.
func (d Dialect) unexpectedResponse(t *testing.T) {
	for _, status := range []int{http.StatusOK, http.StatusCreated} {
		s := d.open(t, patience, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "<!DOCTYPE html><html><body>Welcome</body></html>")
		})
		assert.Error(t, s.Put(testContext(t), "a", strings.NewReader("x")))
		assert.Error(t, s.Put(testContext(t), "a", Pattern(1, wire.PieceSize+1)))
		_, err := store.PutOnce(testContext(t), s, "a", strings.NewReader("x"))
		assert.Error(t, err)
	}
}

func (d Dialect) denyDelete(t *testing.T) {
	var created atomic.Bool
	s := d.open(t, patience, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodDelete:
			d.Denied(w)
		case created.CompareAndSwap(false, true):
			d.Created(w, r)
		default:
			d.Exists(w)
		}
	})
	abilities, err := store.Probe(testContext(t), s)
	require.NoError(t, err)
	assert.True(t, abilities.CreateIfAbsent)
	assert.ErrorIs(t, abilities.Delete, store.ErrDenied)
}
