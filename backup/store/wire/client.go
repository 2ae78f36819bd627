package wire

import (
	"cmp"
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
)

// Bounds of repeating a request.
const (
	attempts  = 3
	firstWait = 200 * time.Millisecond
	// longestWait is the longest wait before a request is repeated. If a store asks for more, the caller has to wait.
	longestWait = 2 * time.Second
)

// Client sends requests to a store.
type Client struct {
	HTTP *http.Client
	// Authorize adds credentials to a request.
	Authorize func(*http.Request) error
	// Refusal turns a response with another status into an error. It may read the body.
	Refusal func(*http.Response) error
}

// Do sends a request and returns a response with one of the accepted statuses, whose body must be closed. While the store is
// unavailable it sends up to three requests within a few seconds, each built from scratch, so they must be safe to repeat. It does
// not repeat a request that stalled: the caller has waited long enough.
func (c *Client) Do(
	ctx context.Context, build func() (*http.Request, error), accepted ...int,
) (response *http.Response, err error) {
	for attempt := range attempts {
		response, err = c.DoOnce(ctx, build, accepted...)
		half := firstWait << attempt / 2
		wait := max(store.RetryAfter(err), half+rand.N(half))
		if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, errStalled) || attempt == attempts-1 || wait > longestWait {
			return response, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(wait):
		}
	}
	return response, err
}

// DoOnce sends a request without repeating it.
func (c *Client) DoOnce(ctx context.Context, build func() (*http.Request, error), accepted ...int) (*http.Response, error) {
	request, err := build()
	if err != nil {
		return nil, err
	}
	request = request.WithContext(ctx)
	if err := c.Authorize(request); err != nil {
		return nil, err
	}
	response, err := c.HTTP.Do(request)
	if err != nil {
		return nil, withoutURL(err)
	}
	if slices.Contains(accepted, response.StatusCode) {
		return response, nil
	}
	defer response.Body.Close()
	return nil, c.Refusal(response)
}

// ErrUnexpectedResponse returns the error for a successful response without what the protocol of the store prescribes: a console, a proxy or
// a captive portal has answered. It is unknown whether anything was stored.
func ErrUnexpectedResponse(lacks string) error {
	return &store.Unavailable{Cause: fmt.Errorf("another server than the store responded (without %s); check endpoint=", lacks)}
}

// ErrNoBucket answers a 404 to a request that names no object, or that creates one: what is missing then is the bucket.
var ErrNoBucket = fmt.Errorf("HTTP status 404: %w: %s", store.ErrNoBucket, store.ErrNoBucket.NextStep())

// ConfirmMissing checks err, with which reading an object ended, where it is ErrNotFound: an absent bucket looks the same, and
// so does a server that is not the store's and answers 404 to every request. An object is absent only from a bucket that can
// be listed; otherwise the error of the listing is returned.
func ConfirmMissing(ctx context.Context, s store.Store, name string, err error) error {
	if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	for _, listing := range s.List(ctx, name, "") {
		return cmp.Or(listing, err)
	}
	return err
}

// Created returns the error of a request that creates something. A 404 means that the bucket is missing.
func Created(response *http.Response, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return ErrNoBucket
	}
	if err == nil {
		Discard(response)
	}
	return err
}

