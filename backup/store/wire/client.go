package wire

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"sync"
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
	Once   bool // must not be retried, for example if the first request may have created the object
}

// Do sends a request and returns a response with one of the accepted statuses. The caller must close the response
// body. If the store is unavailable, Do sends up to three requests within a few seconds. A request that stalled is
// not retried, because the caller has already waited long enough.
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
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxBody)) // without the body, the status decides
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

// ErrNoBucket is the error for status 404 in response to a request that creates an object or refers to the bucket
// itself, because only a missing bucket explains the status.
var ErrNoBucket = fmt.Errorf("HTTP status 404: %w: %s", store.ErrNoBucket, store.ErrNoBucket.NextStep())

// ErrUnconfirmed is an ErrNotFound that may mean a missing object, a missing bucket or a wrong server.
var ErrUnconfirmed = fmt.Errorf("%w", store.ErrNotFound)

// Discard closes a response. If the rest of the body is short, Discard reads it first, so that the connection can be
// reused.
func Discard(response *http.Response) {
	_, _ = io.CopyN(io.Discard, response.Body, 64<<10) // after an error, the connection is closed instead of reused
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

// tolerance is the smallest clock difference that may explain why a store denies requests. AWS and Azure allow 15
// minutes; Google allows less.
const tolerance = 5 * time.Minute

// maxWait is the longest pause that RetryAfter returns.
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

// toError returns the store error for a response. It uses the store's own code if the code is known, and otherwise
// the HTTP status. Statuses 409 and 412 have no store error of their own, because their meaning depends on the
// request.
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

// String returns the status and, if it is a plain word, the code.
func (s summary) String() string {
	if codeWord.MatchString(s.code) {
		return fmt.Sprintf("HTTP status %d (%s)", s.status, s.code)
	}
	return fmt.Sprintf("HTTP status %d", s.status)
}

// summarize returns the summary of a response, without the code, which depends on the store.
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

// Location identifies a store.
type Location struct {
	Bucket   string   // bucket or container
	Prefix   string   // name prefix: empty, or ending with a slash
	Endpoint *url.URL // nil for the cloud provider's endpoint
	CAPath   string   // path of a CA bundle; see NewClient
}

// Bucket implements store.Store for HTTP servers.
type Bucket struct {
	Client
	Name    string                  // URL of the store, without the query and secrets
	Prefix  string                  // name prefix: empty, or ending with a slash
	URL     func(key string) string // escaped URL of an object, or of the bucket if key is empty
	Media   url.Values              // query parameters for reading the content of an object
	Deleted []int                   // response statuses of a successful deletion
	// Page returns a page of the objects whose names start with prefix, and the mark (continuation token) of the next
	// page, or "" for the last page. The mark of the first page is empty. If after is not empty, Page may omit
	// objects up to and including that name. All names include Prefix.
	Page func(ctx context.Context, prefix, after, mark string) (objects []store.Object, next string, err error)
	// Upload returns an upload of an object.
	Upload func(key string) Upload
}

// Upload creates an object unless it exists. An Upload is not safe for concurrent use.
type Upload interface {
	// Create creates an object that fits into one piece.
	Create(ctx context.Context, content []byte) error
	// Start starts the upload of a larger object.
	Start(ctx context.Context) error
	// Part sends a piece without retaining it. All pieces except the last have PieceSize bytes. The last piece may be
	// empty and creates the object.
	Part(ctx context.Context, piece []byte, last bool) error
	// Abort discards the upload.
	Abort(ctx context.Context)
}

// String implements store.Store.
func (b *Bucket) String() string { return b.Name }

// Failed adds the operation and the store's URL to an error.
func (b *Bucket) Failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s in %s: %w", doing, b, err)
}

const (
	// PieceSize is the size of the upload buffer in bytes. S3 allows 10,000 parts, so an object can be up to 80 GB.
	PieceSize = 8 << 20
	// abortDeadline limits the cleanup after a failed upload.
	abortDeadline = 5 * time.Second
)

// buffers holds upload buffers for reuse, because the backup writer uploads an object every second.
var buffers = sync.Pool{New: func() any { return new([PieceSize]byte) }}

// Put implements store.Store.
func (b *Bucket) Put(ctx context.Context, name string, content io.Reader) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	buffer := buffers.Get().(*[PieceSize]byte)
	defer buffers.Put(buffer)
	piece, last, err := readPiece(content, buffer)
	if err != nil {
		return err
	}
	upload := b.Upload(b.Prefix + name)
	if last {
		return b.notCreated(name, upload.Create(withObjectSize(ctx, len(piece)), piece))
	}
	if err := upload.Start(ctx); err != nil {
		return b.notCreated(name, err)
	}
	err = b.notCreated(name, upload.Part(ctx, piece, false))
	for err == nil && !last {
		if piece, last, err = readPiece(content, buffer); err == nil {
			err = b.notCreated(name, upload.Part(ctx, piece, last))
		}
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortDeadline)
		defer cancel()
		upload.Abort(ctx)
	}
	return err
}

