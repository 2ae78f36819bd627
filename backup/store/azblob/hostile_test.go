package azblob

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/storetest"
	"etcd-wrapper/backup/store/wire"
)

func TestAzureIsUsedSafelyHoweverItsServerBehaves(t *testing.T) {
	withKey(t)
	refused := func(status int, code string) func(w http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("X-Ms-Error-Code", code)
			w.WriteHeader(status)
		}
	}
	storetest.RunFaults(t, storetest.Dialect{
		Open: func(t *testing.T, endpoint *url.URL, patience time.Duration) store.Store {
			s, err := New(Options{Container: "container", Account: "account", Endpoint: endpoint, Wire: wire.Options{Patience: patience}})
			require.NoError(t, err)
			return s
		},
		Created: func(w http.ResponseWriter, _ *http.Request) { created(w) },
		Exists:  refused(http.StatusConflict, "BlobAlreadyExists"),
		Deleted: func(w http.ResponseWriter) { w.WriteHeader(http.StatusAccepted) },

		Denied:   refused(http.StatusForbidden, "AuthorizationPermissionMismatch"),
		Expired:  refused(http.StatusForbidden, "AuthenticationFailed"),
		Locked:   refused(http.StatusConflict, "BlobImmutableDueToPolicy"),
		NoBucket: refused(http.StatusNotFound, "ContainerNotFound"),
		Refuse: func(w http.ResponseWriter, status int) {
			refused(status, map[int]string{
				409: "BlobAlreadyExists", 412: "ConditionNotMet", 500: "InternalError", 503: "ServerBusy",
			}[status])(w)
		},
		Conflict: store.ErrExists,
		Page: func(w http.ResponseWriter) {
			fmt.Fprint(w, "<EnumerationResults><Blobs><Blob><Name>a</Name><Properties><Content-Length>1</Content-Length>"+
				"<Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified></Properties></Blob></Blobs><NextMarker>next</NextMarker></EnumerationResults>")
		},
	})
}
