package bootstrap

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"etcd-wrapper/exitcode"
	"etcd-wrapper/internal/disk"
)

// InitializationStatus is the status of the data directory's initialization, as reported by the sidecar.
type InitializationStatus string

// Statuses returned by GET /initialization/status in etcd-backup-restore. The sidecar resets the status to New once
// Successful or Failed has been read, so it returns each result only once.
const (
	New        InitializationStatus = "New"        // no initialization was requested, or the last result was already returned
	Progress   InitializationStatus = "Progress"   // an initialization is in progress and may take hours
	Successful InitializationStatus = "Successful" // etcd may open the data directory
	Failed     InitializationStatus = "Failed"     // the initialization ended without a usable data directory
)

// InitializationStatuses lists all statuses in the order in which they occur.
var InitializationStatuses = []InitializationStatus{New, Progress, Successful, Failed}

// Running reports whether an initialization is in progress.
func (s InitializationStatus) Running() bool { return s == Progress }

// Result reports whether the status is the result of an initialization.
func (s InitializationStatus) Result() bool { return s == Successful || s == Failed }

// word matches an unrecognized status that is safe to quote in an error. Any other text may be confidential and is
// not quoted.
var word = regexp.MustCompile(`^[A-Za-z]{1,24}$`)

// ParseInitializationStatus parses a status that may be surrounded by white space. Unrecognized statuses are
// errors, because etcd must never open the data on a guess.
func ParseInitializationStatus(body []byte) (InitializationStatus, error) {
	status := InitializationStatus(bytes.TrimSpace(body))
	switch {
	case slices.Contains(InitializationStatuses, status):
		return status, nil
	case word.MatchString(string(status)):
		return "", fmt.Errorf("unknown initialization status %q", status)
	default:
		return "", fmt.Errorf("unknown initialization status (%d bytes)", len(body))
	}
}

// Mode is the depth of a validation.
type Mode string

// Modes accepted by GET /initialization/start.
const (
	Sanity Mode = "sanity" // after a clean exit: check only the structure
	Full   Mode = "full"   // otherwise: read everything
)

// ModeAfter chooses the validation mode from the exit record. If the record has a note, the data files must still
// match it, because another etcd process may have opened them since. changed compares the files with the note and
// returns an error if they differ. A record without a note is accepted as is. ModeAfter also returns the reason for
// the choice.
func ModeAfter(record *exitcode.Record, changed func(note []byte) error) (mode Mode, reason string) {
	word, err := record.Read()
	if err != nil {
		return Full, err.Error()
	}
	note, err := record.Note()
	if err == nil {
		err = changed(note)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return Full, "the data may have changed since the exit record was written: " + err.Error()
	}
	return Sanity, "etcd was last closed cleanly on this volume (" + string(word) + ")"
}

// Deadlines for a call to the sidecar, including connecting and reading the whole response.
const (
	// StatusDeadline is generous because the sidecar returns a result only once: if the response is lost, the
	// initialization must be repeated.
	StatusDeadline = 15 * time.Second
	// TriggerDeadline is short because the sidecar responds immediately and initializes in the background.
	TriggerDeadline = 10 * time.Second
	// ConfigDeadline allows for the 7 s that the sidecar spends on listing the members while etcd is down.
	ConfigDeadline = 60 * time.Second
	// dialDeadline limits the TCP connection and, separately, the TLS handshake.
	dialDeadline = 5 * time.Second
)

// Size limits for responses, in bytes.
const (
	maxStatusBody = 256
	maxConfigBody = 1 << 20
)

// ClientOptions configures the connection to the sidecar.
type ClientOptions struct {
	HostPort string // <host>:<port>; an empty host means localhost
	TLS      bool
	CAPath   string // CA bundle in PEM format; read again for each connection to support rotation
}

// Client calls the HTTP API of etcd-backup-restore. A Client is safe for concurrent use.
//
// Each call uses a new HTTP/1.1 connection. The Go transport retries a GET request on a reused connection if there is
// no response, and a result would be lost if the status were read twice.
type Client struct {
	base url.URL
	http *http.Client
}