// readPiece fills the buffer from content. Only the last piece may be empty or shorter than the buffer. The only
// errors that readPiece returns are those from content.
func readPiece(content io.Reader, buffer *[PieceSize]byte) (piece []byte, last bool, err error) {
	filled := 0
	for filled < PieceSize {
		// io.ReadFull would interpret an io.ErrUnexpectedEOF from content as the end.
		n, err := content.Read(buffer[filled:])
		filled += n
		if errors.Is(err, io.EOF) {
			return buffer[:filled], true, nil
		}
		if err != nil {
			return nil, false, err
		}
	}
	return buffer[:filled], false, nil
}

// notCreated returns the error for a failed request to create an object.
func (b *Bucket) notCreated(name string, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		err = ErrNoBucket
	}
	if errors.Is(err, store.ErrLocked) { // some servers check for a lock before they check whether the object exists
		err = fmt.Errorf("%w: %w", store.ErrExists, err)
	}
	return b.Failed("cannot create "+name, err)
}

// Get implements store.Store.
func (b *Bucket) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	if length == 0 { // an empty range is invalid, but Get must check whether the object exists
		body, err := b.Get(ctx, name, offset, 1)
		if err != nil {
			return nil, err
		}
		return http.NoBody, body.Close()
	}
	request := Request{Method: http.MethodGet, URL: b.URL(b.Prefix + name), Query: b.Media}
	if wanted := rangeOf(offset, length); wanted != "" {
		request.Header = map[string]string{"Range": wanted}
	}
	response, err := b.Do(ctx, request, http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable)
	if err != nil {
		return nil, b.confirmMissing(ctx, name, b.Failed("cannot read "+name, err))
	}
	body, err := bodyOf(response, offset, length)
	return body, b.Failed("cannot read "+name, err)
}

// confirmMissing determines whether an ErrUnconfirmed means that the object is missing, by listing the bucket. If the
// listing fails, confirmMissing returns the error from the listing.
func (b *Bucket) confirmMissing(ctx context.Context, name string, err error) error {
	if !errors.Is(err, ErrUnconfirmed) {
		return err
	}
	for _, listing := range b.List(ctx, name, "") {
		return cmp.Or(listing, err)
	}
	return err
}

// rangeOf returns the Range header for length bytes from offset, or "" for the whole object. A negative length means
// everything from offset. The length must not be 0.
func rangeOf(offset, length int64) string {
	switch {
	case length >= 0:
		return fmt.Sprintf("bytes=%d-%d", offset, offset+length-1)
	case offset > 0:
		return fmt.Sprintf("bytes=%d-", offset)
	default:
		return ""
	}
}

// bodyOf returns the requested bytes of a response: length bytes from offset, or everything from offset if length is
// negative.
func bodyOf(response *http.Response, offset, length int64) (body io.ReadCloser, err error) {
	switch {
	case response.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		Discard(response)
		return http.NoBody, nil
	case response.Header.Get("ETag") == "":
		err = ErrUnexpectedResponse("an ETag")
	case !startsAt(response, offset):
		err = errors.New("the server returned an unexpected range or no length")
	case length < 0:
		return response.Body, nil
	default: // some servers send more than the requested range
		return struct {
			io.Reader
			io.Closer
		}{io.LimitReader(response.Body, length), response.Body}, nil
	}
	_ = response.Body.Close()
	return nil, err
}

// startsAt reports whether a body starts at offset and has a known length. Without a length, a truncated response
// would look complete.
func startsAt(response *http.Response, offset int64) bool {
	if response.ContentLength < 0 && len(response.TransferEncoding) == 0 {
		return false
	}
	span := response.Header.Get("Content-Range")
	if span == "" {
		return offset == 0
	}
	var first int64
	_, err := fmt.Sscanf(span, "bytes %d-", &first)
	return err == nil && first == offset
}

// List implements store.Store.
func (b *Bucket) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	if err := store.CheckPrefix(prefix, after); err != nil {
		return store.Failed(err)
	}
	start := after
	if after != "" {
		start = b.Prefix + after
	}
	return store.InOrder(func(yield func(store.Object, error) bool) {
		for mark := ""; ; {
			objects, next, err := b.Page(ctx, b.Prefix+prefix, start, mark)
			if errors.Is(err, store.ErrNotFound) {
				err = ErrNoBucket
			}
			if err != nil {
				yield(store.Object{}, b.Failed("cannot list", err))
				return
			}
			for _, object := range objects {
				if !yield(object, nil) {
					return
				}
			}
			if mark = next; mark == "" {
				return
			}
		}
	}, b.Prefix, after)
}

// Delete implements store.Store.
func (b *Bucket) Delete(ctx context.Context, name string) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	_, err := b.Send(ctx, Request{Method: http.MethodDelete, URL: b.URL(b.Prefix + name)}, nil, b.Deleted...)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return b.Failed("cannot delete "+name, err)
}
