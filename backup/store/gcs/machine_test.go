package gcs

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

// metadata has GKE's metadata server, or that of a machine, at another place.
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
	lasts = 1 // so little that it is over already
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
	assert.ErrorContains(t, err, "no metadata server answers")
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
