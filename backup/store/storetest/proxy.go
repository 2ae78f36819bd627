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
	URL *url.URL // where it listens

	server  *url.URL
	forward *httputil.ReverseProxy
	closing chan struct{} // closed when the test ends

	mu        sync.Mutex
	lose      int // number of replies to creating requests to lose
	uploads   int // bytes after which requests are cut off; 0 means never
	downloads int // the same of replies
	refuse    int // HTTP status of all replies; 0 means that requests are let through
	delay     time.Duration
	requests  Requests
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
		ModifyResponse: p.answer,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:       log.New(io.Discard, "", 0),
	}
	listener := httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(listener.Close)
	t.Cleanup(func() { close(p.closing) }) // before the server is closed, so that no handler waits
	p.URL, _ = url.Parse(listener.URL)
	return p
}

// To sets the server and returns the endpoint of the proxy.
func (p *Proxy) To(server *url.URL) *url.URL {
	p.server = server
	endpoint := *server
	endpoint.Scheme, endpoint.Host = p.URL.Scheme, p.URL.Host
	return &endpoint
}

// LoseReply loses the next replies to requests that created an object.
func (p *Proxy) LoseReply(times int) { p.set(func() { p.lose = times }) }

// Left returns the number of replies still to be lost.
func (p *Proxy) Left() (left int) {
	p.set(func() { left = p.lose })
	return left
}

// CutUploads loses connections after so many bytes of a request.
func (p *Proxy) CutUploads(bytes int) { p.set(func() { p.uploads = bytes }) }

// CutDownloads loses connections after so many bytes of a reply.
func (p *Proxy) CutDownloads(bytes int) { p.set(func() { p.downloads = bytes }) }

// Refuse answers everything with an HTTP status.
func (p *Proxy) Refuse(status int) { p.set(func() { p.refuse = status }) }

// Delay makes every request wait.
func (p *Proxy) Delay(each time.Duration) { p.set(func() { p.delay = each }) }

// Heal ends all faults.
func (p *Proxy) Heal() {
	p.set(func() { p.lose, p.uploads, p.downloads, p.refuse, p.delay = 0, 0, 0, 0, 0 })
}

// Requests returns the number of requests so far.
func (p *Proxy) Requests() (all Requests) {
	p.set(func() { all = p.requests })
	return all
}

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	var refuse int
	var delay time.Duration
	p.set(func() {
		refuse, delay = p.refuse, p.delay
		p.requests.count(r)
		if p.uploads > 0 && r.ContentLength > int64(p.uploads) {
			r.Body = cut(r.Body, p.uploads)
		}
	})
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-p.closing:
		}
	}
	if refuse != 0 {
		w.WriteHeader(refuse)
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

func (p *Proxy) answer(response *http.Response) (err error) {
	p.set(func() {
		if p.lose > 0 && creates(response.Request) && response.StatusCode < http.StatusMultipleChoices {
			p.lose--
			_, err = io.Copy(io.Discard, response.Body)
			err = errors.Join(errCut, err)
		}
		if p.downloads > 0 && response.Request.Method == http.MethodGet {
			response.Body = cut(response.Body, p.downloads)
		}
	})
	return err
}

// creates reports whether a request makes an object visible, in any of the protocols.
func creates(r *http.Request) bool {
	return r.Header.Get("If-None-Match") == "*" || r.Header.Get("X-Goog-Hash") != "" ||
		r.URL.Query().Get("uploadType") == "multipart"
}

var errCut = errors.New("cut off")

func cut(body io.ReadCloser, after int) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(io.LimitReader(body, int64(after)), failing{errCut}), body}
}
