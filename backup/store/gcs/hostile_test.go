package gcs

import (
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/storetest"
	"etcd-wrapper/backup/store/wire"
)

func TestGCSIsUsedSafelyHoweverItsServerBehaves(t *testing.T) {
	storetest.RunFaults(t, storetest.Dialect{
		Open: func(t *testing.T, endpoint *url.URL, patience time.Duration) store.Store {
			s, err := New(Options{Bucket: "bucket", Endpoint: endpoint, Wire: wire.Options{Patience: patience}})
			require.NoError(t, err)
			return s
		},
		Created: created,
		Exists:  func(w http.ResponseWriter) { refuse(w, http.StatusPreconditionFailed, "conditionNotMet", "") },
		Deleted: func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) },

		Denied:   func(w http.ResponseWriter) { refuse(w, http.StatusForbidden, "forbidden", "") },
		Expired:  func(w http.ResponseWriter) { refuse(w, http.StatusUnauthorized, "authError", "") },
		Locked:   func(w http.ResponseWriter) { refuse(w, http.StatusForbidden, "retentionPolicyNotMet", "") },
		NoBucket: func(w http.ResponseWriter) { refuse(w, http.StatusNotFound, "notFound", "") },
		Refuse: func(w http.ResponseWriter, status int) {
			refuse(w, status, map[int]string{
				409: "conflict", 412: "conditionNotMet", 429: "rateLimitExceeded", 500: "backendError", 503: "backendError",
			}[status], "")
		},
		Page: func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `{"kind":"storage#objects","nextPageToken":"next","items":[{"name":"a","size":"1","timeCreated":"2026-01-01T00:00:00Z"}]}`)
		},
	})
}
