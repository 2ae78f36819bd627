package storetest

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
)

// Protocol describes how a store's servers respond, for tests that inject faults.
type Protocol struct {
	// Open returns a store at an endpoint.
	Open func(t *testing.T, endpoint *url.URL) store.Store
	// Created writes the response to a request that creates an object, after the request has been read.
	Created func(w http.ResponseWriter, r *http.Request)
	// Deleted is the status of the response to a successful deletion.
	Deleted int
	// WriteError writes r in the error format of the protocol.
	WriteError func(w http.ResponseWriter, r ErrorResponse)
	// Exists, Denied, Locked and NoBucket are the responses to creating an existing object, to a denied request, to
	// deleting a locked object, and to a request for a missing bucket.
	Exists, Denied, Locked, NoBucket ErrorResponse
	// Others contains further error responses for which the store must return the right errors.
	Others []ErrorResponse
	// Page is the response body for the first page of a listing. The page contains the object "a" and the continuation
	// token of the next page.
	Page string
}

// ErrorResponse is a server's error response, and the errors that Put and Delete must return for it.
type ErrorResponse struct {
	Status         int
	Code, Message  string
	Create, Delete error // Delete is nil if the response means that the object does not exist, so that Delete succeeds
}

// RunErrors tests a store against a faulty server.
func RunErrors(t *testing.T, d Protocol) {
	for name, test := range map[string]func(*testing.T){
		"reports truncated responses":             d.testPartialResponse,
		"rejects responses from other servers":    d.testUnexpectedResponse,
		"detects a store that overwrites objects": d.testReplace,
		"maps responses to errors":                d.testErrorResponses,
		"reports clock skew":                      d.testClock,
		"reports a missing bucket":                d.testMissing,
		"reports an unreachable server":           d.testUnreachable,
		"reports incomplete listings":             d.testPages,
	} {
		t.Run(name, test)
	}
}

// Serve starts a server that is closed when the test ends. The body is read before the handler is called; otherwise,
// the server would not notice when the client disconnects.
func Serve(t *testing.T, handler http.HandlerFunc) *url.URL {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(content))
		handler(w, r)
	}))
	t.Cleanup(server.Close)
	endpoint, err := url.Parse(server.URL)
	require.NoError(t, err)
	return endpoint
}

// NewRedirectClient returns a client that sends every request to a single handler. Request.Host contains the original
// host. Tests use the client to simulate the servers that provide credentials for machines and workloads.
func NewRedirectClient(t *testing.T, handler http.HandlerFunc) *http.Client {
	t.Helper()
	return &http.Client{Transport: redirectTransport{Serve(t, handler)}}
}

type redirectTransport struct{ to *url.URL }

// RoundTrip implements http.RoundTripper.
func (r redirectTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Host = request.URL.Host
	request.URL.Scheme, request.URL.Host = r.to.Scheme, r.to.Host
	return http.DefaultTransport.RoundTrip(request)
}

func (d Protocol) open(t *testing.T, handler http.HandlerFunc) store.Store {
	t.Helper()
	return d.Open(t, Serve(t, handler))
}

// writeHeader writes the headers of the response to a read.
func writeHeader(w http.ResponseWriter, length string) {
	w.Header().Set("Content-Length", length)
	w.Header().Set("ETag", `"1"`)
	w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
}

// readError reads an object and returns the error that occurs after the response has started.
func readError(t *testing.T, s store.Store) error {
	t.Helper()
	body, err := s.Get(testContext(t), "a", 0, -1)
	require.NoError(t, err)
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	return err
}

func (d Protocol) testPartialResponse(t *testing.T) {
	s := d.open(t, func(w http.ResponseWriter, _ *http.Request) {
		writeHeader(w, "100")
		_, _ = io.WriteString(w, "<a>{") // start of a listing or an object
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	assert.ErrorIs(t, readError(t, s), store.ErrUnavailable)
	assert.ErrorIs(t, listError(testContext(t), s, ""), store.ErrUnavailable)
}

// testUnexpectedResponse simulates a console, a proxy or a captive portal that responds to every request with status
// 200 and a web page.
func (d Protocol) testUnexpectedResponse(t *testing.T) {
	for _, status := range []int{http.StatusOK, http.StatusCreated} {
		s := d.open(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "<!DOCTYPE html><html><body>SECRET</body></html>")
		})
		for name, call := range methods(testContext(t), s) {
			if err := call(); name != "delete" { // some servers respond to deletions with 200
				require.Error(t, err, name)
				assert.NotContains(t, err.Error(), "SECRET", name)
				if status == http.StatusOK && (name == "list" || name == "read") {
					assert.ErrorIs(t, err, store.ErrUnavailable, name)
					assert.ErrorContains(t, err, "the response is not from the store", name)
				}
			}
		}
		_, err := store.PutOnce(testContext(t), s, "a", strings.NewReader("x"))
		assert.Error(t, err)
	}
}

func (d Protocol) testReplace(t *testing.T) {
	abilities, err := store.Probe(testContext(t), d.open(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			w.WriteHeader(d.Deleted)
			return
		}
		d.Created(w, r)
	}))
	require.NoError(t, err)
	assert.False(t, abilities.CreateIfAbsent)
	assert.NoError(t, abilities.Delete)
}

