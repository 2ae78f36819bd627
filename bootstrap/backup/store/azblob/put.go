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

	"etcd-wrapper/bootstrap/backup/store"
	"etcd-wrapper/bootstrap/backup/store/wire"
)

// maxBlocks is Azure's limit of blocks of a blob.
const maxBlocks = 50_000

// Put is store.Store's. What fits into one piece goes in one request, the rest in blocks, which are nothing until a list of
// them is committed. Azure removes those that nobody commits after a week.
func (s *Store) Put(ctx context.Context, name string, content io.Reader) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	pieces := wire.NewPieces(content)
	defer pieces.Close()
	piece, last, err := pieces.Next()
	if err != nil {
		return err
	}
	doing := "cannot create " + name
	if last {
		return s.failed(doing, s.create(ctx, s.prefix+name, nil, piece))
	}
	// Uploads of one name may run side by side, each with blocks of its own.
	upload := &upload{store: s, ctx: ctx, key: s.prefix + name, id: rand.Text()[:16]}
	for !last || len(piece) > 0 {
		if err := upload.block(piece); err != nil {
			return s.failed(doing, err)
		}
		if last {
			break
		}
		if piece, last, err = pieces.Next(); err != nil {
			return err
		}
	}
	return s.failed(doing, upload.commit())
}

// upload is a blob on its way.
type upload struct {
	store  *Store
	ctx    context.Context
	key    string
	id     string
	blocks []string
}

func (u *upload) block(piece []byte) error {
	if len(u.blocks) == maxBlocks {
		return errors.New("it is too large")
	}
	id := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%s-%06d", u.id, len(u.blocks)))
	query := url.Values{"comp": {"block"}, "blockid": {id}}
	response, err := u.store.client.Do(u.ctx, func() (*http.Request, error) {
		return u.store.put(u.key, query, piece)
	}, http.StatusCreated)
	if err != nil {
		return noBucket(err)
	}
	wire.Discard(response)
	u.blocks = append(u.blocks, id)
	return nil
}

func (u *upload) commit() error {
	list, err := xml.Marshal(struct {
		XMLName xml.Name `xml:"BlockList"`
		Blocks  []string `xml:"Latest"`
	}{Blocks: u.blocks})
	if err != nil {
		return err
	}
	return u.store.create(u.ctx, u.key, url.Values{"comp": {"blocklist"}}, list)
}

// create is what makes a blob, or refuses to. It is sent once: a second time would find what the first one made.
func (s *Store) create(ctx context.Context, key string, query url.Values, body []byte) error {
	response, err := s.client.Once(ctx, func() (*http.Request, error) {
		request, err := s.put(key, query, body)
		if err != nil {
			return nil, err
		}
		request.Header.Set("If-None-Match", "*")
		if query == nil {
			request.Header.Set("X-Ms-Blob-Type", "BlockBlob")
		}
		return request, nil
	}, http.StatusCreated)
	if err != nil {
		return noBucket(err)
	}
	wire.Discard(response)
	return nil
}

func (s *Store) put(key string, query url.Values, body []byte) (*http.Request, error) {
	request, err := s.request(http.MethodPut, key, query, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	sum := md5.Sum(body)
	request.Header.Set("Content-Md5", base64.StdEncoding.EncodeToString(sum[:]))
	request.Header.Set("Content-Type", "application/octet-stream")
	return request, nil
}

// noBucket is what 404 means where a blob is created.
func noBucket(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("%w (HTTP status 404)", store.ErrNoBucket)
	}
	return err
}
