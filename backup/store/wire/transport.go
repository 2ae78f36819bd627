// Package wire is what the stores that speak HTTP have in common: connections that give up when nothing moves, a CA bundle
// that may rotate, answers turned into the errors of package store, requests that are repeated, and uploads in pieces.
package wire

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"etcd-wrapper/internal/smallfile"
)

const (
	dialDeadline = 10 * time.Second // for the TCP connection and, again, the TLS handshake
	// patience is how long a request goes on while nothing moves. Servers take seconds to put the pieces of a large object
	// together, and say nothing meanwhile.
	patience = time.Minute
)

// Options are what a URL can say about connections.
type Options struct {
	CAPath   string        // PEM bundle to trust instead of the system's; read again when it changes. Empty: the system's
	Patience time.Duration // how long nothing may move; 0 means a minute
}

// NewTransport returns the way to a store. It connects to nothing yet; the error says what is wrong with the CA bundle.
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

// NewClient returns a client that takes an answer from the store itself only, never from where it redirects to.
func NewClient(transport http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// rotating uses a new transport whenever the CA bundle has changed.
type rotating struct {
	caPath string

	mu      sync.Mutex
	stamp   Stamp
	current *http.Transport
}

// RoundTrip is http.RoundTripper's.
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
		DisableCompression:     true, // bytes are to arrive as they were stored
		Protocols:              new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(true) // one connection that hangs then holds up one request
	return transport
}

// proxy is the environment's. Link-local addresses are where a machine tells of itself: another one's word is not wanted.
func proxy(request *http.Request) (*url.URL, error) {
	if net.ParseIP(request.URL.Hostname()).IsLinkLocalUnicast() {
		return nil, nil
	}
	return http.ProxyFromEnvironment(request)
}

// maxBundle is the size of the largest CA bundle in bytes. Those of whole operating systems have a quarter of it.
const maxBundle = 1 << 20

// loadCA returns nil, the system's roots, if there is no path.
func loadCA(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	bundle, err := smallfile.Read(path, maxBundle)
	if err != nil {
		return nil, &bundleError{fmt.Sprintf("cannot read CA bundle %s: %v", path, err)}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return nil, &bundleError{fmt.Sprintf("CA bundle %s holds no certificate", path)}
	}
	return pool, nil
}

// bundleError says what is wrong with a CA bundle.
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
