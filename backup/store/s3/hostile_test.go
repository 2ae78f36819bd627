package s3

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

func TestS3IsUsedSafelyHoweverItsServerBehaves(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "KEY")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
	storetest.RunFaults(t, storetest.Dialect{
		Open: func(t *testing.T, endpoint *url.URL, patience time.Duration) store.Store {
			s, err := New(Options{Bucket: "bucket", Endpoint: endpoint, PathStyle: true, Wire: wire.Options{Patience: patience}})
			require.NoError(t, err)
			return s
		},
		Created: created,
		Exists:  func(w http.ResponseWriter) { refuse(w, http.StatusPreconditionFailed, "PreconditionFailed", "") },
		Deleted: func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) },

		Denied:  func(w http.ResponseWriter) { refuse(w, http.StatusForbidden, "AccessDenied", "") },
		Expired: func(w http.ResponseWriter) { refuse(w, http.StatusBadRequest, "ExpiredToken", "") },
		Locked: func(w http.ResponseWriter) {
			refuse(w, http.StatusForbidden, "AccessDenied", "Access Denied because object protected by object lock.")
		},
		NoBucket: func(w http.ResponseWriter) { refuse(w, http.StatusNotFound, "NoSuchBucket", "") },
		Refuse: func(w http.ResponseWriter, status int) {
			refuse(w, status, map[int]string{
				409: "ConditionalRequestConflict", 412: "PreconditionFailed", 429: "TooManyRequests", 500: "InternalError", 503: "SlowDown",
			}[status], "")
		},
		Conflict: store.ErrUnavailable, // somebody deleted it meanwhile: to be tried again
		Page: func(w http.ResponseWriter) {
			fmt.Fprint(w, "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>next</NextContinuationToken>"+
				"<Contents><Key>a</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents></ListBucketResult>")
		},
	})
}
