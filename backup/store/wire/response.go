package wire

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"etcd-wrapper/backup/store"
)

// tolerance is the smallest clock difference that explains a rejection. AWS and Azure allow 15 minutes, Google less.
const tolerance = 5 * time.Minute

// maxWait limits Retry-After.
const maxWait = time.Hour

// codeWord matches error codes. Nothing else of a response may be repeated in an error.
var codeWord = regexp.MustCompile(`^[A-Za-z]{1,48}$`)

// summary describes an unsuccessful response.
type summary struct {
	status int           // HTTP status
	code   string        // the store's error code, or empty
	after  time.Duration // how long to wait, or 0
	skew   time.Duration // how far the server's clock is ahead of ours
}

// toError prefers the store's own codes to the HTTP status; 409 and 412 depend on the request and mean nothing here.
func (s summary) toError(codes map[string]error) error {
	kind, known := codes[s.code]
	switch {
	case s.isDenied() && s.skew.Abs() > tolerance || errors.Is(kind, store.ErrSkewed):
		return fmt.Errorf("%s: %w by about %s: %s", s, store.ErrSkewed, s.skew.Abs().Round(time.Minute), store.ErrSkewed.NextStep()) // rounded, because a changed message is logged again
	case errors.Is(kind, store.ErrDenied) || !known && s.isDenied():
		return fmt.Errorf("%s: %w: %s", s, store.ErrDenied, store.ErrDenied.NextStep())
	case errors.Is(kind, store.ErrNoBucket):
		return fmt.Errorf("%s: %w: %s", s, store.ErrNoBucket, store.ErrNoBucket.NextStep())
	case known && !errors.Is(kind, store.ErrUnavailable):
		return fmt.Errorf("%s: %w", s, kind)
	case known || s.isTemporary():
		return &store.Unavailable{Cause: errors.New(s.String()), After: s.after}
	case s.status == http.StatusNotFound:
		return fmt.Errorf("%s: %w", s, ErrUnconfirmed)
	default:
		return errors.New(s.String())
	}
}

func (s summary) isDenied() bool {
	return s.status == http.StatusUnauthorized || s.status == http.StatusForbidden
}

// isTemporary reports whether the next request may succeed.
func (s summary) isTemporary() bool {
	switch s.status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	default:
		return s.status >= http.StatusInternalServerError
	}
}

// String returns status and code.
func (s summary) String() string {
	if codeWord.MatchString(s.code) {
		return fmt.Sprintf("HTTP status %d (%s)", s.status, s.code)
	}
	return fmt.Sprintf("HTTP status %d", s.status)
}

// summarize reads the headers of a response.
func summarize(response *http.Response) summary {
	s := summary{status: response.StatusCode, after: RetryAfter(response.Header.Get("Retry-After"))}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		s.skew = time.Until(date)
	}
	return s
}

// RetryAfter parses the header Retry-After, seconds or a date. It returns 0 without one, and no more than maxWait.
func RetryAfter(header string) time.Duration {
	if seconds, err := strconv.Atoi(header); err == nil {
		return min(max(0, time.Duration(seconds)), maxWait/time.Second) * time.Second
	}
	if date, err := http.ParseTime(header); err == nil {
		return min(max(0, time.Until(date)), maxWait)
	}
	return 0
}

// describe reduces a connection error to what cannot repeat a part of the response.
func describe(err error) error {
	var (
		network     *net.OpError
		name        *net.DNSError
		certificate *tls.CertificateVerificationError
		record      tls.RecordHeaderError
		ours        *store.Unavailable
	)
	switch {
	case errors.As(err, &ours):
		return ours.Cause
	case errors.As(err, &name):
		return name
	case errors.As(err, &network):
		return network
	case errors.As(err, &certificate):
		return certificate
	case errors.As(err, &record):
		return errors.New("the server does not speak TLS")
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("connection lost")
	default:
		return errors.New("connection failed, or the response is not HTTP")
	}
}
