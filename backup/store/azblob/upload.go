package azblob

import (
	"context"
	"crypto/md5"
	"crypto/rand"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"

	"etcd-wrapper/backup/store/wire"
)

// maxBlocks is Azure's limit for a blob.
const maxBlocks = 50_000

// upload creates a blob in one request, or from blocks, which are invisible until a list of them is committed. Azure removes
// uncommitted blocks after a week.
type upload struct {
	store  *Store
	target string
	id     string // concurrent uploads of one name have separate blocks
	blocks []string
}

func (s *Store) upload(key string) wire.Upload {
	return &upload{store: s, target: s.url(key), id: rand.Text()[:16]}
}

// Create implements wire.Upload.
func (u *upload) Create(ctx context.Context, content []byte) error {
	return u.create(ctx, nil, map[string]string{"If-None-Match": "*", "X-Ms-Blob-Type": "BlockBlob"}, content)
}

// Start implements wire.Upload.
func (u *upload) Start(context.Context) error { return nil }

// Part implements wire.Upload.
func (u *upload) Part(ctx context.Context, piece []byte, last bool) error {
	if len(u.blocks) == maxBlocks {
		return errors.New("it is too large")
	}
	if len(piece) > 0 {
		id := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%s-%06d", u.id, len(u.blocks)))
		u.blocks = append(u.blocks, id)
		if err := u.create(ctx, url.Values{"comp": {"block"}, "blockid": {id}}, nil, piece); err != nil {
			return err
		}
	}
	if !last {
		return nil
	}
	list, err := xml.Marshal(struct {
		XMLName xml.Name `xml:"BlockList"`
		Blocks  []string `xml:"Latest"`
	}{Blocks: u.blocks})
	if err != nil {
		return err
	}
	return u.create(ctx, url.Values{"comp": {"blocklist"}}, map[string]string{"If-None-Match": "*"}, list)
}

// Abort implements wire.Upload. Uncommitted blocks are invisible and cannot be removed.
func (u *upload) Abort(context.Context) {}

// create sends a request once if it creates a blob: a repetition would find the blob that the first one created. Each response of
// Azure has the id of its request (https://learn.microsoft.com/en-us/rest/api/storageservices/common-rest-api-response-headers).
func (u *upload) create(ctx context.Context, query url.Values, header map[string]string, body []byte) error {
	sum := md5.Sum(body)
	all := map[string]string{"Content-Md5": base64.StdEncoding.EncodeToString(sum[:]), "Content-Type": "application/octet-stream"}
	maps.Copy(all, header)
	request := wire.Request{Method: http.MethodPut, URL: u.target, Query: query, Header: all, Body: body, Once: header != nil}
	response, err := u.store.Send(ctx, request, nil, http.StatusCreated)
	if err == nil && response.Header.Get("X-Ms-Request-Id") == "" {
		return wire.ErrUnexpectedResponse("a request id")
	}
	return err
}
