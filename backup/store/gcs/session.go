package gcs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/url"
	"time"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

// session is a resumable upload.
type session struct {
	store  *Store
	ctx    context.Context
	name   string // of the object
	target string // of the upload
	sent   int64  // bytes that the server has
	sum    uint32 // of these
}

// begin opens a session. Its address uses our endpoint regardless of the host in the response, so that the token goes nowhere else.
func (s *Store) begin(ctx context.Context, name string) (*session, error) {
	response, err := s.client.Do(
		ctx, s.request(http.MethodPost, s.uploadPath(), s.createQuery("resumable", name)), http.StatusOK)
	if err := wire.Created(response, err); err != nil {
		return nil, err
	}
	location, err := url.Parse(response.Header.Get("Location"))
	if err != nil || location.Query().Get("upload_id") == "" {
		return nil, errors.New("the server opened an upload without an address")
	}
	target := s.endpoint + s.uploadPath() + "?" + location.RawQuery
	return &session{store: s, ctx: ctx, name: name, target: target}, nil
}

// Send implements wire.Parts.
func (u *session) Send(piece []byte, last bool) error {
	return u.store.failed("cannot create "+u.name, u.sendChunk(piece, last))
}

// sendChunk sends one piece. After a failure it asks the server how much arrived, and sends the rest.
func (u *session) sendChunk(piece []byte, last bool) error {
	begin, end := u.sent, u.sent+int64(len(piece))
	u.sum = crc32.Update(u.sum, castagnoli, piece)
	for attempt := range 3 {
		err := u.rest(piece[u.sent-begin:], last)
		if !errors.Is(err, store.ErrUnavailable) || attempt == 2 {
			return err
		}
		done, err := u.queryOffset(begin, end, last)
		if done || err != nil {
			return err
		}
	}
	return nil
}

// rest sends bytes from the server's position. The last request carries the checksum of all.
func (u *session) rest(piece []byte, last bool) error {
	end, total := u.sent+int64(len(piece)), "*"
	if last {
		total = fmt.Sprint(end)
	}
	span := fmt.Sprintf("bytes %d-%d/%s", u.sent, end-1, total)
	if len(piece) == 0 {
		span = "bytes */" + total
	}
	response, err := u.put(piece, span, last)
	if err != nil {
		return translateMissing(err)
	}
	defer wire.Discard(response)
	if last {
		return u.finished(response)
	}
	if have := receivedBytes(response); have != end {
		u.sent = max(u.sent, min(have, end))
		return &store.Unavailable{Cause: fmt.Errorf("the server accepted %d bytes of %d", have, end)}
	}
	u.sent = end
	return nil
}

func (u *session) put(piece []byte, span string, last bool) (*http.Response, error) {
	accepted := http.StatusPermanentRedirect // "resume incomplete" here
	if last {
		accepted = http.StatusOK
	}
	return u.store.client.DoOnce(u.ctx, func() (*http.Request, error) {
		request, err := http.NewRequest(http.MethodPut, u.target, bytes.NewReader(piece))
		if err == nil {
			request.Header.Set("Content-Range", span)
		}
		if err == nil && last {
			request.Header.Set("X-Goog-Hash", "crc32c="+encode(u.sum))
		}
		return request, err
	}, accepted)
}

// translateMissing translates a 404 in an upload, which was discarded, or completed with the reply lost.
func translateMissing(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return &store.Unavailable{Cause: errors.New("the server does not know the upload any more")}
	}
	return err
}

// receivedBytes returns the number of bytes that the server reports to have.
func receivedBytes(response *http.Response) int64 {
	var end int64
	if _, err := fmt.Sscanf(response.Header.Get("Range"), "bytes=0-%d", &end); err != nil {
		return 0
	}
	return end + 1
}

// queryOffset updates the number of bytes that the server has, and reports whether the upload is complete.
func (u *session) queryOffset(begin, end int64, last bool) (done bool, err error) {
	total := "*"
	if last {
		total = fmt.Sprint(end)
	}
	response, err := u.store.client.Do(u.ctx, func() (*http.Request, error) {
		request, err := http.NewRequest(http.MethodPut, u.target, nil)
		if err == nil {
			request.Header.Set("Content-Range", "bytes */"+total)
		}
		return request, err
	}, http.StatusPermanentRedirect, http.StatusOK)
	if err != nil {
		return false, translateMissing(err)
	}
	defer wire.Discard(response)
	if response.StatusCode == http.StatusOK {
		return true, u.finished(response)
	}
	if u.sent = receivedBytes(response); u.sent < begin || u.sent > end {
		return false, &store.Unavailable{Cause: errors.New("the server lost a part of the upload")}
	}
	return u.sent == end && !last, nil
}

// finished compares checksums. The server has compared them before if it knows the header. A damaged object is deleted.
func (u *session) finished(response *http.Response) error {
	var stored struct {
		Checksum   string `json:"crc32c"`
		Generation string `json:"generation"`
	}
	if err := decode(response.Body, &stored); err != nil {
		return err
	}
	if stored.Checksum == encode(u.sum) {
		return nil
	}
	removing := u.store.request(http.MethodDelete, u.store.objectPath(u.name), url.Values{"generation": {stored.Generation}})
	if response, err := u.store.client.Do(u.ctx, removing, http.StatusOK, http.StatusNoContent); err == nil {
		wire.Discard(response)
		return &store.Unavailable{Cause: errors.New("the upload was damaged on the way")}
	}
	return errors.New("the upload was damaged on the way, and what was stored could not be removed: delete it")
}

// Abort implements wire.Parts. Without it the session would expire in a week.
func (u *session) Abort() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(u.ctx), 5*time.Second)
	defer cancel()
	response, err := u.store.client.DoOnce(ctx, func() (*http.Request, error) {
		return http.NewRequest(http.MethodDelete, u.target, nil)
	}, http.StatusNoContent, 499)
	if err == nil {
		wire.Discard(response)
	}
}