func (d Protocol) testErrorResponses(t *testing.T) {
	var all sync.WaitGroup // in parallel, because retries take time
	defer all.Wait()
	for _, refusal := range append(d.Others, d.Exists, d.Denied, d.Locked) {
		s := d.open(t, func(w http.ResponseWriter, _ *http.Request) { d.WriteError(w, refusal) })
		for name, call := range methods(testContext(t), s) {
			all.Go(func() {
				err, want := call(), refusal.Delete
				if strings.HasPrefix(name, "create") {
					want = refusal.Create
				}
				if name == "delete" && want == nil {
					assert.NoError(t, err, "%v: %s", refusal, name)
					return
				}
				require.Error(t, err, "%v: %s", refusal, name)
				assert.NotContains(t, err.Error(), "SECRET")
				assert.NotErrorIs(t, err, store.ErrNotFound, "%v: %s", refusal, name)
				if failure, ok := errors.AsType[store.Failure](want); ok {
					assert.Equal(t, failure, store.FailureOf(err), "%v: %s", refusal, name)
				} else if name == "delete" || strings.HasPrefix(name, "create") {
					assert.ErrorIs(t, err, want, "%v: %s", refusal, name)
				}
			})
		}
	}
}

func (d Protocol) testClock(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, time.Hour} {
		s := d.open(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", time.Now().Add(skew).UTC().Format(http.TimeFormat))
			d.WriteError(w, d.Denied)
		})
		assertFailure(t, s, store.ErrSkewed)
		assert.ErrorIs(t, s.Delete(testContext(t), "a"), store.ErrSkewed)
	}
}

// testMissing also simulates a web server that is not a store and does not have the requested path.
func (d Protocol) testMissing(t *testing.T) {
	assertFailure(t, d.open(t, func(w http.ResponseWriter, _ *http.Request) { d.WriteError(w, d.NoBucket) }), store.ErrNoBucket)
	assertFailure(t, d.open(t, http.NotFound), store.ErrNoBucket)
}

func (d Protocol) testUnreachable(t *testing.T) {
	s := d.Open(t, &url.URL{Scheme: "http", Host: "127.0.0.1:1"})
	assertFailure(t, s, store.ErrUnavailable)
	assert.Equal(t, store.ErrUnavailable, store.FailureOf(s.Delete(testContext(t), "a")))
}

func (d Protocol) testPages(t *testing.T) {
	for name, fail := range map[string]func(w http.ResponseWriter){
		"denied":          func(w http.ResponseWriter) { d.WriteError(w, d.Denied) },
		"unavailable":     func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) },
		"connection lost": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"a web page":      func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<html></html>") },
		"another service": func(w http.ResponseWriter) { _, _ = io.WriteString(w, "{}") },
	} {
		var pages atomic.Int32
		s := d.open(t, func(w http.ResponseWriter, _ *http.Request) {
			if pages.Add(1) > 1 {
				fail(w)
				return
			}
			_, _ = io.WriteString(w, d.Page)
		})
		var found []string
		var last error
		for object, err := range s.List(testContext(t), "", "") {
			if last = err; err == nil {
				found = append(found, object.Name)
			}
		}
		assert.Equal(t, []string{"a"}, found, name)
		assert.Error(t, last, name)
	}
}

// Proxy is a faulty proxy between a store and its server.
type Proxy struct {
	Endpoint *url.URL // URL at which the server is reachable through the proxy
	forward  *httputil.ReverseProxy
	closing  chan struct{} // closed when the test ends

	mu     sync.Mutex
	faults Faults
}

// Faults describes the faults that a proxy injects. The zero value injects none.
type Faults struct {
	LostReplies   int // number of replies to successful creations to discard
	UploadLimit   int // close the connection after this many request bytes; 0 means unlimited
	DownloadLimit int // close the connection after this many response bytes; 0 means unlimited
	Status        int // HTTP status to return for every request; 0 to forward requests
	Delay         time.Duration
}

// NewProxy starts a proxy that is closed when the test ends.
func NewProxy(t *testing.T, server *url.URL) *Proxy {
	t.Helper()
	p := &Proxy{closing: make(chan struct{})}
	p.forward = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = server.Scheme, server.Host
			r.Out.Host = r.In.Host // keep the host, because the signature covers it
		},
		ModifyResponse: p.modify,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:       log.New(io.Discard, "", 0),
	}
	listener := httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(listener.Close)
	t.Cleanup(func() { close(p.closing) }) // must run before the server is closed, because handlers may be waiting
	p.Endpoint = new(*server)
	p.Endpoint.Host = listener.Listener.Addr().String()
	return p
}

// Inject replaces the faults.
func (p *Proxy) Inject(faults Faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = faults
}

// Faults returns the faults that remain: LostReplies decreases with each discarded reply.
func (p *Proxy) Faults() Faults {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	faults := p.Faults()
	if faults.UploadLimit > 0 && r.ContentLength > int64(faults.UploadLimit) {
		r.Body = cut(r.Body, faults.UploadLimit)
	}
	if faults.Delay > 0 {
		select {
		case <-time.After(faults.Delay):
		case <-p.closing:
		}
	}
	if faults.Status != 0 {
		w.WriteHeader(faults.Status)
		return
	}
	p.forward.ServeHTTP(w, r)
}

var errCut = errors.New("cut off")

func (p *Proxy) modify(response *http.Response) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.faults.DownloadLimit > 0 && response.Request.Method == http.MethodGet {
		response.Body = cut(response.Body, p.faults.DownloadLimit)
	}
	if p.faults.LostReplies == 0 || !isCreate(response.Request) || response.StatusCode >= http.StatusMultipleChoices {
		return nil
	}
	p.faults.LostReplies--
	_, _ = io.Copy(io.Discard, response.Body)
	return errCut
}

// isCreate reports whether a request makes an object visible in one of the protocols.
func isCreate(r *http.Request) bool {
	return r.Header.Get("If-None-Match") == "*" || r.Header.Get("X-Goog-Hash") != ""
}

func cut(body io.ReadCloser, limit int) io.ReadCloser {
	fail := Broken(func() error { return errCut })
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(io.LimitReader(body, int64(limit)), fail), body}
}
