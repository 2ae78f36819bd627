package gcs

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/storetest"
	"etcd-wrapper/backup/store/storetest/servers"
	"etcd-wrapper/backup/store/wire"
)

// awkward is a prefix with everything that has to be escaped somewhere.
const awkward = "pre fix/ü+%41&=;@:/"

func TestGCSKeepsTheContractOnAServer(t *testing.T) {
	endpoint := servers.GCS(t)
	made := 0
	next := func(t *testing.T) string {
		made++
		return makeBucket(t, endpoint, fmt.Sprintf("bucket-%d", made))
	}
	storetest.Run(t, storetest.Subject{
		Open:   func(t *testing.T) store.Store { return open(t, endpoint, next(t)) },
		Server: endpoint,
		Through: func(t *testing.T, proxied *url.URL) store.Store {
			return open(t, proxied, next(t))
		},
		Missing: func(t *testing.T) store.Store { return open(t, endpoint, "missing") },
	})
}

func makeBucket(t *testing.T, endpoint *url.URL, name string) string {
	target := endpoint.JoinPath("storage/v1/b").String() + "?project=test"
	response, err := http.Post(target, "application/json", strings.NewReader(fmt.Sprintf(`{"name":%q}`, name)))
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
	return name
}

func open(t *testing.T, endpoint *url.URL, bucket string) *Store {
	s, err := New(wire.Place{Bucket: bucket, Prefix: awkward, Endpoint: endpoint})
	require.NoError(t, err)
	return s
}
