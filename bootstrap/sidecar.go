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

// InitializationStatus is the sidecar's status of the initialization of the data directory.
type InitializationStatus string

// The four words that `GET /initialization/status` of etcd-backup-restore returns. Reading Successful or Failed
// resets the sidecar to New, so each result is returned only once.
const (
	New        InitializationStatus = "New"        // nothing was requested yet, or the last result was already returned
	Progress   InitializationStatus = "Progress"   // an initialization is running; it may take hours
	Successful InitializationStatus = "Successful" // the data directory may be opened
	Failed     InitializationStatus = "Failed"     // the initialization ended without a usable data directory
)

// InitializationStatuses lists all status words in the order of a run.
var InitializationStatuses = []InitializationStatus{New, Progress, Successful, Failed}

// Running reports whether an initialization is running. Every status is New, running or a result.
func (s InitializationStatus) Running() bool { return s == Progress }

// Result reports whether the word is the result of an initialization.
func (s InitializationStatus) Result() bool { return s == Successful || s == Failed }

// word matches an unknown status that an error may quote. Anything else may be confidential.
var word = regexp.MustCompile(`^[A-Za-z]{1,24}$`)

// ParseInitializationStatus parses a status word, which may be surrounded by white space. It never guesses: opening
// the data because of a guessed word is the one mistake that this program exists to avoid.
func ParseInitializationStatus(body []byte) (InitializationStatus, error) {
	status := InitializationStatus(bytes.TrimSpace(body))
	switch {
	case slices.Contains(InitializationStatuses, status):
		return status, nil
	case word.MatchString(string(status)):
		return "", fmt.Errorf("unknown initialization status %q", status)
	default:
		return "", fmt.Errorf("unknown initialization status of %d bytes", len(body))
	}
}

// Mode is the depth of a validation.
type Mode string

// The two modes that `GET /initialization/start` accepts.
const (
	Sanity Mode = "sanity" // after a clean exit: checks only the structure
	Full   Mode = "full"   // in all other cases: reads everything
)

// ModeAfter chooses the validation mode from the exit record. A clean record with a note counts only if the data
// files still match the note, because another etcd may have opened them since; changed makes that comparison. A
// record without a note counts as it is. reason is a clause for the log.
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
		return Full, "the data changed after the exit record was written: " + err.Error()
	}
	return Sanity, "the last etcd on this volume was closed in order (" + string(word) + ")"
}

// Deadlines for one call to the sidecar, from the connection to the last byte of the body.
const (
	// StatusDeadline is generous because a reply that is lost after the sidecar wrote it costs an initialization.
	StatusDeadline = 15 * time.Second
	// TriggerDeadline is short: the sidecar answers immediately and initializes in the background.
	TriggerDeadline = 10 * time.Second
	// ConfigDeadline leaves room for the sidecar's attempt to list members, 7 s before the first byte while etcd is
	// down.
	ConfigDeadline = 60 * time.Second
	// dialDeadline limits the TCP connection and, separately, the TLS handshake.
	dialDeadline = 5 * time.Second
)

// Limits for replies, in bytes.
const (
	maxStatusBody = 256
	maxConfigBody = 1 << 20
)

// ClientOptions configures the connection to the sidecar.
type ClientOptions struct {
	HostPort string // <host>:<port>; an empty host means localhost
	TLS      bool   // use HTTPS
	CAPath   string // PEM bundle with the CA of the sidecar's certificate; reread for every connection to support rotation
}

// Client calls the HTTP API of etcd-backup-restore. Its methods may be called from any goroutine.
//
// Every call uses its own connection and HTTP/1.1. On a reused connection Go's transport repeats a GET that got no
// answer, and reading the status twice discards a result.
type Client struct {
	base url.URL
	http *http.Client
}

// NewClient checks the options and returns a client. It does not connect yet. The error names the flag.
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
			return nil, errors.New("--backup-restore-ca-cert-bundle-path: a CA bundle is required to talk TLS to the sidecar")
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
		return "", "", fmt.Errorf("%q has a scheme; write <host>:<port>, and --backup-restore-tls-enabled for HTTPS", text)
	}
	host, port, err = net.SplitHostPort(text)
	if err != nil || strings.ContainsAny(host, "/@?# \t") {
		return "", "", fmt.Errorf("%q is not <host>:<port>", text)
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return "", "", fmt.Errorf("%q in %q is not a port, which is a number from 1 to 65535", port, text)
	}
	return cmp.Or(host, "localhost"), port, nil
}

// Status returns the status of the initialization. The sidecar resets a result once it is read, so the caller must
// act on it. The call takes at most 15 s.
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

// WhyFailed returns nil, because the sidecar gives the reason only in its own log.
func (c *Client) WhyFailed() error { return nil }

// Trigger requests an initialization. The sidecar ignores the request unless its status is New. The call takes at
// most 10 s.
func (c *Client) Trigger(ctx context.Context, mode Mode) error {
	query := url.Values{"mode": {string(mode)}}
	_, err := c.get(ctx, TriggerDeadline, "initialization start", maxStatusBody, "/initialization/start", query)
	return err
}

// Config fetches etcd's configuration, at most 1 MiB of YAML. It may be called again. The call takes at most 60 s.
func (c *Client) Config(ctx context.Context) ([]byte, error) {
	return c.get(ctx, ConfigDeadline, "etcd configuration", maxConfigBody, "/config", nil)
}

// get reads the whole reply before it ends the request. Errors name the request and the host; they never quote the
// reply.
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
		err = Mark(fmt.Errorf("no answer within %g s", deadline.Seconds()), err)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot fetch %s from %s: %w", what, c.base.Host, err)
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
	defer response.Body.Close() // the body was read to its end or is abandoned
	if response.StatusCode != http.StatusOK {
		return nil, statusError(response)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(body)) > limit {
		return nil, fmt.Errorf("reply is larger than %d bytes", limit)
	}
	return body, nil
}

// explainTLS adds the way out to an error about a server that does not speak TLS.
func explainTLS(err error) error {
	if _, plain := errors.AsType[tls.RecordHeaderError](err); plain || errors.Is(err, http.ErrSchemeMismatch) {
		return fmt.Errorf("it speaks plain HTTP, and --backup-restore-tls-enabled asks for HTTPS: give the sidecar a certificate, or leave out the flag (%w)", err)
	}
	return err
}

// statusError describes a reply with a status other than 200. A TLS server in Go answers plain HTTP with 400 and a
// sentence.
func statusError(response *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(response.Body, maxStatusBody))
	if err == nil && response.StatusCode == http.StatusBadRequest && bytes.Contains(body, []byte("HTTP request to an HTTPS server")) {
		return errors.New("it speaks HTTPS: set --backup-restore-tls-enabled and --backup-restore-ca-cert-bundle-path")
	}
	return fmt.Errorf("HTTP status %d", response.StatusCode)
}

// checkRedirect makes a redirect count as any other status but 200: only the sidecar itself is trusted.
func checkRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// withoutURL drops the layer of the error that repeats method and URL.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

// dialTLS reads the CA bundle for every connection, so that the CA may be rotated while the client waits.
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
