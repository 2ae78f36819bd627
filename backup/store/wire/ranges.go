package wire

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// ErrOtherRange says that a server does not understand ranges.
var ErrOtherRange = errors.New("the server sent another range than the one asked for, or no length")

// Range is the header that asks for length bytes, not 0, from offset on; empty if that is all.
func Range(offset, length int64) string {
	switch {
	case length >= 0:
		return fmt.Sprintf("bytes=%d-%d", offset, offset+length-1)
	case offset > 0:
		return fmt.Sprintf("bytes=%d-", offset)
	default:
		return ""
	}
}

// Begins reports whether an answer with this Content-Range, and this length of the body or -1, is what was asked for from
// offset on. Without a length, an answer that is cut off looks complete.
func Begins(contentRange string, offset, length int64) bool {
	if length < 0 {
		return false
	}
	if contentRange == "" {
		return offset == 0
	}
	var first int64
	_, err := fmt.Sscanf(contentRange, "bytes %d-", &first)
	return err == nil && first == offset
}

// Body returns the body of an answer to a request for length bytes from offset on.
func Body(response *http.Response, offset, length int64) (io.ReadCloser, error) {
	if response.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		Discard(response)
		return Empty(), nil
	}
	arriving := response.ContentLength
	if len(response.TransferEncoding) > 0 {
		arriving = max(0, arriving) // chunks end with a mark
	}
	if !Begins(response.Header.Get("Content-Range"), offset, arriving) {
		_ = response.Body.Close()
		return nil, ErrOtherRange
	}
	return Limit(response.Body, length), nil
}

// Limit ends a body after length bytes, unless that is negative: a server may send everything instead of a range.
func Limit(body io.ReadCloser, length int64) io.ReadCloser {
	if length < 0 {
		return body
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(body, length), body}
}

// Empty is what lies beyond the end of an object.
func Empty() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Nothing closes a body that was only asked for to see whether there is one.
func Nothing(body io.ReadCloser, err error) (io.ReadCloser, error) {
	if err != nil {
		return nil, err
	}
	_ = body.Close()
	return Empty(), nil
}
