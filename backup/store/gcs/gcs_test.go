package gcs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/storetest"
	"etcd-wrapper/backup/store/wire"
)

func against(t *testing.T, handler http.HandlerFunc) *Store {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	endpoint, err := url.Parse(server.URL)
	require.NoError(t, err)
	return open(t, endpoint, "bucket")
}

func refuse(w http.ResponseWriter, status int, reason, message string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":{"code":%d,"message":"%s SECRET","errors":[{"reason":%q}]}}`, status, message, reason)
}

// created answers as Google does to an object that was put in one request.
func created(w http.ResponseWriter, r *http.Request) {
	_, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil { // an upload in pieces begins
		w.Header().Set("Location", "/session")
		return
	}
	parts := multipart.NewReader(r.Body, parameters["boundary"])
	var object struct {
		Name     string `json:"name"`
		Checksum string `json:"crc32c"`
		Size     int64  `json:"size,string"`
	}
	if part, err := parts.NextPart(); err == nil {
		_ = json.NewDecoder(part).Decode(&object)
	}
	if part, err := parts.NextPart(); err == nil {
		object.Size, _ = io.Copy(io.Discard, part)
	}
	_ = json.NewEncoder(w).Encode(object)
}

func TestWhatGoogleAnswersBecomesAnErrorWithoutItsWords(t *testing.T) {
	var all sync.WaitGroup // they wait between attempts
	defer all.Wait()
	for _, one := range []struct {
		status          int
		reason, message string
		put, remove     error
	}{
		{412, "conditionNotMet", "", store.ErrExists, store.ErrExists},
		{401, "authError", "", store.ErrDenied, store.ErrDenied},
		{403, "forbidden", "", store.ErrDenied, store.ErrDenied},
		{403, "retentionPolicyNotMet", "", store.ErrLocked, store.ErrLocked},
		{403, "forbidden", "Object is under active Temporary hold", store.ErrLocked, store.ErrLocked},
		{403, "rateLimitExceeded", "", store.ErrUnavailable, store.ErrUnavailable},
		{404, "notFound", "", store.ErrNoBucket, nil},
		{429, "rateLimitExceeded", "", store.ErrUnavailable, store.ErrUnavailable},
		{500, "backendError", "", store.ErrUnavailable, store.ErrUnavailable},
		{503, "SECRET words", "", store.ErrUnavailable, store.ErrUnavailable},
	} {
		s := against(t, func(w http.ResponseWriter, _ *http.Request) { refuse(w, one.status, one.reason, one.message) })
		all.Go(func() {
			for _, length := range []int{1, wire.PieceSize + 1} {
				err := s.Put(t.Context(), "a", storetest.Pattern(1, length))
				assert.ErrorIs(t, err, one.put, one)
				assert.NotContains(t, err.Error(), "SECRET")
			}
			assert.ErrorIs(t, s.Delete(t.Context(), "a"), one.remove, one)
		})
	}
}

func TestClocksThatDifferAreToldApart(t *testing.T) {
	s := against(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
		refuse(w, http.StatusUnauthorized, "authError", "")
	})
	assert.ErrorIs(t, s.Delete(t.Context(), "a"), store.ErrSkewed)
}

// resumable is a server of one upload, with trouble on request.
type resumable struct {
	content  []byte
	spans    []string
	take     func(request int, body []byte) int // how many bytes of a request are kept; nil means all
	status   func(request int) int              // what a request is answered with, before it is read; nil means as usual
	checksum string                             // what is said to be stored; empty: the truth
	deleted  []string
}

func (u *resumable) serve(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPost:
		w.Header().Set("Location", "https://elsewhere.example/upload?uploadType=resumable&upload_id=U1")
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
		fmt.Fprintf(w, `{"crc32c":%q,"generation":"77"}`, sum)
		return
	}
	if len(u.content) > 0 {
		w.Header().Set("Range", fmt.Sprintf("bytes=0-%d", len(u.content)-1))
	}
	w.WriteHeader(http.StatusPermanentRedirect)
}

const length = wire.PieceSize + 5

func TestAnUploadGoesOnWhereTheServerStands(t *testing.T) {
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

func TestAnUploadThatGetsNowhereIsGivenUp(t *testing.T) {
	u := &resumable{status: func(int) int { return http.StatusServiceUnavailable }}
	s := against(t, u.serve)
	assert.ErrorIs(t, s.Put(t.Context(), "a", storetest.Pattern(1, length)), store.ErrUnavailable)
	require.Len(t, u.deleted, 1)
	assert.Contains(t, u.deleted[0], "upload_id=U1")
}

func TestAnUploadThatEndsEarlyIsGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	for name, one := range map[string]struct {
		ctx     context.Context
		content io.Reader
		want    error
	}{
		"content that cannot be read": {t.Context(), io.MultiReader(storetest.Pattern(1, length), iotest.ErrReader(io.ErrUnexpectedEOF)), io.ErrUnexpectedEOF},
		"the end of the context":      {ctx, io.MultiReader(storetest.Pattern(1, length), storetest.AtEnd(cancel)), context.Canceled},
	} {
		u := &resumable{}
		assert.ErrorIs(t, against(t, u.serve).Put(one.ctx, "a", one.content), one.want, name)
		if assert.Len(t, u.deleted, 1, name) {
			assert.Contains(t, u.deleted[0], "upload_id=U1")
		}
	}
}

func TestAnUploadThatWasDamagedIsRemoved(t *testing.T) {
	u := &resumable{checksum: "AAAAAA=="}
	s := against(t, u.serve)
	assert.ErrorIs(t, s.Put(t.Context(), "a", storetest.Pattern(1, length)), store.ErrUnavailable)
	assert.Contains(t, u.deleted[0], "generation=77")
	assert.NotContains(t, u.deleted[0], "upload_id")
}

func TestEveryRequestThatCreatesIsConditional(t *testing.T) {
	var asked []*url.URL
	u := &resumable{}
	s := against(t, func(w http.ResponseWriter, r *http.Request) {
		if asked = append(asked, r.URL); r.URL.Query().Get("uploadType") == "multipart" {
			body, _ := io.ReadAll(r.Body)
			assert.Contains(t, string(body), `"crc32c":"`+encode(crc32.Checksum([]byte("x"), castagnoli))+`"`)
			r.Body = io.NopCloser(bytes.NewReader(body))
			created(w, r)
			return
		}
		u.serve(w, r)
	})
	require.NoError(t, s.Put(t.Context(), "small", strings.NewReader("x")))
	require.NoError(t, s.Put(t.Context(), "large", storetest.Pattern(1, length)))
	for _, target := range asked[:2] {
		assert.Equal(t, "0", target.Query().Get("ifGenerationMatch"))
	}
}
