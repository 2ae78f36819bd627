package wire

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"sync"
	"time"

	"etcd-wrapper/backup/store"
)

// Place is the location of a store.
type Place struct {
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
	// Page returns a page of the objects whose names start with prefix, and the mark of the next page, or "" for the
	// last page. Unless after is empty, Page may omit objects whose names do not sort after it. The mark of the first
	// page is empty.
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

// buffers holds upload buffers for reuse, because there is an upload every second.
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
	if errors.Is(err, store.ErrLocked) { // some servers check for a lock before they check the condition
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

// rangeOf returns the Range header for length bytes from offset, or "" for the whole object. The length must not be
// 0.
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

// bodyOf returns the response body for a request of length bytes from offset.
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
