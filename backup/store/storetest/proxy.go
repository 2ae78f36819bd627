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
	Endpoint *url.URL // of the server, through the proxy
	forward  *httputil.ReverseProxy
	closing  chan struct{} // closed when the test ends

	mu     sync.Mutex
	faults Faults
}

// Faults are the faults of a proxy. Those with the zero value do not occur.
type Faults struct {
	LostReplies   int // number of replies to lose to requests that created an object
	UploadLimit   int // bytes of a request after which the connection is lost
	DownloadLimit int // the same of a response
	Status        int // HTTP status of all responses
	Delay         time.Duration
}

// NewProxy starts a proxy that ends with the test.
func NewProxy(t *testing.T, server *url.URL) *Proxy {
	t.Helper()
	p := &Proxy{closing: make(chan struct{})}
	p.forward = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = server.Scheme, server.Host
			r.Out.Host = r.In.Host // it is a part of signatures
		},
		ModifyResponse: p.modify,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:       log.New(io.Discard, "", 0),
	}
	listener := httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(listener.Close)
	t.Cleanup(func() { close(p.closing) }) // before the server is closed, so that no handler waits
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

// Faults returns the faults that are left.
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
