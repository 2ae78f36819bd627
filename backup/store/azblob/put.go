package azblob

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/rand"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

// maxBlocks is Azure's limit for a blob.
const maxBlocks = 50_000

// Put implements store.Store. Content that fits into one piece is sent in one request, the rest in blocks, which are invisible until a list of
// them is committed. Azure removes uncommitted blocks after a week.
func (s *Store) Put(ctx context.Context, name string, content io.Reader) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	// Concurrent uploads of one name have separate blocks.
	upload := &upload{store: s, ctx: ctx, name: name, id: rand.Text()[:16]}
	return wire.Upload(content, upload.single, upload.begin)
}

// upload is a blob in transit.
type upload struct {
	store  *Store
	ctx    context.Context
	name   string
	id     string
	blocks []string
}

func (u *upload) failed(err error) error { return u.store.failed("cannot create "+u.name, err) }

func (u *upload) single(piece []byte) error {
	u.ctx = wire.WithObjectSize(u.ctx, len(piece))
	return u.failed(u.create(nil, piece))
}

func (u *upload) begin() (wire.Parts, error) { return u, nil }

// Send implements wire.Parts.
func (u *upload) Send(piece []byte, last bool) error {
	if len(piece) > 0 {
		if err := u.block(piece); err != nil {
			return u.failed(err)
		}
	}
	if !last {
		return nil
	}
	return u.failed(u.commit())
}

// Abort implements wire.Parts. Uncommitted blocks are invisible and cannot be removed.
func (u *upload) Abort() {}

func (u *upload) block(piece []byte) error {
	if len(u.blocks) == maxBlocks {
		return errors.New("it is too large")
	}
	id := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%s-%06d", u.id, len(u.blocks)))
	query := url.Values{"comp": {"block"}, "blockid": {id}}
	response, err := u.store.client.Do(u.ctx, func() (*http.Request, error) {
		return u.put(query, piece)
	}, http.StatusCreated)
	u.blocks = append(u.blocks, id)
	return checkResponse(response, err)
}

// checkResponse checks that a response is the store's own, like wire.Created: each of Azure's has the id of its request
// (https://learn.microsoft.com/en-us/rest/api/storageservices/common-rest-api-response-headers).
func checkResponse(response *http.Response, err error) error {
	if err == nil && response.Header.Get("X-Ms-Request-Id") == "" {
		wire.Discard(response)
		return wire.ErrUnexpectedResponse("a request id")
	}
	return wire.Created(response, err)
}

func (u *upload) commit() error {
	list, err := xml.Marshal(struct {
		XMLName xml.Name `xml:"BlockList"`
		Blocks  []string `xml:"Latest"`
	}{Blocks: u.blocks})
	if err != nil {
		return err
	}
	return u.create(url.Values{"comp": {"blocklist"}}, list)
}

// create creates a blob. The request is sent once: a repetition would find the blob that the first one created.
func (u *upload) create(query url.Values, body []byte) error {
	response, err := u.store.client.DoOnce(u.ctx, func() (*http.Request, error) {
		request, err := u.put(query, body)
		if err != nil {
			return nil, err
		}
		request.Header.Set("If-None-Match", "*")
		if query == nil {
			request.Header.Set("X-Ms-Blob-Type", "BlockBlob")
		}
		return request, nil
	}, http.StatusCreated)
	return checkResponse(response, err)
}

func (u *upload) put(query url.Values, body []byte) (*http.Request, error) {
	request, err := u.store.request(http.MethodPut, u.store.prefix+u.name, query, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	sum := md5.Sum(body)
	request.Header.Set("Content-Md5", base64.StdEncoding.EncodeToString(sum[:]))
	request.Header.Set("Content-Type", "application/octet-stream")
	return request, nil
}
