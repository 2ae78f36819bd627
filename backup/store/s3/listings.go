package s3

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"

	"etcd-wrapper/backup/store"
)

// listings refuses an answer that is no listing where one was asked for. The library would take any XML, such as a page for
// people, for an empty one, and an empty store is one that a cluster is begun in.
type listings struct{ next http.RoundTripper }

// root is the element that a listing is in, and rootWithin how many bytes may stand before it.
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
		return nil, &store.Unavailable{Cause: errors.New("the answer is no listing of S3's: see that endpoint= leads to the store itself")}
	}
	response.Body = struct {
		io.Reader
		io.Closer
	}{body, response.Body}
	return response, nil
}
