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

// maxBlocks is Azure's limit of blocks of a blob.
const maxBlocks = 50_000

// Put implements store.Store. What fits into one piece goes in one request, the rest in blocks, which are nothing until a list of
// them is committed. Azure removes those that nobody commits after a week.
func (s *Store) Put(ctx context.Context, name string, content io.Reader) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	// Uploads of one name may run side by side, each with blocks of its own.
	upload := &upload{store: s, ctx: ctx, name: name, id: rand.Text()[:16]}
	return wire.Upload(content, upload.whole, upload.begin)
}

// upload is a blob on its way.
type upload struct {
	store  *Store
	ctx    context.Context
	name   string
	id     string
	blocks []string
}

func (u *upload) failed(err error) error { return u.store.failed("cannot create "+u.name, err) }

func (u *upload) whole(piece []byte) error {
	u.ctx = wire.Whole(u.ctx, len(piece))
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

// Abort implements wire.Parts. Blocks that nobody commits are nothing, and cannot be removed.
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
	return confirmed(response, err)
}

// confirmed is wire.Created for an answer that has to be the store's: each of Azure's has the id of its request
// (https://learn.microsoft.com/en-us/rest/api/storageservices/common-rest-api-response-headers).
func confirmed(response *http.Response, err error) error {
	if err == nil && response.Header.Get("X-Ms-Request-Id") == "" {
		wire.Discard(response)
		return wire.Unconfirmed("a request id")
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

// create is what makes a blob, or refuses to. It is sent once: a second time would find what the first one made.
func (u *upload) create(query url.Values, body []byte) error {
	response, err := u.store.client.Once(u.ctx, func() (*http.Request, error) {
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
	return confirmed(response, err)
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