// Deleted returns the error of a request that deletes an object. A missing object is deleted.
func Deleted(response *http.Response, err error) error {
	if err == nil {
		Discard(response)
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// Discard ends a response without reading its body, so that its connection can be reused.
func Discard(response *http.Response) {
	_, _ = io.CopyN(io.Discard, response.Body, 64<<10) // if it fails, the connection is closed
	_ = response.Body.Close()
}

// withoutURL unwraps an error that repeats method and URL, which may contain a signature.
func withoutURL(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// ParseEndpoint parses http(s)://HOST[:PORT][/PATH]. The error does not repeat the value, which may contain a password.
func ParseEndpoint(value string) (*url.URL, error) {
	endpoint, err := url.Parse(value)
	switch {
	case err != nil || endpoint.Scheme != "http" && endpoint.Scheme != "https" || endpoint.Hostname() == "":
		return nil, errors.New("is not http(s)://HOST[:PORT]")
	case endpoint.User != nil:
		return nil, errors.New("must not hold credentials")
	case endpoint.RawQuery != "" || endpoint.Fragment != "":
		return nil, errors.New("must not have a query")
	default:
		return endpoint, nil
	}
}

// tolerance is the smallest clock difference that explains a rejection. AWS and Azure allow 15 minutes, Google less.
const tolerance = 5 * time.Minute

// maxWait limits Retry-After.
const maxWait = time.Hour

// codeWord matches error codes. Nothing else of a response may be repeated in an error.
var codeWord = regexp.MustCompile(`^[A-Za-z]{1,48}$`)

// Response is the relevant part of an unsuccessful response.
type Response struct {
	Status int           // HTTP status
	Code   string        // the store's error code, or empty
	After  time.Duration // how long to wait, or 0
	Skew   time.Duration // how far the server's clock is ahead of ours
	Type   string        // of the body

	stalled error // of a note: a request stalled, so the library's repetition is not sent
}

// Error turns a response into an error. The store's own codes come first, then the HTTP status; 404, 409 and 412 depend on the request
// and mean nothing here.
func (a Response) Error(codes map[string]error) error {
	kind, known := codes[a.Code]
	switch {
	case a.isDenied() && a.Skew.Abs() > tolerance || errors.Is(kind, store.ErrSkewed):
		return fmt.Errorf("%s: %w by about %s: %s", a, store.ErrSkewed, a.Skew.Abs().Round(time.Minute), store.ErrSkewed.NextStep()) // rounded, because a changed message is logged again
	case errors.Is(kind, store.ErrDenied) || !known && a.isDenied():
		return fmt.Errorf("%s: %w: %s", a, store.ErrDenied, store.ErrDenied.NextStep())
	case errors.Is(kind, store.ErrNoBucket):
		return fmt.Errorf("%s: %w: %s", a, store.ErrNoBucket, store.ErrNoBucket.NextStep())
	case known && !errors.Is(kind, store.ErrUnavailable):
		return fmt.Errorf("%s: %w", a, kind)
	case known || a.isTemporary():
		return &store.Unavailable{Cause: errors.New(a.String()), After: a.After}
	default:
		return errors.New(a.String())
	}
}

func (a Response) isDenied() bool {
	return a.Status == http.StatusUnauthorized || a.Status == http.StatusForbidden
}

// isTemporary reports whether the next request may succeed.
func (a Response) isTemporary() bool {
	switch a.Status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	default:
		return a.Status >= http.StatusInternalServerError
	}
}

// String returns status and code.
func (a Response) String() string {
	if codeWord.MatchString(a.Code) {
		return fmt.Sprintf("HTTP status %d (%s)", a.Status, a.Code)
	}
	return fmt.Sprintf("HTTP status %d", a.Status)
}

// ResponseOf reads the headers of a response.
func ResponseOf(response *http.Response) Response {
	answer := Response{Status: response.StatusCode, After: retryAfter(response.Header.Get("Retry-After")), Type: response.Header.Get("Content-Type")}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		answer.Skew = time.Until(date)
	}
	return answer
}

func retryAfter(header string) time.Duration {
	if seconds, err := strconv.Atoi(header); err == nil {
		return min(max(0, time.Duration(seconds)), maxWait/time.Second) * time.Second
	}
	if date, err := http.ParseTime(header); err == nil {
		return min(max(0, time.Until(date)), maxWait)
	}
	return 0
}

type noteKey struct{}

// WithNote returns a context whose requests store the headers of the last response in note, for a library that does not return them.
// Requests must not overlap. After one that stalled, the others fail immediately, since a library that repeats it would
// wait as long again each time.
func WithNote(ctx context.Context, note *Response) context.Context {
	return context.WithValue(ctx, noteKey{}, note)
}

func noteResponse(ctx context.Context, response *http.Response) {
	if note, ok := ctx.Value(noteKey{}).(*Response); ok {
		*note = ResponseOf(response)
	}
}

// noteFailure remembers that a request stalled.
func noteFailure(ctx context.Context, err error) {
	if note, ok := ctx.Value(noteKey{}).(*Response); ok && errors.Is(err, errStalled) {
		note.stalled = err
	}
}

// earlierFailure returns the error of an earlier request that stalled.
func earlierFailure(ctx context.Context) error {
	if note, ok := ctx.Value(noteKey{}).(*Response); ok {
		return note.stalled
	}
	return nil
}

// describe reduces a connection error to what cannot repeat a part of the response.
func describe(err error) error {
	var (
		network     *net.OpError
		name        *net.DNSError
		certificate *tls.CertificateVerificationError
		record      tls.RecordHeaderError
		ours        *store.Unavailable
		bundle      *bundleError
	)
	switch {
	case errors.As(err, &bundle):
		return bundle
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
