// Package wire contains what the stores that use HTTP share: connections that fail when they stall, a CA bundle that may
// rotate, the translation of responses into errors of package store, repeated requests, and uploads in pieces. The stores s3, gcs
// and azblob call it.
package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/internal/disk"
)

const (
	dialDeadline = 10 * time.Second // for the TCP connection, and again for the TLS handshake
	// patience limits how long a request may stall. Servers take seconds to assemble a large object, and send nothing meanwhile.
	patience = time.Minute
)

// Options are the settings of connections in the URL of a store.
type Options struct {
	CAPath   string        // PEM bundle that replaces the system's; read again when it changes
	Patience time.Duration // how long a request may stall; 0 means a minute
}

// NewTransport returns a transport. It does not connect yet; the error describes a problem with the CA bundle.
func NewTransport(options Options) (http.RoundTripper, error) {
	if options.Patience == 0 {
		options.Patience = patience
	}
	rotating := &reloadingTransport{caPath: options.CAPath}
	if _, err := rotating.transport(); err != nil {
		return nil, err
	}
	return &stallDetector{next: rotating, patience: options.Patience}, nil
}

// NewClient returns a client that does not follow redirects, so that credentials stay with the store.
func NewClient(transport http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// reloadingTransport replaces its transport when the CA bundle changes.
type reloadingTransport struct {
	caPath string

	mu      sync.Mutex
	stamp   stamp
	current *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (r *reloadingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	transport, err := r.transport()
	if err != nil {
		return nil, err
	}
	return transport.RoundTrip(request)
}

func (r *reloadingTransport) transport() (*http.Transport, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stamp := stampOf(r.caPath)
	if r.current != nil && stamp == r.stamp {
		return r.current, nil
	}
	roots, err := loadCA(r.caPath)
	if err != nil {
		return nil, err
	}
	if r.current != nil {
		r.current.CloseIdleConnections()
	}
	r.current, r.stamp = newTransport(roots), stamp
	return r.current, nil
}

func newTransport(roots *x509.CertPool) *http.Transport {
	transport := &http.Transport{
		Proxy:                  proxy,
		DialContext:            (&net.Dialer{Timeout: dialDeadline}).DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    dialDeadline,
		MaxIdleConnsPerHost:    4,
		IdleConnTimeout:        patience,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true, // bytes must arrive as they were stored
		Protocols:              new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(true) // a hanging connection then blocks one request only
	return transport
}

// proxy returns the proxy of the environment. Link-local addresses, where a machine learns its identity, are never proxied.
func proxy(request *http.Request) (*url.URL, error) {
	if net.ParseIP(request.URL.Hostname()).IsLinkLocalUnicast() {
		return nil, nil
	}
	return http.ProxyFromEnvironment(request)
}

// maxBundle limits a CA bundle, in bytes. Those of whole operating systems have a quarter of it.
const maxBundle = 1 << 20

// loadCA returns the roots of a bundle, or nil for the system's.
func loadCA(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	bundle, err := disk.Read(path, maxBundle)
	if err != nil {
		return nil, &bundleError{fmt.Sprintf("cannot read CA bundle %s: %v", path, err)}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return nil, &bundleError{fmt.Sprintf("CA bundle %s holds no certificate", path)}
	}
	return pool, nil
}

// bundleError is a problem with a CA bundle.
type bundleError struct{ text string }

func (e *bundleError) Error() string { return e.text }

// stamp changes when a file changes. The zero value stands for a missing file.
type stamp struct {
	Modified time.Time
	Size     int64
}

// stampOf returns the current stamp of a file.
func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}
	}
	return stamp{Modified: info.ModTime(), Size: info.Size()}
}

// progress is the number of bytes that must move within the patience: a server that trickles bytes hangs, too.
const progress = 16 << 10 // bytes

var errStalled = errors.New("no data was transferred")

const (
	// small is the size of an object that a server need not assemble, in bytes.
	small = 64 << 10
	// brief limits the creation of a small object.
	brief = 10 * time.Second
)

type sizeKey struct{}

