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
)

func TestEachWayOfAzuresToATokenIsGone(t *testing.T) {
	assertion := filepath.Join(t.TempDir(), "assertion")
	require.NoError(t, os.WriteFile(assertion, []byte("assertion\n"), 0o600))
	for name, of := range map[string]struct {
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
			for variable, value := range of.environment {
				t.Setenv(variable, value)
			}
			found := &tokens{client: storetest.RedirectedClient(t, func(w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, of.asked, r.Method+" "+r.Host+r.URL.Path)
				for key, want := range of.form {
					assert.Equal(t, want, r.FormValue(key), key)
				}
				assert.Equal(t, r.Method == http.MethodGet, r.Header.Get("Metadata") == "true")
				fmt.Fprint(w, `{"access_token":"granted","expires_in":3600}`)
			})}
			request := httptest.NewRequest(http.MethodGet, "/", nil)
			require.NoError(t, found.authorize(request))
			assert.Equal(t, "Bearer granted", request.Header.Get("Authorization"))
		})
	}
}

func TestATokenIsReplacedBeforeItsEnd(t *testing.T) {
	withoutCredentials(t)
	granted := 0
	found := &tokens{client: storetest.RedirectedClient(t, func(w http.ResponseWriter, _ *http.Request) {
		granted++
		fmt.Fprintf(w, `{"access_token":"granted-%d","expires_in":%d}`, granted, int(early.Seconds())+60)
	})}
	begin := time.Now()
	now = func() time.Time { return begin }
	t.Cleanup(func() { now = time.Now })
	for passed, want := range []string{"granted-1", "granted-1", "granted-2"} {
		begin = begin.Add(time.Duration(passed) * 25 * time.Second)
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		require.NoError(t, found.authorize(request))
		assert.Equal(t, "Bearer "+want, request.Header.Get("Authorization"))
	}
}

func TestAMachineWithoutAnIdentityIsToldApart(t *testing.T) {
	withoutCredentials(t)
	found := &tokens{client: storetest.RedirectedClient(t, func(w http.ResponseWriter, _ *http.Request) {
		connection, _, err := http.NewResponseController(w).Hijack()
		if assert.NoError(t, err) {
			_ = connection.Close()
		}
	})}
	err := found.authorize(httptest.NewRequest(http.MethodGet, "/", nil))
	assert.ErrorIs(t, err, store.ErrDenied)
	assert.ErrorContains(t, err, "no credentials found in environment, workload identity or managed identity")
}
