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
	"sync"
	"testing"
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
	return open(t, endpoint, "container")
}

func withKey(t *testing.T) {
	t.Setenv("AZURE_STORAGE_KEY", base64.StdEncoding.EncodeToString([]byte("SECRET")))
}

const large = wire.PieceSize + 5

func TestWhatAzureAnswersBecomesAnErrorWithoutItsWords(t *testing.T) {
	withKey(t)
	var all sync.WaitGroup // they wait between attempts
	defer all.Wait()
	for _, one := range []struct {
		status      int
		code        string
		put, remove error
	}{
		{409, "BlobAlreadyExists", store.ErrExists, store.ErrExists},
		{412, "ConditionNotMet", store.ErrExists, store.ErrExists},
		{409, "BlobImmutableDueToPolicy", store.ErrLocked, store.ErrLocked},
		{412, "LeaseIdMissing", store.ErrLocked, store.ErrLocked},
		{404, "ContainerNotFound", store.ErrNoBucket, store.ErrNoBucket},
		{404, "BlobNotFound", store.ErrNoBucket, nil},
		{403, "AuthenticationFailed", store.ErrDenied, store.ErrDenied},
		{403, "AuthorizationPermissionMismatch", store.ErrDenied, store.ErrDenied},
		{400, "InvalidBlockList", store.ErrUnavailable, store.ErrUnavailable},
		{500, "OperationTimedOut", store.ErrUnavailable, store.ErrUnavailable},
		{503, "ServerBusy", store.ErrUnavailable, store.ErrUnavailable},
		{429, "", store.ErrUnavailable, store.ErrUnavailable},
		{503, "SECRET words", store.ErrUnavailable, store.ErrUnavailable},
	} {
		s := against(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("comp") == "block" {
				created(w)
				return
			}
			w.Header().Set("X-Ms-Error-Code", one.code)
			w.WriteHeader(one.status)
			fmt.Fprint(w, "<Error><Message>SECRET</Message></Error>")
		})
		all.Go(func() {
			for _, length := range []int{1, large} {
				err := s.Put(t.Context(), "a", storetest.Pattern(1, length))
				assert.ErrorIs(t, err, one.put, one)
				assert.NotContains(t, err.Error(), "SECRET")
			}
			assert.ErrorIs(t, s.Delete(t.Context(), "a"), one.remove, one)
		})
	}
}

// created answers as Azure does to what was put.
func created(w http.ResponseWriter) {
	w.Header().Set("X-Ms-Request-Id", "4f8b1a3c-101e-0000-0000-000000000000")
	w.WriteHeader(http.StatusCreated)
}

func TestClocksThatDifferAreToldApart(t *testing.T) {
	withKey(t)
	s := against(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		w.Header().Set("X-Ms-Error-Code", "AuthenticationFailed")
		w.WriteHeader(http.StatusForbidden)
	})
	assert.ErrorIs(t, s.Delete(t.Context(), "a"), store.ErrSkewed)
}

func TestEveryRequestThatCreatesIsConditional(t *testing.T) {
	withKey(t)
	var asked []*http.Request
	var list string
	s := against(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if asked = append(asked, r); r.URL.Query().Get("comp") == "blocklist" {
			list = string(body)
		}
		created(w)
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

func TestASharedAccessSignatureGoesIntoTheQueryAndNowhereElse(t *testing.T) {
	t.Setenv("AZURE_STORAGE_KEY", "")
	t.Setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=2021-12-02&sig=SECRET%2Bx%3D\n") // as a Secret has it that was made of a file
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
	login := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "/tenant/oauth2/v2.0/token", r.URL.Path)
		assert.Equal(t, "client", r.PostFormValue("client_id"))
		exchanged = append(exchanged, r.PostFormValue("client_assertion"))
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"access_token":"granted-%d","expires_in":"3600","error_description":"SECRET"}`, len(exchanged))
	}))
	t.Cleanup(login.Close)
	t.Setenv("AZURE_AUTHORITY_HOST", login.URL)
	t.Setenv("AZURE_TENANT_ID", "tenant")
	t.Setenv("AZURE_CLIENT_ID", "client")
	t.Setenv("AZURE_FEDERATED_TOKEN_FILE", path)
	denied := false
	s := against(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Got", r.Header.Get("Authorization"))
		w.WriteHeader(map[bool]int{false: http.StatusAccepted, true: http.StatusUnauthorized}[denied])
	})
	remove := func() error { return s.Delete(t.Context(), "a") }
	assert.ErrorIs(t, remove(), store.ErrDenied, "there is no file yet")
	require.NoError(t, os.WriteFile(path, []byte("first\n"), 0o600))
	require.NoError(t, remove())
	require.NoError(t, remove())
	assert.Equal(t, []string{"first"}, exchanged, "a token lasts")
	denied = true
	assert.ErrorIs(t, remove(), store.ErrDenied)
	denied = false
	require.NoError(t, os.WriteFile(path, []byte("second"), 0o600))
	require.NoError(t, remove())
	assert.Equal(t, []string{"first", "second"}, exchanged, "one that was refused is replaced")
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
