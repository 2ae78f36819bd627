package gcs

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/storetest"
	"etcd-wrapper/backup/store/storetest/servers"
	"etcd-wrapper/backup/store/wire"
)

func against(t *testing.T, handler http.HandlerFunc) *Store {
	return open(t, storetest.Serve(t, handler), "bucket")
}

func refuse(w http.ResponseWriter, r storetest.ErrorResponse) {
	w.WriteHeader(r.Status)
	fmt.Fprintf(w, `{"error":{"code":%d,"message":"%s SECRET","errors":[{"reason":%q}]}}`, r.Status, r.Message, r.Code)
}

// created responds like Google after it has created an object or started an upload.
func created(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("uploadType") == "resumable" {
		w.Header().Set("Location", "https://elsewhere.example/upload?uploadType=resumable&upload_id=U1")
		return
	}
	content, _ := io.ReadAll(r.Body)
	_ = json.NewEncoder(w).Encode(map[string]string{
		"name": r.URL.Query().Get("name"), "crc32c": encode(crc32.Checksum(content, castagnoli)), "generation": "77",
	})
}

func TestGCS_requestFailures(t *testing.T) {
	unavailable := func(status int, code string) storetest.ErrorResponse {
		return storetest.ErrorResponse{Status: status, Code: code, Create: store.ErrUnavailable, Delete: store.ErrUnavailable}
	}
	storetest.RunErrors(t, storetest.Protocol{
		Open: func(t *testing.T, endpoint *url.URL) store.Store {
			s, err := New(wire.Place{Bucket: "bucket", Endpoint: endpoint})
			require.NoError(t, err)
			return s
		},
		Created:    created,
		Deleted:    http.StatusNoContent,
		WriteError: refuse,
		Exists:     storetest.ErrorResponse{Status: 412, Code: "conditionNotMet", Create: store.ErrExists, Delete: store.ErrExists},
		Denied:     storetest.ErrorResponse{Status: 403, Code: "forbidden", Create: store.ErrDenied, Delete: store.ErrDenied},
		Locked:     storetest.ErrorResponse{Status: 403, Code: "retentionPolicyNotMet", Create: store.ErrExists, Delete: store.ErrLocked},
		NoBucket:   storetest.ErrorResponse{Status: 404, Code: "notFound"},
		Others: []storetest.ErrorResponse{
			{Status: 401, Code: "authError", Create: store.ErrDenied, Delete: store.ErrDenied},
			{Status: 403, Code: "forbidden", Message: "Object is under active Temporary hold", Create: store.ErrExists, Delete: store.ErrLocked},
			{Status: 404, Code: "notFound", Create: store.ErrNoBucket},
			unavailable(403, "rateLimitExceeded"), unavailable(429, "rateLimitExceeded"), unavailable(500, "backendError"),
			unavailable(503, "SECRET words"),
		},
		Page: `{"kind":"storage#objects","nextPageToken":"next","items":[{"name":"a","size":"1","timeCreated":"2026-01-01T00:00:00Z"}]}`,
	})
}

// resumable is a server that accepts one resumable upload and can fail.
type resumable struct {
	content  []byte
	spans    []string
	take     func(request int, body []byte) int // number of request bytes to keep; nil keeps all
	status   func(request int) int              // response status before the request is read; nil sends a normal response
	checksum string                             // checksum in the response; empty for the correct one
	deleted  []string
}

func (u *resumable) serve(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPost:
		created(w, r)
	case http.MethodDelete:
		u.deleted = append(u.deleted, r.URL.String())
		w.WriteHeader(http.StatusNoContent)
	case http.MethodPut:
		u.put(w, r)
	}
}

func (u *resumable) put(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	span := r.Header.Get("Content-Range")
	u.spans = append(u.spans, span)
	request := len(u.spans)
	if u.status != nil && u.status(request) != 0 {
		w.WriteHeader(u.status(request))
		return
	}
	if u.take != nil {
		body = body[:u.take(request, body)]
	}
	u.content = append(u.content, body...)
	_, total, _ := strings.Cut(span, "/")
	if total == fmt.Sprint(len(u.content)) {
		sum := u.checksum
		if sum == "" {
			sum = encode(crc32.Checksum(u.content, castagnoli))
		}
		fmt.Fprintf(w, `{"name":%q,"crc32c":%q,"generation":"77"}`, awkward+"a", sum)
		return
	}
	if len(u.content) > 0 {
		w.Header().Set("Range", fmt.Sprintf("bytes=0-%d", len(u.content)-1))
	}
	w.WriteHeader(http.StatusPermanentRedirect)
}

const length = wire.PieceSize + 5

