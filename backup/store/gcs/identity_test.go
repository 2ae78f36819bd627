package gcs

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
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
	"etcd-wrapper/backup/store/wire"
)

// grant responds with a new token.
func grant(w http.ResponseWriter, granted *int) {
	*granted++
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"access_token":"token-%d","issued_token_type":"x","token_type":"Bearer","expires_in":3600}`, *granted)
}

// useKeyFile writes content to a file and uses the file as credentials.
func useKeyFile(t *testing.T, content []byte) (path string) {
	path = filepath.Join(t.TempDir(), "key.json")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", path)
	return path
}

// grants starts a token server and returns a service account that uses it.
func grants(t *testing.T, grant http.HandlerFunc) (keyFile []byte) {
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
	account := grants(t, func(w http.ResponseWriter, _ *http.Request) { grant(w, &granted) })
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

func TestARefusedTokenRepeatsNothingOfTheResponse(t *testing.T) {
	for status, want := range map[int]error{400: store.ErrDenied, 401: store.ErrDenied, 503: store.ErrUnavailable} {
		account := grants(t, func(w http.ResponseWriter, _ *http.Request) {
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
	account := grants(t, func(_ http.ResponseWriter, r *http.Request) {
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

// Workload identity federation exchanges a token from another issuer. The token file is renewed.
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

// Credentials are sent only to a server whose certificate is in the CA bundle. A rejected token is replaced.
func TestAnExpiredTokenIsReplaced(t *testing.T) {
	granted := 0
	account := grants(t, func(w http.ResponseWriter, _ *http.Request) { grant(w, &granted) })
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
	s, err := New(wire.Place{Bucket: "bucket", Endpoint: endpoint, CAPath: bundle})
	require.NoError(t, err)
	assert.ErrorIs(t, s.Delete(t.Context(), "a"), store.ErrDenied)
	assert.NoError(t, s.Delete(t.Context(), "a"))
	assert.NoError(t, s.Delete(t.Context(), "a"))
	assert.Equal(t, 2, granted, "the second one lasts")
}

// metadata starts a metadata server and makes the client use it.
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
