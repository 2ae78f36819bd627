package storetest

import (
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
	"time"
)

// Proxy is a faulty proxy between a store and its server.
type Proxy struct {
	url     *url.URL // where it listens
	server  *url.URL
	forward *httputil.ReverseProxy
	closing chan struct{} // closed when the test ends

	mu       sync.Mutex
	faults   Faults
	requests Requests
}

// Faults are the faults of a proxy. Those with the zero value do not occur.
type Faults struct {
	LostReplies   int // number of replies to lose to requests that created an object
	UploadLimit   int // bytes of a request after which the connection is lost
	DownloadLimit int // the same of a response
	Status        int // HTTP status of all responses
	Delay         time.Duration
}

// Requests counts the requests to an S3 server by price.
type Requests struct {
	Writes int // puts, parts of uploads, and listings
	Reads  int
}

// NewProxy starts a proxy that ends with the test. To must be called before it is used.
func NewProxy(t *testing.T) *Proxy {
	p := &Proxy{closing: make(chan struct{})}
	p.forward = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = p.server.Scheme, p.server.Host
			r.Out.Host = r.In.Host // it is a part of signatures
		},
		ModifyResponse: p.modify,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:       log.New(io.Discard, "", 0),
	}
	listener := httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(listener.Close)
	t.Cleanup(func() { close(p.closing) }) // before the server is closed, so that no handler waits
	p.url, _ = url.Parse(listener.URL)
	return p
}

// To sets the server and returns the endpoint of the proxy.
func (p *Proxy) To(server *url.URL) *url.URL {
	p.server = server
	endpoint := *server
	endpoint.Scheme, endpoint.Host = p.url.Scheme, p.url.Host
	return &endpoint
}

// Inject replaces the faults.
func (p *Proxy) Inject(faults Faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = faults
}

// Faults returns the faults that are left.
func (p *Proxy) Faults() Faults {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

// Requests returns the number of requests so far.
func (p *Proxy) Requests() Requests {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.requests.count(r)
	faults := p.faults
	p.mu.Unlock()
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

// count follows S3's prices; deletions are free.
func (all *Requests) count(r *http.Request) {
	switch {
	case r.Method == http.MethodDelete:
	case r.Method == http.MethodPut, r.Method == http.MethodPost, r.URL.Query().Has("list-type"), r.URL.Query().Has("uploads"):
		all.Writes++
	default:
		all.Reads++
	}
}

var errCut = errors.New("cut off")

func (p *Proxy) modify(response *http.Response) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.faults.DownloadLimit > 0 && response.Request.Method == http.MethodGet {
		response.Body = cut(response.Body, p.faults.DownloadLimit)
	}
	if p.faults.LostReplies == 0 || !creates(response.Request) || response.StatusCode >= http.StatusMultipleChoices {
		return nil
	}
	p.faults.LostReplies--
	_, _ = io.Copy(io.Discard, response.Body)
	return errCut
}

// creates reports whether a request makes an object visible, in any of the protocols.
func creates(r *http.Request) bool {
	return r.Header.Get("If-None-Match") == "*" || r.Header.Get("X-Goog-Hash") != ""
}

func cut(body io.ReadCloser, limit int) io.ReadCloser {
	fail := Broken(func() error { return errCut })
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(io.LimitReader(body, int64(limit)), fail), body}
}