func TestAnUploadResumesAtTheServersPosition(t *testing.T) {
	for name, u := range map[string]*resumable{
		"nothing goes wrong":        {},
		"a piece is refused":        {status: func(request int) int { return map[int]int{1: 503}[request] }},
		"the last piece is refused": {status: func(request int) int { return map[int]int{2: 503}[request] }},
		"half a piece is kept": {take: func(request int, body []byte) int {
			if request == 1 {
				return len(body) / 2
			}
			return len(body)
		}},
	} {
		s := against(t, u.serve)
		require.NoError(t, s.Put(t.Context(), "a", storetest.Pattern(1, length)), name)
		want, err := io.ReadAll(storetest.Pattern(1, length))
		require.NoError(t, err)
		assert.True(t, string(want) == string(u.content), name)
		assert.Equal(t, fmt.Sprintf("/%d", length), u.spans[len(u.spans)-1][strings.Index(u.spans[len(u.spans)-1], "/"):])
	}
}

func TestAnUploadThatCannotContinueIsAborted(t *testing.T) {
	u := &resumable{status: func(int) int { return http.StatusServiceUnavailable }}
	s := against(t, u.serve)
	assert.ErrorIs(t, s.Put(t.Context(), "a", storetest.Pattern(1, length)), store.ErrUnavailable)
	require.Len(t, u.deleted, 1)
	assert.Contains(t, u.deleted[0], "upload_id=U1")
}

func TestAnUploadThatEndsEarlyIsAborted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	for name, one := range map[string]struct {
		ctx     context.Context
		content io.Reader
		want    error
	}{
		"content that cannot be read": {t.Context(), io.MultiReader(storetest.Pattern(1, length), iotest.ErrReader(io.ErrUnexpectedEOF)), io.ErrUnexpectedEOF},
		"the end of the context":      {ctx, io.MultiReader(storetest.Pattern(1, length), storetest.Broken(func() error { cancel(); return io.EOF })), context.Canceled},
	} {
		u := &resumable{}
		assert.ErrorIs(t, against(t, u.serve).Put(one.ctx, "a", one.content), one.want, name)
		if assert.Len(t, u.deleted, 1, name) {
			assert.Contains(t, u.deleted[0], "upload_id=U1")
		}
	}
}

func TestADamagedUploadIsRemoved(t *testing.T) {
	for _, length := range []int{5, length} {
		u := &resumable{checksum: "AAAAAA=="}
		s := against(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("uploadType") == "media" {
				fmt.Fprintf(w, `{"name":%q,"crc32c":%q,"generation":"77"}`, awkward+"a", u.checksum)
				return
			}
			u.serve(w, r)
		})
		err := s.Put(t.Context(), "a", storetest.Pattern(1, length))
		assert.ErrorIs(t, err, store.ErrUnavailable)
		assert.ErrorContains(t, err, "the upload was corrupted in transit")
		assert.Contains(t, u.deleted[0], "generation=77")
		assert.NotContains(t, u.deleted[0], "upload_id")
	}
}

func TestEveryRequestThatCreatesIsConditional(t *testing.T) {
	var asked []*http.Request
	s := against(t, func(w http.ResponseWriter, r *http.Request) {
		if asked = append(asked, r); r.Method == http.MethodPost {
			created(w, r)
			return
		}
		assert.Equal(t, "U1", r.URL.Query().Get("upload_id"))
		w.WriteHeader(http.StatusTeapot)
	})
	require.NoError(t, s.Put(t.Context(), "small", strings.NewReader("x")))
	assert.Error(t, s.Put(t.Context(), "large", storetest.Pattern(1, length)))
	for _, r := range asked[:2] {
		assert.Equal(t, "0", r.URL.Query().Get("ifGenerationMatch"))
	}
	assert.Equal(t, "crc32c="+encode(crc32.Checksum([]byte("x"), castagnoli)), asked[0].Header.Get("X-Goog-Hash"))
}

// awkward is a prefix with characters that must be escaped in URLs or signatures.
const awkward = "pre fix/ü+%41&=;@:/"

func TestGCSKeepsTheContractOnAServer(t *testing.T) {
	endpoint := servers.GCS(t)
	made := 0
	next := func(t *testing.T) string {
		made++
		return makeBucket(t, endpoint, fmt.Sprintf("bucket-%d", made))
	}
	storetest.Run(t, storetest.Subject{
		Open:   func(t *testing.T) store.Store { return open(t, endpoint, next(t)) },
		Server: endpoint,
		Through: func(t *testing.T, proxied *url.URL) store.Store {
			return open(t, proxied, next(t))
		},
		Missing: func(t *testing.T) store.Store { return open(t, endpoint, "missing") },
	})
}

func makeBucket(t *testing.T, endpoint *url.URL, name string) string {
	target := endpoint.JoinPath("storage/v1/b").String() + "?project=test"
	response, err := http.Post(target, "application/json", strings.NewReader(fmt.Sprintf(`{"name":%q}`, name)))
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
	return name
}

func open(t *testing.T, endpoint *url.URL, bucket string) *Store {
	s, err := New(wire.Place{Bucket: bucket, Prefix: awkward, Endpoint: endpoint})
	require.NoError(t, err)
	return s
}
