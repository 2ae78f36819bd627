package s3

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

func TestS3IsUsedSafelyHoweverItsServerBehaves(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "KEY")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
	storetest.Hostile(t, storetest.Dialect{
		Open: func(t *testing.T, endpoint *url.URL, patience time.Duration) store.Store {
			s, err := New(Options{Bucket: "bucket", Endpoint: endpoint, PathStyle: true, Wire: wire.Options{Patience: patience}})
			require.NoError(t, err)
			return s
		},
		Created: func(w http.ResponseWriter) { w.Header().Set("ETag", `"1"`) },
		Exists:  func(w http.ResponseWriter) { refuse(w, http.StatusPreconditionFailed, "PreconditionFailed", "") },
		Denied:  func(w http.ResponseWriter) { refuse(w, http.StatusForbidden, "AccessDenied", "") },
	})
}