// NewClient validates the options and returns a client without connecting. Errors name the flag.
func NewClient(options ClientOptions) (*Client, error) {
	host, port, err := splitHostPort(options.HostPort)
	if err != nil {
		return nil, fmt.Errorf("--backup-restore-host-port: %w", err)
	}
	transport := &http.Transport{
		DisableKeepAlives:      true,
		DialContext:            (&net.Dialer{Timeout: dialDeadline}).DialContext,
		TLSHandshakeTimeout:    dialDeadline,
		MaxResponseHeaderBytes: 64 << 10,
		Protocols:              new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(true)
	scheme := "http"
	if options.TLS {
		scheme = "https"
		if options.CAPath == "" {
			return nil, errors.New("--backup-restore-ca-cert-bundle-path: a CA bundle is required for TLS connections to the sidecar")
		}
		if _, err := disk.ReadRoots(options.CAPath); err != nil {
			return nil, fmt.Errorf("--backup-restore-ca-cert-bundle-path: %w", err)
		}
		transport.DialTLSContext = dialTLS(host, options.CAPath)
	}
	return &Client{
		base: url.URL{Scheme: scheme, Host: net.JoinHostPort(host, port)},
		http: &http.Client{Transport: transport, CheckRedirect: checkRedirect},
	}, nil
}

// splitHostPort parses <host>:<port>. An empty host means localhost.
func splitHostPort(text string) (host, port string, err error) {
	if strings.Contains(text, "://") {
		return "", "", fmt.Errorf("%q has a scheme; use <host>:<port>, and set --backup-restore-tls-enabled for HTTPS", text)
	}
	host, port, err = net.SplitHostPort(text)
	if err != nil || strings.ContainsAny(host, "/@?# \t") {
		return "", "", fmt.Errorf("%q does not have the form <host>:<port>", text)
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return "", "", fmt.Errorf("port %q in %q is not a number from 1 to 65535", port, text)
	}
	return cmp.Or(host, "localhost"), port, nil
}

// Status returns the initialization status. The caller must act on a result because the sidecar returns it only once.
// The call takes at most 15 s.
func (c *Client) Status(ctx context.Context) (InitializationStatus, error) {
	body, err := c.get(ctx, StatusDeadline, "initialization status", maxStatusBody, "/initialization/status", nil)
	if err != nil {
		return "", err
	}
	status, err := ParseInitializationStatus(body)
	if err != nil {
		return "", fmt.Errorf("cannot read initialization status from %s: %w", c.base.Host, err)
	}
	return status, nil
}

// WhyFailed returns nil, because the sidecar logs the reason for a failed initialization but does not return it.
func (c *Client) WhyFailed() error { return nil }

// Trigger requests an initialization. The sidecar ignores the request unless its status is New. The call takes at
// most 10 s.
func (c *Client) Trigger(ctx context.Context, mode Mode) error {
	query := url.Values{"mode": {string(mode)}}
	_, err := c.get(ctx, TriggerDeadline, "initialization start", maxStatusBody, "/initialization/start", query)
	return err
}

// Config fetches the etcd configuration, at most 1 MiB of YAML. It can be called repeatedly and takes at most 60 s.
func (c *Client) Config(ctx context.Context) ([]byte, error) {
	return c.get(ctx, ConfigDeadline, "etcd configuration", maxConfigBody, "/config", nil)
}

// get reads the whole response within the deadline. Errors contain the request and the host but never the response.
func (c *Client) get(
	ctx context.Context, deadline time.Duration, what string, limit int64, path string, query url.Values,
) ([]byte, error) {
	whole := ctx
	ctx, cancel := context.WithTimeout(whole, deadline)
	defer cancel()
	target := c.base
	target.Path, target.RawQuery = path, query.Encode()
	body, err := c.fetch(ctx, target.String(), limit)
	if errors.Is(err, context.DeadlineExceeded) && whole.Err() == nil {
		err = Mark(fmt.Errorf("no response within %g s", deadline.Seconds()), err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s request to %s failed: %w", what, c.base.Host, err)
	}
	return body, nil
}

func (c *Client) fetch(ctx context.Context, target string, limit int64) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, explainTLS(withoutURL(err))
	}
	defer response.Body.Close() // the body was read completely or is no longer needed
	if response.StatusCode != http.StatusOK {
		return nil, statusError(response)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(body)) > limit {
		return nil, fmt.Errorf("response is larger than %d bytes", limit)
	}
	return body, nil
}

// explainTLS adds advice if the server does not use TLS.
func explainTLS(err error) error {
	if _, plain := errors.AsType[tls.RecordHeaderError](err); plain || errors.Is(err, http.ErrSchemeMismatch) {
		return fmt.Errorf("the sidecar serves plain HTTP, but --backup-restore-tls-enabled is set; configure TLS in the sidecar or remove the flag (%w)", err)
	}
	return err
}

// statusError returns an error for any status other than 200. TLS servers written in Go respond to plain HTTP
// requests with status 400 and an explanation.
func statusError(response *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(response.Body, maxStatusBody))
	if err == nil && response.StatusCode == http.StatusBadRequest && bytes.Contains(body, []byte("HTTP request to an HTTPS server")) {
		return errors.New("the sidecar serves HTTPS; set --backup-restore-tls-enabled and --backup-restore-ca-cert-bundle-path")
	}
	return fmt.Errorf("HTTP status %d", response.StatusCode)
}

// checkRedirect rejects redirects because the client trusts only the sidecar itself.
func checkRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// withoutURL returns the cause of a *url.Error, whose own message repeats the method and the URL.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

// dialTLS rereads the CA bundle for each connection, so the CA can be rotated while the client is waiting.
func dialTLS(host, caPath string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		pool, err := disk.ReadRoots(caPath)
		if err != nil {
			return nil, Mark(err, ErrCertificates)
		}
		ctx, cancel := context.WithTimeout(ctx, 2*dialDeadline)
		defer cancel()
		dialer := &tls.Dialer{
			NetDialer: &net.Dialer{Timeout: dialDeadline},
			Config:    &tls.Config{RootCAs: pool, ServerName: host, MinVersion: tls.VersionTLS12},
		}
		return dialer.DialContext(ctx, network, address)
	}
}
