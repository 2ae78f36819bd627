package azblob

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/backup/store"
	"etcd-wrapper/bootstrap/backup/store/storetest"
	"etcd-wrapper/bootstrap/backup/store/wire"
)

func TestAzureIsUsedSafelyHoweverItsServerBehaves(t *testing.T) {
	withKey(t)
	refused := func(status int, code string) func(w http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("X-Ms-Error-Code", code)
			w.WriteHeader(status)
		}
	}
	storetest.Hostile(t, storetest.Dialect{
		Open: func(t *testing.T, endpoint *url.URL, patience time.Duration) store.Store {
			s, err := New(Options{Container: "container", Account: "account", Endpoint: endpoint, Wire: wire.Options{Patience: patience}})
			require.NoError(t, err)
			return s
		},
		Created: func(w http.ResponseWriter) { w.WriteHeader(http.StatusCreated) },
		Exists:  refused(http.StatusConflict, "BlobAlreadyExists"),
		Denied:  refused(http.StatusForbidden, "AuthorizationPermissionMismatch"),
	})
}
