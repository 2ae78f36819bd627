package gcs

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/url"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// upload creates a small object in a single request and a large object in a resumable upload.
type upload struct {
	store   *Store
	key     string
	target  wire.Request // URL of the resumable upload
	sent    int64        // number of bytes received by the server
	sum     uint32       // CRC32C of all pieces so far
	created bool
}

func (s *Store) upload(key string) wire.Upload { return &upload{store: s, key: key} }

// request returns a request that creates an object or starts its upload.
func (u *upload) request(kind string) wire.Request {
	query := url.Values{"uploadType": {kind}, "name": {u.key}, "ifGenerationMatch": {"0"}}
	return wire.Request{Method: http.MethodPost, URL: u.store.uploads, Query: query}
}

// Create implements wire.Upload.
func (u *upload) Create(ctx context.Context, content []byte) error {
	u.sum = crc32.Checksum(content, castagnoli)
	request := u.request("media")
	request.Body, request.Header, request.Once = content, u.hash(), true
	return u.send(ctx, request, http.StatusOK)
}

// hash returns the header that lets the server detect corruption before it creates the object.
func (u *upload) hash() map[string]string {
	return map[string]string{"X-Goog-Hash": "crc32c=" + encode(u.sum)}
}

// Start implements wire.Upload. Start ignores the host in the response and keeps using the configured endpoint, so
// that no other host receives the token.
func (u *upload) Start(ctx context.Context) error {
	response, err := u.store.Send(ctx, u.request("resumable"), nil, http.StatusOK)
	if err != nil {
		return err
	}
	location, err := url.Parse(response.Header.Get("Location"))
	if err != nil || location.Query().Get("upload_id") == "" {
		return wire.ErrUnexpectedResponse("an upload URL")
	}
	u.target = wire.Request{Method: http.MethodPut, URL: u.store.uploads, Query: location.Query()}
	return nil
}

// Part implements wire.Upload. After a failure, Part asks the server how many bytes arrived and sends the rest.
func (u *upload) Part(ctx context.Context, piece []byte, last bool) error {
	begin, end, total := u.sent, u.sent+int64(len(piece)), "*"
	u.sum = crc32.Update(u.sum, castagnoli, piece)
	if last {
		total = fmt.Sprint(end)
	}
	for attempt := range 3 {
		err := u.sendFrom(ctx, piece[u.sent-begin:], total)
		if errors.Is(err, store.ErrUnavailable) && !u.created && attempt < 2 {
			query := u.target
			query.Header = map[string]string{"Content-Range": "bytes */" + total}
			err = u.send(ctx, query, http.StatusOK, http.StatusPermanentRedirect)
		}
		switch {
		case err != nil || u.created:
			return err
		case u.sent < begin || u.sent > end:
			return &store.Unavailable{Cause: errors.New("the server lost part of the upload")}
		case u.sent == end && !last:
			return nil
		}
	}
	return &store.Unavailable{Cause: fmt.Errorf("the server accepted only %d of %d bytes", u.sent, end)}
}

// sendFrom sends bytes starting at the server's position. The last request contains the checksum of all bytes.
func (u *upload) sendFrom(ctx context.Context, rest []byte, total string) error {
	request := u.target
	request.Body, request.Once, request.Header = rest, true, map[string]string{}
	if total != "*" {
		request.Header = u.hash()
	}
	request.Header["Content-Range"] = "bytes */" + total
	if len(rest) > 0 {
		request.Header["Content-Range"] = fmt.Sprintf("bytes %d-%d/%s", u.sent, u.sent+int64(len(rest))-1, total)
	}
	return u.send(ctx, request, http.StatusOK, http.StatusPermanentRedirect)
}

// send sends a request. The response contains either the number of received bytes or the metadata of the created
// object (https://cloud.google.com/storage/docs/json_api/v1/objects/insert). If the server does not support the
// checksum header, the object may be corrupted and is deleted.
func (u *upload) send(ctx context.Context, request wire.Request, accepted ...int) error {
	var stored struct {
		Name       string `json:"name"`
		Checksum   string `json:"crc32c"`
		Generation string `json:"generation"`
	}
	response, err := u.store.Send(ctx, request, &stored, accepted...)
	switch {
	case errors.Is(err, store.ErrNotFound) && u.target.URL != "": // discarded, or completed but the reply was lost
		return &store.Unavailable{Cause: errors.New("the upload session no longer exists")}
	case err != nil:
		return err
	case response.StatusCode == http.StatusPermanentRedirect: // means "resume incomplete" in Google Cloud Storage
		u.sent = 0
		if _, err := fmt.Sscanf(response.Header.Get("Range"), "bytes=0-%d", &u.sent); err == nil {
			u.sent++
		}
		return nil
	case stored.Name != u.key || stored.Generation == "":
		return wire.ErrUnexpectedResponse("the object metadata")
	}
	u.created = true
	if stored.Checksum != encode(u.sum) {
		return u.remove(ctx, stored.Generation)
	}
	return nil
}

func (u *upload) remove(ctx context.Context, generation string) error {
	removal := wire.Request{Method: http.MethodDelete, URL: u.store.url(u.key), Query: url.Values{"generation": {generation}}}
	if _, err := u.store.Send(ctx, removal, nil, u.store.Deleted...); err != nil && !errors.Is(err, store.ErrNotFound) {
		return errors.New("the upload was corrupted in transit and the object could not be deleted; delete the object manually")
	}
	return &store.Unavailable{Cause: errors.New("the upload was corrupted in transit")}
}

// Abort implements wire.Upload. Uploads that are not aborted expire after a week.
func (u *upload) Abort(ctx context.Context) {
	request := u.target
	request.Method, request.Once = http.MethodDelete, true
	_, _ = u.store.Send(ctx, request, nil, http.StatusNoContent, 499)
}

func encode(sum uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
}
