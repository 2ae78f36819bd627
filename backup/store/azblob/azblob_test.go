package azblob

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/storetest"
	"etcd-wrapper/backup/store/storetest/servers"
	"etcd-wrapper/backup/store/wire"
)

func against(t *testing.T, handler http.HandlerFunc) *Store {
	return open(t, storetest.Serve(t, handler), "container")
}

func withKey(t *testing.T) {
	t.Setenv("AZURE_STORAGE_KEY", base64.StdEncoding.EncodeToString([]byte("SECRET")))
}

// created responds like Azure after it has created a blob.
func created(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("X-Ms-Request-Id", "4f8b1a3c-101e-0000-0000-000000000000")
	w.WriteHeader(http.StatusCreated)
}

func TestAzure_requestFailures(t *testing.T) {
	withKey(t)
	storetest.RunErrors(t, storetest.Protocol{
		Open: func(t *testing.T, endpoint *url.URL) store.Store {
			s, err := New(wire.Place{Bucket: "container", Endpoint: endpoint}, "account")
			require.NoError(t, err)
			return s
		},
		Created: created,
		Deleted: http.StatusAccepted,
		WriteError: func(w http.ResponseWriter, r storetest.ErrorResponse) {
			w.Header().Set("X-Ms-Error-Code", r.Code)
			w.WriteHeader(r.Status)
			fmt.Fprint(w, "<Error><Message>SECRET</Message></Error>")
		},
		Exists:   storetest.ErrorResponse{Status: 409, Code: "BlobAlreadyExists", Create: store.ErrExists, Delete: store.ErrExists},
		Denied:   storetest.ErrorResponse{Status: 403, Code: "AuthorizationPermissionMismatch", Create: store.ErrDenied, Delete: store.ErrDenied},
		Locked:   storetest.ErrorResponse{Status: 409, Code: "BlobImmutableDueToPolicy", Create: store.ErrExists, Delete: store.ErrLocked},
		NoBucket: storetest.ErrorResponse{Status: 404, Code: "ContainerNotFound"},
		Others: []storetest.ErrorResponse{
			{Status: 412, Code: "ConditionNotMet", Create: store.ErrExists, Delete: store.ErrExists},
			{Status: 412, Code: "LeaseIdMissing", Create: store.ErrExists, Delete: store.ErrLocked},
			{Status: 403, Code: "AuthenticationFailed", Create: store.ErrDenied, Delete: store.ErrDenied},
			{Status: 400, Code: "InvalidBlockList", Create: store.ErrUnavailable, Delete: store.ErrUnavailable},
			{Status: 500, Code: "OperationTimedOut", Create: store.ErrUnavailable, Delete: store.ErrUnavailable},
			{Status: 503, Code: "ServerBusy", Create: store.ErrUnavailable, Delete: store.ErrUnavailable},
			{Status: 429, Create: store.ErrUnavailable, Delete: store.ErrUnavailable},
			{Status: 503, Code: "SECRET words", Create: store.ErrUnavailable, Delete: store.ErrUnavailable},
		},
		Page: "<EnumerationResults><Blobs><Blob><Name>a</Name><Properties><Content-Length>1</Content-Length>" +
			"<Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified></Properties></Blob></Blobs><NextMarker>next</NextMarker></EnumerationResults>",
	})
}

// The last request creates the blob and may be rejected after all blocks were accepted.
func TestACommitThatIsRefusedCreatesNothing(t *testing.T) {
	withKey(t)
	for code, want := range map[string]error{"BlobAlreadyExists": store.ErrExists, "InvalidBlockList": store.ErrUnavailable} {
		s := against(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("comp") == "block" {
				created(w, r)
				return
			}
			w.Header().Set("X-Ms-Error-Code", code)
			w.WriteHeader(http.StatusConflict)
		})
		assert.ErrorIs(t, s.Put(t.Context(), "a", storetest.Pattern(1, large)), want, code)
	}
}

const large = wire.PieceSize + 5

