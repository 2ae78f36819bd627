package azblob

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/storetest"
	"etcd-wrapper/backup/store/wire"
)

func TestAnAccessTokenComesFromEachSource(t *testing.T) {
	assertion := filepath.Join(t.TempDir(), "assertion")
	require.NoError(t, os.WriteFile(assertion, []byte("assertion\n"), 0o600))
	for name, one := range map[string]struct {
		environment map[string]string
		asked       string
		form        map[string]string
	}{
		"workload identity": {
			map[string]string{"AZURE_FEDERATED_TOKEN_FILE": assertion, "AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "client"},
			"POST login.microsoftonline.com/tenant/oauth2/v2.0/token",
			map[string]string{"client_id": "client", "client_assertion": "assertion", "scope": "https://storage.azure.com/.default"},
		},
		"a client secret": {
			map[string]string{"AZURE_CLIENT_SECRET": "SECRET", "AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "client"},
			"POST login.microsoftonline.com/tenant/oauth2/v2.0/token",
			map[string]string{"client_id": "client", "client_secret": "SECRET", "grant_type": "client_credentials"},
		},
		"the machine's identity": {
			nil, "GET 169.254.169.254/metadata/identity/oauth2/token",
			map[string]string{"resource": "https://storage.azure.com/", "client_id": ""},
		},
		"one of several of a machine": {
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
