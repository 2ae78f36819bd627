package s3

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"

	"etcd-wrapper/backup/store"
)

// listings rejects a response to a listing that is not one. The library would take any XML, such as a web page, for an empty
// listing, and an empty store would get a new cluster.
type listings struct{ next http.RoundTripper }

// root is the root element of a listing, and rootWithin how many bytes may precede it.
const (
	root       = "ListBucketResult"
	rootWithin = 1 << 10
)

// RoundTrip implements http.RoundTripper.
func (l listings) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := l.next.RoundTrip(request)
	if err != nil || response.StatusCode != http.StatusOK || !request.URL.Query().Has("list-type") {
		return response, err
	}
	body := bufio.NewReaderSize(response.Body, rootWithin)
	beginning, err := body.Peek(rootWithin)
	if (err == nil || errors.Is(err, io.EOF)) && !bytes.Contains(beginning, []byte(root)) {
		_ = response.Body.Close()
		return nil, &store.Unavailable{Cause: errors.New("the response is not a listing of S3; check that endpoint= is the store itself")}
	}
	response.Body = struct {
		io.Reader
		io.Closer
	}{body, response.Body}
	return response, nil
}
