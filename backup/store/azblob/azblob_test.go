package azblob

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// created responds as Azure does after it has created a blob.
func created(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("X-Ms-Request-Id", "4f8b1a3c-101e-0000-0000-000000000000")
	w.WriteHeader(http.StatusCreated)
}

func TestAzure_requestFailures(t *testing.T) {
	withKey(t)
	storetest.RunErrors(t, storetest.Protocol{
		Open: func(t *testing.T, endpoint *url.URL) store.Store {
			s, err := New(wire.Location{Bucket: "container", Endpoint: endpoint}, "account")
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

func TestNew_containerNames(t *testing.T) {
	for name, valid := range map[string]bool{
		"a-b": true, "abc": true, strings.Repeat("a-", 31) + "a": true,
		"ab": false, "-ab": false, "ab-": false, "a--b": false, "A-b": false, "a_b": false, "a.b": false, strings.Repeat("a-", 32): false,
		strings.Repeat("a-", 32) + "a": false, strings.Repeat("a", 64): false,
	} {
		_, err := New(wire.Location{Bucket: name}, "account")
		if valid {
			assert.NoError(t, err, name)
		} else {
			assert.ErrorContains(t, err, "invalid container name", name)
		}
	}
}

// Put must return an error if the last request is rejected, even though all blocks were accepted.
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
	assert.NotEqual(t, first, asked[4].URL.Query().Get("blockid"), "each upload must use its own block IDs")
	assert.Len(t, asked[4].URL.Query().Get("blockid"), len(first), "all block IDs must have the same length")
}

func TestSharedAccessSignature_onlyInTheQuery(t *testing.T) {
	t.Setenv("AZURE_STORAGE_KEY", "")
	t.Setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=2021-12-02&sig=SECRET%2Bx%3D\n") // a Secret created from a file often ends with a newline
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

// opened returns a store that authenticates with the server's account key.
func opened(t *testing.T, endpoint *url.URL, container string) *Store {
	t.Setenv("AZURE_STORAGE_KEY", servers.AzureKey)
	return open(t, endpoint, container)
}

func open(t *testing.T, endpoint *url.URL, container string) *Store {
	s, err := New(wire.Location{Bucket: container, Prefix: awkward, Endpoint: endpoint}, servers.AzureAccount)
	require.NoError(t, err)
	return s
}

func TestAnAccessTokenComesFromEachSource(t *testing.T) {
	assertion := filepath.Join(t.TempDir(), "assertion")
	require.NoError(t, os.WriteFile(assertion, []byte("assertion\n"), 0o600))
	for name, one := range map[string]struct {
		environment map[string]string
		asked       string            // method and URL of the expected request
		form        map[string]string // expected values in the request
	}{
		"workload identity": {
			map[string]string{"AZURE_FEDERATED_TOKEN_FILE": assertion, "AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "client"},
			"POST login.microsoftonline.com/tenant/oauth2/v2.0/token",
			map[string]string{"client_id": "client", "client_assertion": "assertion", "scope": "https://storage.azure.com/.default"},
		},
		"client secret": {
			map[string]string{"AZURE_CLIENT_SECRET": "SECRET", "AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "client"},
			"POST login.microsoftonline.com/tenant/oauth2/v2.0/token",
			map[string]string{"client_id": "client", "client_secret": "SECRET", "grant_type": "client_credentials"},
		},
		"machine identity": {
			nil, "GET 169.254.169.254/metadata/identity/oauth2/token",
			map[string]string{"resource": "https://storage.azure.com/", "client_id": ""},
		},
		"selected machine identity": {
			map[string]string{"AZURE_CLIENT_ID": "client"},
			"GET 169.254.169.254/metadata/identity/oauth2/token",
			map[string]string{"resource": "https://storage.azure.com/", "client_id": "client"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			withoutCredentials(t)
			for variable, value := range one.environment {
				t.Setenv(variable, value)
			}
			found := &wire.Tokens{Find: findSource, HTTP: storetest.NewRedirectClient(t, func(w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, one.asked, r.Method+" "+r.Host+r.URL.Path)
				for key, want := range one.form {
					assert.Equal(t, want, r.FormValue(key), key)
				}
				assert.Equal(t, r.Method == http.MethodGet, r.Header.Get("Metadata") == "true")
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, `{"access_token":"granted","expires_in":"3600"}`)
			})}
			request := httptest.NewRequest(http.MethodGet, "/", nil)
			require.NoError(t, found.Authorize(request))
			assert.Equal(t, "Bearer granted", request.Header.Get("Authorization"))
		})
	}
}

func TestATokenIsReplacedBeforeItExpires(t *testing.T) {
	withoutCredentials(t)
	for remaining, want := range map[time.Duration]string{time.Minute: "Bearer granted-1", -time.Second: "Bearer granted-2"} {
		granted := 0
		found := &wire.Tokens{Find: findSource, HTTP: storetest.NewRedirectClient(t, func(w http.ResponseWriter, _ *http.Request) {
			granted++
			fmt.Fprintf(w, `{"access_token":"granted-%d","expires_in":%d}`, granted, int((early + remaining).Seconds()))
		})}
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		require.NoError(t, found.Authorize(request))
		require.NoError(t, found.Authorize(request))
		assert.Equal(t, want, request.Header.Get("Authorization"), remaining)
	}
}

func TestAMachineWithoutAnIdentityIsDenied(t *testing.T) {
	withoutCredentials(t)
	found := &wire.Tokens{Find: findSource, HTTP: storetest.NewRedirectClient(t, func(w http.ResponseWriter, _ *http.Request) {
		connection, _, err := http.NewResponseController(w).Hijack()
		if assert.NoError(t, err) {
			_ = connection.Close()
		}
	})}
	err := found.Authorize(httptest.NewRequest(http.MethodGet, "/", nil))
	assert.ErrorIs(t, err, store.ErrDenied)
	assert.ErrorContains(t, err, "no credentials found in the environment, workload identity or managed identity")
}

func withoutCredentials(t *testing.T) {
	for _, name := range []string{
		"AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_CLIENT_ID",
	} {
		t.Setenv(name, "")
	}
}

func TestWorkloadIdentityExchangesItsTokenFile(t *testing.T) {
	withoutCredentials(t)
	path := filepath.Join(t.TempDir(), "token")
	var exchanged []string
	status := http.StatusOK
	login := storetest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "/tenant/oauth2/v2.0/token", r.URL.Path)
		assert.Equal(t, "client", r.PostFormValue("client_id"))
		exchanged = append(exchanged, r.PostFormValue("client_assertion"))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"access_token":"granted-%d","expires_in":"3600","error_description":"SECRET"}`, len(exchanged))
	})
	t.Setenv("AZURE_AUTHORITY_HOST", login.String())
	t.Setenv("AZURE_TENANT_ID", "tenant")
	t.Setenv("AZURE_CLIENT_ID", "client")
	t.Setenv("AZURE_FEDERATED_TOKEN_FILE", path)
	denied := false
	s := against(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Got", r.Header.Get("Authorization"))
		w.WriteHeader(map[bool]int{false: http.StatusAccepted, true: http.StatusUnauthorized}[denied])
	})
	remove := func() error { return s.Delete(t.Context(), "a") }
	assert.ErrorIs(t, remove(), store.ErrDenied, "the token file does not exist yet")
	require.NoError(t, os.WriteFile(path, []byte("first\n"), 0o600))
	require.NoError(t, remove())
	require.NoError(t, remove())
	assert.Equal(t, []string{"first"}, exchanged, "an unexpired token must be reused")
	denied = true
	assert.ErrorIs(t, remove(), store.ErrDenied)
	denied = false
	require.NoError(t, os.WriteFile(path, []byte("second"), 0o600))
	require.NoError(t, remove())
	assert.Equal(t, []string{"first", "second"}, exchanged, "a rejected token must be replaced")
	for answer, want := range map[int]error{400: store.ErrDenied, 503: store.ErrUnavailable} {
		status, denied = answer, true
		assert.ErrorIs(t, remove(), store.ErrDenied)
		err := remove()
		assert.ErrorIs(t, err, want)
		assert.NotContains(t, err.Error(), "SECRET")
		status, denied = http.StatusOK, false
		require.NoError(t, remove())
	}
}
