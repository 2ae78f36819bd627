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
	rotating := &rotating{caPath: options.CAPath}
	if _, err := rotating.transport(); err != nil {
		return nil, err
	}
	return &impatient{next: rotating, patience: options.Patience}, nil
}

// NewClient returns a client that does not follow redirects, so that credentials stay with the store.
func NewClient(transport http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// rotating replaces its transport when the CA bundle changes.
type rotating struct {
	caPath string

	mu      sync.Mutex
	stamp   Stamp
	current *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (r *rotating) RoundTrip(request *http.Request) (*http.Response, error) {
	transport, err := r.transport()
	if err != nil {
		return nil, err
	}
	return transport.RoundTrip(request)
}

func (r *rotating) transport() (*http.Transport, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stamp := StampOf(r.caPath)
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

// Stamp changes when a file does. The zero value is the stamp of a file that is not there.
type Stamp struct {
	Modified time.Time
	Size     int64
}

// StampOf looks at a file.
func StampOf(path string) Stamp {
	info, err := os.Stat(path)
	if err != nil {
		return Stamp{}
	}
	return Stamp{Modified: info.ModTime(), Size: info.Size()}
}

// progress is how much has to move within the patience: a server that sends a byte now and then hangs, too.
const progress = 16 << 10 // bytes

var errStalled = errors.New("nothing moved")

const (
	// small is an object that a server has nothing to put together for, in bytes.
	small = 64 << 10
	// brief is the patience for creating one.
	brief = 10 * time.Second
)

type wholeKey struct{}

// Whole returns a context for the request that creates an object of so many bytes at once. A small one that hangs is given up soon, and
// may be asked for again: an object is created only if there is none, so the one that hung does no harm.
func Whole(ctx context.Context, size int) context.Context {
	if size > small {
		return ctx
	}
	return context.WithValue(ctx, wholeKey{}, true)
}

// patienceFor is how long a request may not get on.
func (i *impatient) patienceFor(ctx context.Context) time.Duration {
	if ctx.Value(wholeKey{}) == nil {
		return i.patience
	}
	return min(i.patience, brief)
}

// impatient ends a request when neither its body, nor the answer, nor the answer's body got on for as long as its patience.
// Its errors are those of the caller's context, or ErrUnavailable.
type impatient struct {
	next     http.RoundTripper
	patience time.Duration
}

// RoundTrip implements http.RoundTripper.
func (i *impatient) RoundTrip(request *http.Request) (*http.Response, error) {
	if err := noted(request.Context()); err != nil {
		closeBody(request)
		return nil, err
	}
	watch := newWatch(request.Context(), i.patienceFor(request.Context()))
	response, err := i.next.RoundTrip(watch.over(request))
	if err != nil {
		defer watch.end()
		err = watch.explain(err)
		noteFailure(request.Context(), err)
		return nil, err
	}
	watch.count(progress)
	watch.pause()
	noteAnswer(request.Context(), response)
	response.Body = &answerBody{ReadCloser: response.Body, watch: watch}
	return response, nil
}

// closeBody is what a RoundTripper owes a request that it does not send.
func closeBody(request *http.Request) {
	if request.Body != nil {
		_ = request.Body.Close()
	}
}

// watch cancels a request that does not get on. Its clock runs only while the store is waited for: not while whoever reads
// an answer's body does something else between two reads.
type watch struct {
	caller   context.Context
	own      context.Context
	cancel   context.CancelCauseFunc
	patience time.Duration

	mu      sync.Mutex
	timer   *time.Timer
	started time.Time     // when the clock was last set going
	left    time.Duration // of the patience, at that time
	moved   int           // bytes since the patience began anew
	running bool
}

func newWatch(caller context.Context, patience time.Duration) *watch {
	w := &watch{caller: caller, patience: patience, started: time.Now(), left: patience, running: true}
	w.own, w.cancel = context.WithCancelCause(caller)
	w.timer = time.AfterFunc(patience, func() { w.cancel(errStalled) })
	return w
}

// over returns the request under the watch's context, with a body that tells the watch.
func (w *watch) over(request *http.Request) *http.Request {
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

// count notes that n bytes moved. Enough of them begin the patience anew.
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

// explain makes an error of the connection ours.
func (w *watch) explain(err error) error {
	switch {
	case w.caller.Err() != nil:
		return context.Cause(w.caller)
	case errors.Is(context.Cause(w.own), errStalled):
		return &store.Unavailable{Cause: fmt.Errorf("%w for %s", errStalled, w.patience)}
	default:
		return &store.Unavailable{Cause: describe(err)}
	}
}

// requestBody tells the watch how fast it is sent.
type requestBody struct {
	io.ReadCloser
	watch *watch
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.watch.count(n)
	return n, err
}

// answerBody tells the watch how fast it arrives.
type answerBody struct {
	io.ReadCloser
	watch *watch
}

func (b *answerBody) Read(p []byte) (int, error) {
	b.watch.resume()
	n, err := b.ReadCloser.Read(p)
	b.watch.count(n)
	b.watch.pause()
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.watch.explain(err)
	}
	return n, err
}

func (b *answerBody) Close() error {
	defer b.watch.end()
	return b.ReadCloser.Close()
}
