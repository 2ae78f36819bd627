package gcs

import (
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/backup/store"
	"etcd-wrapper/bootstrap/backup/store/storetest"
	"etcd-wrapper/bootstrap/backup/store/wire"
)

func TestGCSIsUsedSafelyHoweverItsServerBehaves(t *testing.T) {
	storetest.Hostile(t, storetest.Dialect{
		Open: func(t *testing.T, endpoint *url.URL, patience time.Duration) store.Store {
			s, err := New(Options{Bucket: "bucket", Endpoint: endpoint, Wire: wire.Options{Patience: patience}})
			require.NoError(t, err)
			return s
		},
		Created: func(w http.ResponseWriter) { _, _ = io.WriteString(w, "{}") },
		Exists:  func(w http.ResponseWriter) { refuse(w, http.StatusPreconditionFailed, "conditionNotMet", "") },
		Denied:  func(w http.ResponseWriter) { refuse(w, http.StatusForbidden, "forbidden", "") },
	})
}
