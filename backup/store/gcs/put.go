package gcs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"strings"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Put implements store.Store. Content that fits into one piece is sent in one request, the rest in a resumable upload.
func (s *Store) Put(ctx context.Context, name string, content io.Reader) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	doing := "cannot create " + name
	whole := func(piece []byte) error {
		return s.failed(doing, s.putOnce(wire.WithObjectSize(ctx, len(piece)), name, piece))
	}
	return wire.Upload(content, whole, func() (wire.Parts, error) {
		session, err := s.begin(ctx, name)
		return session, s.failed(doing, err)
	})
}

func (s *Store) uploadPath() string { return "/upload" + s.bucketPath() }

func (s *Store) createQuery(kind, name string) url.Values {
	return url.Values{"uploadType": {kind}, "name": {s.prefix + name}, "ifGenerationMatch": {"0"}}
}

// putOnce sends the content once: a repetition would find the object that the first request created.
func (s *Store) putOnce(ctx context.Context, name string, piece []byte) error {
	head, tail, contentType, err := multipartFrame(s.prefix+name, piece)
	if err != nil {
		return err
	}
	target := s.endpoint + s.uploadPath() + "?" + s.createQuery("multipart", name).Encode()
	response, err := s.client.DoOnce(ctx, func() (*http.Request, error) {
		body := io.MultiReader(strings.NewReader(head), bytes.NewReader(piece), strings.NewReader(tail))
		request, err := http.NewRequest(http.MethodPost, target, body)
		if err == nil {
			request.ContentLength = int64(len(head) + len(piece) + len(tail))
			request.Header.Set("Content-Type", contentType)
		}
		return request, err
	}, http.StatusOK)
	if err != nil {
		return wire.Created(nil, err)
	}
	defer wire.Discard(response)
	return s.confirm(response.Body, name, piece)
}

// confirm checks that a successful response is Google's, about these bytes: the object's resource
// (https://cloud.google.com/storage/docs/json_api/v1/objects/insert).
func (s *Store) confirm(answer io.Reader, name string, piece []byte) error {
	var created struct {
		Name     string `json:"name"`
		Size     int64  `json:"size,string"`
		Checksum string `json:"crc32c"`
	}
	if err := decode(answer, &created); err != nil {
		return wire.ErrUnexpectedResponse("the object's JSON")
	}
	if created.Name != s.prefix+name || created.Size != int64(len(piece)) || created.Checksum != encode(crc32.Checksum(piece, castagnoli)) {
		return wire.ErrUnexpectedResponse("the name, the size and the checksum of what was sent")
	}
	return nil
}

// multipartFrame returns the parts of a request before and after the content: the name, and a checksum with which the server detects damage in
// transit.
func multipartFrame(key string, piece []byte) (head, tail, contentType string, err error) {
	metadata, err := json.Marshal(map[string]string{"name": key, "crc32c": encode(crc32.Checksum(piece, castagnoli))})
	if err != nil {
		return "", "", "", err
	}
	boundary := rand.Text()
	head = "--" + boundary + "\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n" + string(metadata) +
		"\r\n--" + boundary + "\r\nContent-Type: application/octet-stream\r\n\r\n"
	return head, "\r\n--" + boundary + "--\r\n", "multipart/related; boundary=" + boundary, nil
}

func encode(sum uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
}
