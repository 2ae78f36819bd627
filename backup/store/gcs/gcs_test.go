package gcs

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

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

// created responds as Google does after it has created an object or started an upload.
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
			s, err := New(wire.Location{Bucket: "bucket", Endpoint: endpoint})
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

// resumable is a server that accepts one resumable upload and can simulate failures.
type resumable struct {
	content  []byte
	spans    []string
	take     func(request int, body []byte) int // number of request bytes to keep; nil keeps all
	status   func(request int) int              // response status that is sent without reading the request; nil sends a normal response
	checksum string                             // checksum in the response; empty for the correct checksum
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
		"no failure":           {},
		"first piece rejected": {status: func(request int) int { return map[int]int{1: 503}[request] }},
		"last piece rejected":  {status: func(request int) int { return map[int]int{2: 503}[request] }},
		"half a piece kept": {take: func(request int, body []byte) int {
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
		"unreadable content": {t.Context(), io.MultiReader(storetest.Pattern(1, length), iotest.ErrReader(io.ErrUnexpectedEOF)), io.ErrUnexpectedEOF},
		"canceled context":   {ctx, io.MultiReader(storetest.Pattern(1, length), storetest.Broken(func() error { cancel(); return io.EOF })), context.Canceled},
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
	s, err := New(wire.Location{Bucket: bucket, Prefix: awkward, Endpoint: endpoint})
	require.NoError(t, err)
	return s
}

// grant responds with a new token.
func grant(w http.ResponseWriter, granted *int) {
	*granted++
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"access_token":"token-%d","issued_token_type":"x","token_type":"Bearer","expires_in":3600}`, *granted)
}

// useKeyFile writes content to a file and uses it as the credentials file.
func useKeyFile(t *testing.T, content []byte) (path string) {
	path = filepath.Join(t.TempDir(), "key.json")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", path)
	return path
}

// startTokenServer starts a token server and returns the credentials of a service account that uses the server.
func startTokenServer(t *testing.T, grant http.HandlerFunc) (keyFile []byte) {
	server := storetest.Serve(t, grant)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	account, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "backup@example.test", "token_uri": server.String(),
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})),
	})
	require.NoError(t, err)
	return account
}

func TestTokensAreFetchedForTheKeyFileAndAgainWhenItChanges(t *testing.T) {
	granted := 0
	account := startTokenServer(t, func(w http.ResponseWriter, _ *http.Request) { grant(w, &granted) })
	path := useKeyFile(t, account)
	tokens := newTokens()
	for i, want := range []string{"Bearer token-1", "Bearer token-1", "Bearer token-2"} {
		if i != 1 {
			require.NoError(t, os.WriteFile(path, append(account, strings.Repeat(" ", i)...), 0o600))
		}
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		require.NoError(t, tokens.Authorize(request))
		assert.Equal(t, want, request.Header.Get("Authorization"))
	}
}

func TestRejectedToken_errorHidesResponse(t *testing.T) {
	for status, want := range map[int]error{400: store.ErrDenied, 401: store.ErrDenied, 503: store.ErrUnavailable} {
		account := startTokenServer(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, `{"error":"invalid_grant","error_description":"SECRET"}`)
		})
		useKeyFile(t, account)
		tokens := newTokens()
		err := tokens.Authorize(httptest.NewRequest(http.MethodGet, "/", nil))
		assert.ErrorIs(t, err, want, status)
		assert.NotContains(t, err.Error(), "SECRET")
	}
	useKeyFile(t, []byte("SECRET"))
	tokens := newTokens()
	err := tokens.Authorize(httptest.NewRequest(http.MethodGet, "/", nil))
	assert.ErrorIs(t, err, store.ErrDenied)
	assert.NotContains(t, err.Error(), "SECRET")
}

func TestTokenRequest_endsWithTheRequest(t *testing.T) {
	account := startTokenServer(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a server notices a disconnected client only after reading the body
		<-r.Context().Done()
	})
	useKeyFile(t, account)
	tokens := newTokens()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := tokens.Authorize(httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
	assert.ErrorIs(t, err, context.DeadlineExceeded)
}

// With workload identity federation, a renewed token file must be used for the next token.
func TestFederationExchangesItsTokenFile(t *testing.T) {
	var exchanged []string
	granted := 0
	issuer := storetest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		exchanged = append(exchanged, r.PostFormValue("subject_token"))
		grant(w, &granted)
	})
	subject := filepath.Join(t.TempDir(), "token")
	account, err := json.Marshal(map[string]any{
		"type": "external_account", "audience": "//iam.googleapis.com/projects/1/x", "token_url": issuer.String(),
		"subject_token_type": "urn:ietf:params:oauth:token-type:jwt", "credential_source": map[string]string{"file": subject},
	})
	require.NoError(t, err)
	useKeyFile(t, account)
	tokens := newTokens()
	for i, token := range []string{"first", "second"} {
		require.NoError(t, os.WriteFile(subject, []byte(token), 0o600))
		got, err := authorized(t, tokens)
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprintf("Bearer token-%d", i+1), got)
		tokens.Expire(http.StatusUnauthorized)
	}
	assert.Equal(t, []string{"first", "second"}, exchanged)
}

// Credentials must be sent only to a server that the CA bundle trusts, and a rejected token must be replaced.
func TestAnExpiredTokenIsReplaced(t *testing.T) {
	granted := 0
	account := startTokenServer(t, func(w http.ResponseWriter, _ *http.Request) { grant(w, &granted) })
	useKeyFile(t, account)
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer token-1" {
			refuse(w, storetest.ErrorResponse{Status: http.StatusUnauthorized, Code: "authError"})
			return
		}
	}))
	t.Cleanup(server.Close)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	require.NoError(t, os.WriteFile(bundle, certificate, 0o600))
	endpoint, err := url.Parse(server.URL)
	require.NoError(t, err)
	s, err := New(wire.Location{Bucket: "bucket", Endpoint: endpoint, CAPath: bundle})
	require.NoError(t, err)
	assert.ErrorIs(t, s.Delete(t.Context(), "a"), store.ErrDenied)
	assert.NoError(t, s.Delete(t.Context(), "a"))
	assert.NoError(t, s.Delete(t.Context(), "a"))
	assert.Equal(t, 2, granted, "an unexpired token must be reused")
}

// metadata starts a metadata server and configures the client to use it.
func metadata(t *testing.T, answer http.HandlerFunc) *httptest.Server {
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
	t.Setenv("HOME", t.TempDir())
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	t.Setenv("GCE_METADATA_HOST", server.Listener.Addr().String())
	return server
}

func authorized(t *testing.T, tokens *wire.Tokens) (string, error) {
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	err := tokens.Authorize(request)
	return request.Header.Get("Authorization"), err
}

func TestTheMachinesTokenIsUsedUntilItExpiresOrIsRefused(t *testing.T) {
	granted, lasts := 0, 3600
	metadata(t, func(w http.ResponseWriter, r *http.Request) {
		granted++
		assert.Equal(t, "Google", r.Header.Get("Metadata-Flavor"))
		assert.Equal(t, "/computeMetadata/v1/instance/service-accounts/default/token", r.URL.Path)
		assert.Equal(t, scope, r.URL.Query().Get("scopes"))
		fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"Bearer","expires_in":%d}`, granted, lasts)
	})
	tokens := newTokens()
	expect := func(want string) {
		t.Helper()
		got, err := authorized(t, tokens)
		require.NoError(t, err)
		assert.Equal(t, "Bearer "+want, got)
	}
	expect("token-1")
	expect("token-1")
	tokens.Expire(http.StatusUnauthorized)
	lasts = 1 // tokens expire immediately
	expect("token-2")
	expect("token-3")
}

func TestAMetadataServerThatStartsLaterIsFound(t *testing.T) {
	status := http.StatusServiceUnavailable
	server := metadata(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, `{"access_token":"token","token_type":"Bearer","expires_in":3600,"note":"SECRET"}`)
	})
	address := server.Listener.Addr().String()
	t.Setenv("GCE_METADATA_HOST", "127.0.0.1:1")
	tokens := newTokens()
	_, err := authorized(t, tokens)
	assert.ErrorIs(t, err, store.ErrDenied)
	assert.ErrorContains(t, err, "the metadata server does not respond")
	t.Setenv("GCE_METADATA_HOST", address)
	for answered, want := range map[int]error{http.StatusServiceUnavailable: store.ErrUnavailable, http.StatusNotFound: store.ErrDenied} {
		status = answered
		_, err = authorized(t, tokens)
		assert.ErrorIs(t, err, want)
		assert.NotContains(t, err.Error(), "SECRET")
	}
	status = http.StatusOK
	got, err := authorized(t, tokens)
	require.NoError(t, err)
	assert.Equal(t, "Bearer token", got)
}