func TestEveryRequestThatCreatesIsConditional(t *testing.T) {
	withKey(t)
	var asked []*http.Request
	var list string
	s := against(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if asked = append(asked, r); r.URL.Query().Get("comp") == "blocklist" {
			list = string(body)
		}
		created(w, r)
	})
	require.NoError(t, s.Put(t.Context(), "small", strings.NewReader("x")))
	assert.Equal(t, "*", asked[0].Header.Get("If-None-Match"))
	assert.Equal(t, "BlockBlob", asked[0].Header.Get("X-Ms-Blob-Type"))
	require.NoError(t, s.Put(t.Context(), "large", storetest.Pattern(1, large)))
	require.Len(t, asked, 4)
	assert.Equal(t, "*", asked[3].Header.Get("If-None-Match"))
	first, second := asked[1].URL.Query().Get("blockid"), asked[2].URL.Query().Get("blockid")
	assert.Less(t, strings.Index(list, first), strings.Index(list, second))
	for _, r := range asked {
		assert.NotEmpty(t, r.Header.Get("Content-Md5"))
	}
	require.NoError(t, s.Put(t.Context(), "large", storetest.Pattern(1, large)))
	assert.NotEqual(t, first, asked[4].URL.Query().Get("blockid"), "another upload has blocks of its own")
	assert.Len(t, asked[4].URL.Query().Get("blockid"), len(first), "of the same length, as Azure wants")
}

func TestSharedAccessSignature_onlyInTheQuery(t *testing.T) {
	t.Setenv("AZURE_STORAGE_KEY", "")
	t.Setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=2021-12-02&sig=SECRET%2Bx%3D\n") // the trailing newline is typical of a Secret created from a file
	s := against(t, func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "SECRET+x=", r.URL.Query().Get("sig"))
		assert.Equal(t, "2021-12-02", r.URL.Query().Get("sv"))
		connection, _, err := http.NewResponseController(w).Hijack()
		if assert.NoError(t, err) {
			_ = connection.Close()
		}
	})
	err := s.Put(t.Context(), "a", strings.NewReader("x"))
	assert.ErrorIs(t, err, store.ErrUnavailable)
	assert.NotContains(t, err.Error(), "SECRET")
}

// awkward is a prefix with characters that must be escaped in URLs or signatures.
const awkward = "pre fix/ü+%41&=;@:#/"

func TestAzureKeepsTheContractOnAServer(t *testing.T) {
	endpoint := servers.Azure(t)
	made := 0
	next := func(t *testing.T) string {
		made++
		name := fmt.Sprintf("container-%d", made)
		return makeContainer(t, opened(t, endpoint, name), name)
	}
	storetest.Run(t, storetest.Subject{
		Open:   func(t *testing.T) store.Store { return opened(t, endpoint, next(t)) },
		Server: endpoint,
		Through: func(t *testing.T, proxied *url.URL) store.Store {
			return opened(t, proxied, next(t))
		},
		Missing: func(t *testing.T) store.Store { return opened(t, endpoint, "missing") },
		Denied: func(t *testing.T) store.Store {
			existing := next(t)
			t.Setenv("AZURE_STORAGE_KEY", "YW5vdGhlcg==")
			return open(t, endpoint, existing)
		},
	})
}

func makeContainer(t *testing.T, s *Store, name string) string {
	request := wire.Request{Method: http.MethodPut, URL: s.url(""), Query: url.Values{"restype": {"container"}}}
	_, err := s.Send(t.Context(), request, nil, http.StatusCreated)
	require.NoError(t, err)
	return name
}

// opened returns a store that uses the server's account key.
func opened(t *testing.T, endpoint *url.URL, container string) *Store {
	t.Setenv("AZURE_STORAGE_KEY", servers.AzureKey)
	return open(t, endpoint, container)
}

func open(t *testing.T, endpoint *url.URL, container string) *Store {
	s, err := New(wire.Place{Bucket: container, Prefix: awkward, Endpoint: endpoint}, servers.AzureAccount)
	require.NoError(t, err)
	return s
}