// withObjectSize returns a context for the request that creates an object of this size. A small one that stalls fails soon and may be repeated:
// an object is only created if it does not exist, so the stalled request does no harm.
func withObjectSize(ctx context.Context, size int) context.Context {
	if size > small {
		return ctx
	}
	return context.WithValue(ctx, sizeKey{}, true)
}

// patienceFor returns how long a request may stall.
func (i *stallDetector) patienceFor(ctx context.Context) time.Duration {
	if ctx.Value(sizeKey{}) == nil {
		return i.patience
	}
	return min(i.patience, brief)
}

// stallDetector cancels a request that stalls: neither its body, nor the response, nor the response's body makes progress within the
// patience. Its errors are those of the caller's context, or ErrUnavailable.
type stallDetector struct {
	next     http.RoundTripper
	patience time.Duration
}

// RoundTrip implements http.RoundTripper.
func (i *stallDetector) RoundTrip(request *http.Request) (*http.Response, error) {
	watch := newWatch(request.Context(), i.patienceFor(request.Context()))
	response, err := i.next.RoundTrip(watch.wrapRequest(request))
	if err != nil {
		defer watch.end()
		return nil, watch.translate(err)
	}
	watch.count(progress)
	watch.pause()
	response.Body = &responseBody{ReadCloser: response.Body, watch: watch}
	return response, nil
}

// watch cancels a request that stalls. Its clock only runs while the server has to act, not while the caller does something else
// between two reads of the body.
type watch struct {
	caller   context.Context
	own      context.Context
	cancel   context.CancelCauseFunc
	patience time.Duration

	mu      sync.Mutex
	timer   *time.Timer
	started time.Time     // when the clock was last started
	left    time.Duration // remaining patience at that time
	moved   int           // bytes since the patience was last reset
	running bool
}

func newWatch(caller context.Context, patience time.Duration) *watch {
	w := &watch{caller: caller, patience: patience, started: time.Now(), left: patience, running: true}
	w.own, w.cancel = context.WithCancelCause(caller)
	w.timer = time.AfterFunc(patience, func() { w.cancel(errStalled) })
	return w
}

// wrapRequest returns the request with the watch's context, and with a body that reports its progress.
func (w *watch) wrapRequest(request *http.Request) *http.Request {
	request = request.Clone(w.own)
	if request.Body == nil || request.Body == http.NoBody {
		return request
	}
	request.Body = &requestBody{ReadCloser: request.Body, watch: w}
	if again := request.GetBody; again != nil {
		request.GetBody = func() (io.ReadCloser, error) {
			body, err := again()
			return &requestBody{ReadCloser: body, watch: w}, err
		}
	}
	return request
}

func (w *watch) resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.started, w.running = time.Now(), true
	w.timer.Reset(w.left)
}

func (w *watch) pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
	w.left -= time.Since(w.started)
	w.running = false
}

// count adds moved bytes. Enough of them reset the patience.
func (w *watch) count(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.moved += n; w.moved < progress || !w.running {
		return
	}
	w.moved, w.left, w.started = 0, w.patience, time.Now()
	w.timer.Reset(w.patience)
}

func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
	w.running = false
	w.cancel(context.Canceled)
}

// translate translates a connection error.
func (w *watch) translate(err error) error {
	switch {
	case w.caller.Err() != nil:
		return context.Cause(w.caller)
	case errors.Is(context.Cause(w.own), errStalled):
		return &store.Unavailable{Cause: fmt.Errorf("%w for %s", errStalled, w.patience)}
	default:
		return &store.Unavailable{Cause: describe(err)}
	}
}

// requestBody reports the progress of sending.
type requestBody struct {
	io.ReadCloser
	watch *watch
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.watch.count(n)
	return n, err
}

// responseBody reports the progress of receiving.
type responseBody struct {
	io.ReadCloser
	watch *watch
}

func (b *responseBody) Read(p []byte) (int, error) {
	b.watch.resume()
	n, err := b.ReadCloser.Read(p)
	b.watch.count(n)
	b.watch.pause()
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.watch.translate(err)
	}
	return n, err
}

func (b *responseBody) Close() error {
	defer b.watch.end()
	return b.ReadCloser.Close()
}
