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
	// longestWait is the longest wait a request is repeated after; a store that asks for more is left to the caller.
	longestWait = 2 * time.Second
)

// Client sends requests to a store.
type Client struct {
	HTTP *http.Client
	// Authorize adds credentials to a request.
	Authorize func(*http.Request) error
	// Refusal turns an answer that was not accepted into an error. It may read the body, which is short and is closed after.
	Refusal func(*http.Response) error
}

// Do sends a request and returns an answer with one of the accepted statuses; its body must be closed. It sends it up to three
// times, within a few seconds, while the store is unavailable; so it must be safe to repeat. Each time it is built anew. Where
// nothing has moved for as long as the patience it is not repeated: the caller has waited long enough.
func (c *Client) Do(
	ctx context.Context, build func() (*http.Request, error), accepted ...int,
) (response *http.Response, err error) {
	for attempt := range attempts {
		response, err = c.Once(ctx, build, accepted...)
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

// Once is Do without repeating.
func (c *Client) Once(ctx context.Context, build func() (*http.Request, error), accepted ...int) (*http.Response, error) {
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

// Unconfirmed is for an answer of success that lacks what the store's own protocol says of an object that it has created: a console, a
// proxy or a captive portal has answered. Nothing is known to be stored.
func Unconfirmed(lacks string) error {
	return &store.Unavailable{Cause: fmt.Errorf("something else than the store has answered (without %s); does endpoint= lead to the store?", lacks)}
}

// ErrNoBucket answers a 404 to a request that names no object, or that creates one: what is missing then is the bucket.
var ErrNoBucket = fmt.Errorf("HTTP status 404: %w: %s", store.ErrNoBucket, store.ErrNoBucket.NextStep())

// ConfirmAbsent checks err, with which reading an object ended, where it is ErrNotFound: an absent bucket looks the same, and
// so does a server that is not the store's and answers 404 to every request. An object is absent only from a bucket that can
// be listed; otherwise the error of the listing is returned.
func ConfirmAbsent(ctx context.Context, s store.Store, name string, err error) error {
	if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	for _, listing := range s.List(ctx, name, "") {
		return cmp.Or(listing, err)
	}
	return err
}

// Created is how a request to create something in a bucket ended: what can be missing then is the bucket.
func Created(response *http.Response, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return ErrNoBucket
	}
	if err == nil {
		Discard(response)
	}
	return err
}

// Deleted is how a request to delete an object ended: one that was not there is deleted, too.
func Deleted(response *http.Response, err error) error {
	if err == nil {
		Discard(response)
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// Discard ends an answer whose body says nothing of interest, so that its connection can be used again.
func Discard(response *http.Response) {
	_, _ = io.CopyN(io.Discard, response.Body, 64<<10) // if it fails, the connection is closed
	_ = response.Body.Close()
}

// withoutURL drops the layer of the error that repeats method and URL, which may hold a signature.
func withoutURL(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// ParseEndpoint reads http(s)://HOST[:PORT][/PATH]. The error does not repeat the value, which may hold a password.
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

// tolerance is the least difference of clocks that explains a refusal. AWS and Azure allow 15 minutes, Google less.
const tolerance = 5 * time.Minute

// maxWait is what a server can ask for at most; more is a mistake.
const maxWait = time.Hour

// codeWord is what the names of errors look like, which may be repeated in ours; nothing else of an answer is.
var codeWord = regexp.MustCompile(`^[A-Za-z]{1,48}$`)

// Answer is what counts of an answer that is not a success.
type Answer struct {
	Status int           // HTTP status
	Code   string        // the store's name for the error, or empty
	After  time.Duration // how long to wait, or 0
	Skew   time.Duration // how far the server's clock is ahead of ours
	Type   string        // of the body

	stalled error // of a note: a request did not get on, so what the library repeats is not sent
}

// Error turns an answer into an error. What the store's own codes mean comes first, then what statuses mean in HTTP; 404, 409
// and 412 mean nothing here, since that depends on the request.
func (a Answer) Error(codes map[string]error) error {
	kind, known := codes[a.Code]
	switch {
	case a.refused() && a.Skew.Abs() > tolerance || errors.Is(kind, store.ErrSkewed):
		return fmt.Errorf("%s: %w by about %s: %s", a, store.ErrSkewed, a.Skew.Abs().Round(time.Minute), store.ErrSkewed.NextStep()) // it is said again when it changes
	case errors.Is(kind, store.ErrDenied) || !known && a.refused():
		return fmt.Errorf("%s: %w: %s", a, store.ErrDenied, store.ErrDenied.NextStep())
	case errors.Is(kind, store.ErrNoBucket):
		return fmt.Errorf("%s: %w: %s", a, store.ErrNoBucket, store.ErrNoBucket.NextStep())
	case known && !errors.Is(kind, store.ErrUnavailable):
		return fmt.Errorf("%s: %w", a, kind)
	case known || a.passing():
		return &store.Unavailable{Cause: errors.New(a.String()), After: a.After}
	default:
		return errors.New(a.String())
	}
}

func (a Answer) refused() bool {
	return a.Status == http.StatusUnauthorized || a.Status == http.StatusForbidden
}

// passing statuses are those that may be another one the next time.
func (a Answer) passing() bool {
	switch a.Status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	default:
		return a.Status >= http.StatusInternalServerError
	}
}

// String names status and code.
func (a Answer) String() string {
	if codeWord.MatchString(a.Code) {
		return fmt.Sprintf("HTTP status %d (%s)", a.Status, a.Code)
	}
	return fmt.Sprintf("HTTP status %d", a.Status)
}

// AnswerOf reads what the headers say.
func AnswerOf(response *http.Response) Answer {
	answer := Answer{Status: response.StatusCode, After: retryAfter(response.Header.Get("Retry-After")), Type: response.Header.Get("Content-Type")}
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

// WithNote returns a context whose requests leave in note what the headers of the last answer said, for a library that
// keeps them to itself. Such requests must come one after another; behind one that was given up because nothing moved, the
// others fail at once, since a library that repeats it would wait as long again each time.
func WithNote(ctx context.Context, note *Answer) context.Context {
	return context.WithValue(ctx, noteKey{}, note)
}

func noteAnswer(ctx context.Context, response *http.Response) {
	if note, ok := ctx.Value(noteKey{}).(*Answer); ok {
		*note = AnswerOf(response)
	}
}

// noteFailure remembers an error if it is that nothing moved.
func noteFailure(ctx context.Context, err error) {
	if note, ok := ctx.Value(noteKey{}).(*Answer); ok && errors.Is(err, errStalled) {
		note.stalled = err
	}
}

// noted is the error of an earlier request that did not get on.
func noted(ctx context.Context) error {
	if note, ok := ctx.Value(noteKey{}).(*Answer); ok {
		return note.stalled
	}
	return nil
}

// describe keeps of an error of the connection what is known to repeat nothing of the answer.
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
		return errors.New("connection failed, or the answer is not HTTP")
	}
}
