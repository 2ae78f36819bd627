package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"time"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/internal/clock"
)

// Limits for retries.
const (
	attempts  = 3
	firstWait = 200 * time.Millisecond
	// longestWait is the longest pause before a retry. If the store requests a longer pause, Do returns the error and
	// leaves the retry to the caller.
	longestWait = 2 * time.Second
)

// maxBody limits the size of decoded responses in bytes. A page of 5,000 blobs from Azure takes up 5 MB.
const maxBody = 16 << 20

// Client sends requests to a store and interprets the responses.
type Client struct {
	HTTP      *http.Client
	Header    map[string]string         // sent with every request
	Authorize func(*http.Request) error // adds credentials to a request
	Expire    func(status int)          // called after ErrDenied to make the next request use new credentials; may be nil
	Unmarshal func([]byte, any) error   // decodes JSON or XML, depending on the server
	// Reason returns the error code of an unsuccessful response. The code is looked up in Codes.
	Reason func(status int, header http.Header, body []byte) string
	Codes  map[string]error
}

// Request is a request to a store.
type Request struct {
	Method string
	URL    string // escaped, without the query
	Query  url.Values
	Header map[string]string
	Body   []byte
	Once   bool // must not be retried, for example because the first request may have created the object
}

// Do sends a request and returns a response with one of the accepted statuses. The caller must close the response
// body. If the store is unavailable, Do sends up to three requests within a few seconds. A stalled request is not
// retried, because the caller has already waited long enough.
func (c *Client) Do(ctx context.Context, r Request, accepted ...int) (response *http.Response, err error) {
	for attempt := range attempts {
		response, err = c.send(ctx, r, accepted)
		half := firstWait << attempt / 2
		wait := max(store.RetryAfter(err), half+rand.N(half))
		isFinal := r.Once || attempt == attempts-1 || errors.Is(err, errStalled) || wait > longestWait
		if isFinal || !errors.Is(err, store.ErrUnavailable) {
			return response, err
		}
		if clock.Sleep(ctx, wait) != nil {
			return nil, context.Cause(ctx)
		}
	}
	return response, err
}

func (c *Client) send(ctx context.Context, r Request, accepted []int) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, r.Method, r.URL, bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	request.URL.RawQuery = r.Query.Encode()
	for _, headers := range []map[string]string{c.Header, r.Header} {
		for name, value := range headers {
			request.Header.Set(name, value)
		}
	}
	if err := c.Authorize(request); err != nil {
		return nil, err
	}
	response, err := c.HTTP.Do(request)
	if err != nil {
		return nil, WithoutURL(err)
	}
	if slices.Contains(accepted, response.StatusCode) {
		return response, nil
	}
	defer Discard(response)
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxBody)) // the status is sufficient
	summary := summarize(response)
	summary.code = c.Reason(response.StatusCode, response.Header, body)
	err = summary.toError(c.Codes)
	if errors.Is(err, store.ErrDenied) && c.Expire != nil {
		c.Expire(response.StatusCode)
	}
	return nil, err
}

// Send is like Do, but closes the body. If into is not nil, Send decodes the body of a 2xx response into it.
func (c *Client) Send(ctx context.Context, r Request, into any, accepted ...int) (*http.Response, error) {
	response, err := c.Do(ctx, r, accepted...)
	if err != nil {
		return nil, err
	}
	defer Discard(response)
	if into == nil || response.StatusCode >= http.StatusMultipleChoices {
		return response, nil
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err == nil && c.Unmarshal(body, into) != nil {
		err = ErrUnexpectedResponse("the expected content")
	}
	return response, err
}

// ErrUnexpectedResponse returns the error for a successful response that violates the store's protocol. Responses
// that violate the protocol typically come from a console, a proxy or a captive portal, and do not show whether
// anything was stored.
func ErrUnexpectedResponse(lacks string) error {
	return &store.Unavailable{Cause: fmt.Errorf("the response is not from the store (missing %s); check endpoint=", lacks)}
}

// ErrNoBucket is the error for status 404 if the request creates an object or does not refer to an object.
var ErrNoBucket = fmt.Errorf("HTTP status 404: %w: %s", store.ErrNoBucket, store.ErrNoBucket.NextStep())

// ErrUnconfirmed is an ErrNotFound that may mean a missing object, a missing bucket or a wrong server.
var ErrUnconfirmed = fmt.Errorf("%w", store.ErrNotFound)

// Discard closes a response. If the rest of the body is short, Discard reads it first, so that the connection can be
// reused.
func Discard(response *http.Response) {
	_, _ = io.CopyN(io.Discard, response.Body, 64<<10) // if this fails, the connection is closed instead of reused
	_ = response.Body.Close()
}

// WithoutURL removes the method and the URL from an error, because the URL may contain a signature.
func WithoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

// ParseEndpoint parses http(s)://HOST[:PORT][/PATH]. Errors must not contain the value, because it may include a
// password.
func ParseEndpoint(value string) (*url.URL, error) {
	endpoint, err := url.Parse(value)
	switch {
	case err != nil || endpoint.Scheme != "http" && endpoint.Scheme != "https" || endpoint.Hostname() == "":
		return nil, errors.New("must be http(s)://HOST[:PORT]")
	case endpoint.User != nil:
		return nil, errors.New("must not contain credentials")
	case endpoint.RawQuery != "" || endpoint.Fragment != "":
		return nil, errors.New("must not contain a query")
	default:
		return endpoint, nil
	}
}

// tolerance is the smallest clock difference that may cause a store to reject requests. AWS and Azure allow 15
// minutes; Google allows less.
const tolerance = 5 * time.Minute

// maxWait limits Retry-After.
const maxWait = time.Hour

// codeWord matches error codes, the only part of a response that errors may contain.
var codeWord = regexp.MustCompile(`^[A-Za-z]{1,48}$`)

// summary holds the relevant parts of an unsuccessful response.
type summary struct {
	status int           // HTTP status
	code   string        // error code returned by the store, or empty
	after  time.Duration // requested pause, or 0
	skew   time.Duration // how far the server's clock is ahead of this machine's clock
}

// toError uses the store's own code if it is known, and otherwise the HTTP status. Statuses 409 and 412 depend on the
// request and are handled elsewhere.
func (s summary) toError(codes map[string]error) error {
	kind, known := codes[s.code]
	switch {
	case s.isDenied() && s.skew.Abs() > tolerance || errors.Is(kind, store.ErrSkewed):
		return fmt.Errorf("%s: %w of about %s: %s", s, store.ErrSkewed, s.skew.Abs().Round(time.Minute), store.ErrSkewed.NextStep()) // rounded, because a changed message is logged again
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

// isTemporary reports whether a retry may succeed.
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

// String returns the status and the code.
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

// RetryAfter parses the Retry-After header in seconds or as a date. RetryAfter returns at most maxWait, and 0 if
// there is no header.
func RetryAfter(header string) time.Duration {
	if seconds, err := strconv.Atoi(header); err == nil {
		return min(max(0, time.Duration(seconds)), maxWait/time.Second) * time.Second
	}
	if date, err := http.ParseTime(header); err == nil {
		return min(max(0, time.Until(date)), maxWait)
	}
	return 0
}

// describe reduces a connection error to a form that cannot contain parts of the response.
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
		return errors.New("connection failed or the response is not HTTP")
	}
}
