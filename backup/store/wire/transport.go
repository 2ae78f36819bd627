// Package wire contains the code shared by the HTTP-based stores s3, gcs and azblob: connections that fail when
// they stall, a CA bundle that may rotate, the translation of responses into errors of package store, retries, and
// uploads in pieces.
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
	dialDeadline = 10 * time.Second // for the TCP connection, and separately for the TLS handshake
	// patience limits the time for which a request may stall. Servers may take seconds to assemble a large object
	// without sending anything.
	patience = time.Minute
)

// NewClient returns a client that does not follow redirects, so that credentials stay with the store. Unless caPath
// is empty, it is the path of a PEM bundle that replaces the system's CAs and is reread when it changes. NewClient
// does not connect; its error describes a problem with the bundle.
func NewClient(caPath string) (*http.Client, error) {
	rotating := &reloadingTransport{caPath: caPath}
	if _, err := rotating.transport(); err != nil {
		return nil, err
	}
	return withoutRedirects(&stallDetector{next: rotating, patience: patience}), nil
}

func withoutRedirects(transport http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// IdentityClient returns a client for credential servers, to which a store's CA bundle does not apply.
func IdentityClient() *http.Client {
	client, _ := NewClient("") // an error is only possible with a CA bundle
	return client
}

// reloadingTransport replaces its transport when the CA bundle changes.
type reloadingTransport struct {
	caPath string

	mu      sync.Mutex
	stamp   string
	current *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (r *reloadingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	transport, err := r.transport()
	if err != nil {
		return nil, &store.Unavailable{Cause: err}
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
	var roots *x509.CertPool // nil uses the system's pool
	if r.caPath != "" {
		var err error
		if roots, err = disk.ReadRoots(r.caPath); err != nil {
			return nil, err
		}
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
		DisableCompression:     true, // the content must arrive unmodified
		Protocols:              new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(true) // HTTP/1 limits the effect of a hanging connection to one request
	return transport
}

// proxy returns the proxy from the environment. Requests to link-local addresses, from which a machine obtains its
// identity, are never proxied.
func proxy(request *http.Request) (*url.URL, error) {
	if net.ParseIP(request.URL.Hostname()).IsLinkLocalUnicast() {
		return nil, nil
	}
	return http.ProxyFromEnvironment(request)
}

// stampOf returns a string that changes when the file changes. It is empty for a missing file.
func stampOf(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return fmt.Sprint(info.ModTime(), info.Size())
}

// progress is the number of bytes that must be transferred within patience, because a server that only trickles
// bytes also counts as hanging.
const progress = 16 << 10 // bytes

var errStalled = errors.New("no data was transferred")

const (
	// small is the maximum size, in bytes, of an object that a server need not assemble.
	small = 64 << 10
	// brief limits the time to create a small object.
	brief = 10 * time.Second
)

type sizeKey struct{}

// withObjectSize returns a context for the request that creates an object of this size. A stalled request for a
// small object fails soon and may be retried: an object is created only if it does not exist, so the stalled
// request does no harm.
func withObjectSize(ctx context.Context, size int) context.Context {
	if size > small {
		return ctx
	}
	return context.WithValue(ctx, sizeKey{}, true)
}

// patienceFor returns the time for which a request may stall.
func (d *stallDetector) patienceFor(ctx context.Context) time.Duration {
	if ctx.Value(sizeKey{}) == nil {
		return d.patience
	}
	return min(d.patience, brief)
}

// stallDetector cancels a request that stalls, which means that neither its body, nor the response, nor the
// response body makes progress within patience. It returns the errors of the caller's context or ErrUnavailable.
type stallDetector struct {
	next     http.RoundTripper
	patience time.Duration
}

// RoundTrip implements http.RoundTripper.
func (d *stallDetector) RoundTrip(request *http.Request) (*http.Response, error) {
	t := newTransfer(request.Context(), d.patienceFor(request.Context()))
	request = request.Clone(t.own)
	if request.Body != nil && request.Body != http.NoBody {
		request.Body = &requestBody{request.Body, t}
		if again := request.GetBody; again != nil {
			request.GetBody = func() (io.ReadCloser, error) {
				body, err := again()
				return &requestBody{body, t}, err
			}
		}
	}
	response, err := d.next.RoundTrip(request)
	t.count(progress)
	t.setRunning(false)
	if err != nil {
		defer t.cancel(context.Canceled)
		return nil, t.translate(err)
	}
	response.Body = &responseBody{response.Body, t}
	return response, nil
}

// transfer is a request in progress. Its clock runs only while the server must act, not while the caller is busy
// between two reads of the response.
type transfer struct {
	caller   context.Context
	own      context.Context
	cancel   context.CancelCauseFunc
	patience time.Duration

	mu      sync.Mutex
	timer   *time.Timer
	running bool
	started time.Time     // when the clock was last started
	left    time.Duration // remaining patience at that time
	moved   int           // bytes transferred since the patience was last reset
}

func newTransfer(caller context.Context, patience time.Duration) *transfer {
	t := &transfer{caller: caller, patience: patience, running: true, started: time.Now(), left: patience}
	t.own, t.cancel = context.WithCancelCause(caller)
	t.timer = time.AfterFunc(patience, func() { t.cancel(errStalled) })
	return t
}

// setRunning starts or stops the clock.
func (t *transfer) setRunning(running bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if running {
		t.started = time.Now()
		t.timer.Reset(t.left)
	} else {
		t.timer.Stop()
		t.left -= time.Since(t.started)
	}
	t.running = running
}

// count adds transferred bytes. If there are enough of them, the patience is reset.
func (t *transfer) count(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.moved += n; t.moved >= progress && t.running {
		t.moved, t.left, t.started = 0, t.patience, time.Now()
		t.timer.Reset(t.patience)
	}
}

// translate translates a connection error.
func (t *transfer) translate(err error) error {
	switch {
	case t.caller.Err() != nil:
		return context.Cause(t.caller)
	case errors.Is(context.Cause(t.own), errStalled):
		return &store.Unavailable{Cause: fmt.Errorf("%w for %s", errStalled, t.patience)}
	default:
		return &store.Unavailable{Cause: describe(err)}
	}
}

// requestBody reports the progress of sending.
type requestBody struct {
	io.ReadCloser
	transfer *transfer
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.transfer.count(n)
	return n, err
}

// responseBody reports the progress of receiving.
type responseBody struct {
	io.ReadCloser
	transfer *transfer
}

func (b *responseBody) Read(p []byte) (int, error) {
	b.transfer.setRunning(true)
	n, err := b.ReadCloser.Read(p)
	b.transfer.count(n)
	b.transfer.setRunning(false)
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.transfer.translate(err)
	}
	return n, err
}

func (b *responseBody) Close() error {
	defer b.transfer.cancel(context.Canceled)
	return b.ReadCloser.Close()
}
