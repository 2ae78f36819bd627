// Package wire contains the code that the HTTP stores s3, gcs and azblob share: connections that fail when they
// stall, CA bundles that may change, translation of responses to store errors, retries, and uploads in pieces.
package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"golang.org/x/oauth2"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/internal/disk"
)

const (
	dialDeadline = 10 * time.Second // applies separately to the TCP connection and the TLS handshake
	// stallTimeout is the time within which a request must make progress. A server may need several seconds to
	// assemble a large object before it responds.
	stallTimeout = time.Minute
)

// NewClient returns a client that does not follow redirects, so that other hosts never receive the credentials. If
// caPath is not empty, the client trusts the CAs in the PEM bundle at caPath instead of the system's CAs, and reads
// the bundle again when it changes. NewClient does not connect, and only returns an error if there is a problem with
// the bundle.
func NewClient(caPath string) (*http.Client, error) {
	rotating := &reloadingTransport{caPath: caPath}
	if _, err := rotating.transport(); err != nil {
		return nil, err
	}
	return withoutRedirects(&stallDetector{next: rotating, timeout: stallTimeout}), nil
}

func withoutRedirects(transport http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// IdentityClient returns a client for credential servers. The client does not use the store's CA bundle.
func IdentityClient() *http.Client {
	client, _ := NewClient("") // cannot fail without a CA bundle
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
	var roots *x509.CertPool // nil means the system's pool
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
		IdleConnTimeout:        stallTimeout,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true, // content must be transferred unchanged
		Protocols:              new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(true) // with HTTP/1, a hung connection affects only one request
	return transport
}

// proxy returns the proxy from the environment. Requests to link-local addresses are never proxied, because they
// are meant for the machine's metadata server.
func proxy(request *http.Request) (*url.URL, error) {
	if net.ParseIP(request.URL.Hostname()).IsLinkLocalUnicast() {
		return nil, nil
	}
	return http.ProxyFromEnvironment(request)
}

// stampOf returns a string that changes whenever the file does, or "" if the file does not exist.
func stampOf(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return fmt.Sprint(info.ModTime(), info.Size())
}

// progress is the number of bytes that must be transferred within the timeout. A server that sends only a few bytes
// at a time is therefore considered stalled.
const progress = 16 << 10 // bytes

var errStalled = errors.New("no data was transferred")

const (
	// smallObject is the maximum size in bytes of an object that servers store quickly, because they need not
	// assemble it.
	smallObject = 64 << 10
	// smallStallTimeout replaces stallTimeout for a request that creates a small object.
	smallStallTimeout = 10 * time.Second
)

type sizeKey struct{}

// withObjectSize returns a context for a request that creates an object of the given size. A request for a small
// object fails early if it stalls, so that the caller can retry it. Retries are safe, because objects are only
// created if they do not exist.
func withObjectSize(ctx context.Context, size int) context.Context {
	if size > smallObject {
		return ctx
	}
	return context.WithValue(ctx, sizeKey{}, true)
}

// timeoutFor returns the time within which a request with the given context must make progress.
func (d *stallDetector) timeoutFor(ctx context.Context) time.Duration {
	if ctx.Value(sizeKey{}) == nil {
		return d.timeout
	}
	return min(d.timeout, smallStallTimeout)
}

// stallDetector cancels a request if neither the request body nor the response makes progress within the timeout.
// Errors are the cause of the caller's context if it is done, and otherwise ErrUnavailable.
type stallDetector struct {
	next    http.RoundTripper
	timeout time.Duration
}

// RoundTrip implements http.RoundTripper.
func (d *stallDetector) RoundTrip(request *http.Request) (*http.Response, error) {
	t := newTransfer(request.Context(), d.timeoutFor(request.Context()))
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

// transfer is a request in progress. The clock of a transfer runs while the transfer is waiting for the server, but
// not while the caller pauses between reads of the response.
type transfer struct {
	caller  context.Context
	own     context.Context
	cancel  context.CancelCauseFunc
	timeout time.Duration

	mu      sync.Mutex
	timer   *time.Timer
	running bool
	started time.Time     // time at which the clock was last started
	left    time.Duration // remaining time until the transfer is stalled, at that time
	moved   int           // bytes transferred since the timeout was last reset
}

func newTransfer(caller context.Context, timeout time.Duration) *transfer {
	t := &transfer{caller: caller, timeout: timeout, running: true, started: time.Now(), left: timeout}
	t.own, t.cancel = context.WithCancelCause(caller)
	t.timer = time.AfterFunc(timeout, func() { t.cancel(errStalled) })
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

// count adds transferred bytes and resets the timeout if there has been enough progress.
func (t *transfer) count(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.moved += n; t.moved >= progress && t.running {
		t.moved, t.left, t.started = 0, t.timeout, time.Now()
		t.timer.Reset(t.timeout)
	}
}

// translate converts a connection error to the cause of the caller's context or to an ErrUnavailable.
func (t *transfer) translate(err error) error {
	switch {
	case t.caller.Err() != nil:
		return context.Cause(t.caller)
	case errors.Is(context.Cause(t.own), errStalled):
		return &store.Unavailable{Cause: fmt.Errorf("%w for %s", errStalled, t.timeout)}
	default:
		return &store.Unavailable{Cause: describe(err)}
	}
}

// requestBody counts sent bytes.
type requestBody struct {
	io.ReadCloser
	transfer *transfer
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.transfer.count(n)
	return n, err
}

// responseBody counts received bytes.
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

// tokenDeadline limits how long fetching a token may take, because there may be no server at the machine's link-local
// address.
const tokenDeadline = 20 * time.Second

var errSlow = fmt.Errorf("cannot get an access token: %w", &store.Unavailable{Cause: fmt.Errorf("no response within %s", tokenDeadline)})

// Tokens authorizes requests with access tokens.
type Tokens struct {
	HTTP *http.Client // see IdentityClient
	// Find returns a token source that uses the client in the context. Tokens calls Find for the first request, after
	// a failure, and when File changes.
	Find func(ctx context.Context) (oauth2.TokenSource, error)
	File func() (path string) // returns the path of the credentials file; may be nil

	mu     sync.Mutex
	caller context.Context    // context of the request for which a token is being fetched
	source oauth2.TokenSource // nil if unknown
	stamp  string             // stamp of File when source was found; see stampOf
}

// Authorize adds a token to a request. Concurrent requests wait for the same token.
func (t *Tokens) Authorize(request *http.Request) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(request.Context(), tokenDeadline, errSlow)
	defer cancel()
	t.caller = ctx
	token, err := t.token()
	switch {
	case err == nil:
		token.SetAuthHeader(request)
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		return translateTokenError(err)
	}
}

func (t *Tokens) token() (token *oauth2.Token, err error) {
	current := ""
	if t.File != nil {
		current = stampOf(t.File())
	}
	if t.source == nil || current != t.stamp {
		client := withoutRedirects(tokenTransport{t})
		if t.source, err = t.Find(context.WithValue(context.Background(), oauth2.HTTPClient, client)); err != nil {
			return nil, err
		}
		t.stamp = current
	}
	if token, err = t.source.Token(); err != nil {
		t.source = nil
	}
	return token, err
}

// Expire makes the next request look up credentials again if the status is 401 (unauthorized).
func (t *Tokens) Expire(status int) {
	if status == http.StatusUnauthorized {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.source = nil
	}
}

// tokenTransport stops fetching a token when the request that needs the token is canceled. A token source cannot do
// this, because it uses the same context forever.
type tokenTransport struct{ tokens *Tokens }

// RoundTrip implements http.RoundTripper. RoundTrip runs during Authorize.
func (t tokenTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	return t.tokens.HTTP.Transport.RoundTrip(request.WithContext(t.tokens.caller))
}

// translateTokenError converts an error to a store error that does not contain text from the server.
func translateTokenError(err error) error {
	var (
		refused *oauth2.RetrieveError
		ours    *store.Unavailable
	)
	switch {
	case errors.Is(err, store.ErrDenied):
		return err
	case errors.As(err, &refused) && refused.Response != nil:
		answer := summarize(refused.Response)
		if answer.status == http.StatusBadRequest || answer.status == http.StatusNotFound {
			answer.status = http.StatusUnauthorized // 400: the grant was rejected; 404: the machine has no account
		}
		return fmt.Errorf("cannot get an access token: %w", answer.toError(nil))
	case errors.As(err, &ours):
		return fmt.Errorf("cannot get an access token: %w", ours)
	default:
		return fmt.Errorf("cannot get an access token: %w", &store.Unavailable{})
	}
}

// MachineToken fetches a token for the machine's identity from the metadata server. If there is no metadata server
// and missing is not empty, the error is an ErrDenied with missing as its text.
func MachineToken(request *http.Request, missing string) (*oauth2.Token, error) {
	response, err := oauth2.NewClient(request.Context(), nil).Do(request)
	if err != nil && missing != "" {
		return nil, fmt.Errorf("%s: %w", missing, store.ErrDenied)
	}
	if err != nil {
		return nil, err
	}
	defer Discard(response)
	if response.StatusCode != http.StatusOK {
		return nil, &oauth2.RetrieveError{Response: response}
	}
	var granted struct {
		Token   string      `json:"access_token"`
		Seconds json.Number `json:"expires_in"` // number, or string containing a number
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil {
		return nil, err
	}
	if json.Unmarshal(body, &granted) != nil || granted.Token == "" {
		return nil, &store.Unavailable{Cause: errors.New("the metadata server returned no token")}
	}
	seconds, _ := granted.Seconds.Int64() // if the expiry is zero, each request fetches a new token
	return &oauth2.Token{AccessToken: granted.Token, Expiry: time.Now().Add(time.Duration(seconds) * time.Second)}, nil
}
