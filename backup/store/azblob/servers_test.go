package azblob

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/storetest"
	"etcd-wrapper/backup/store/storetest/servers"
	"etcd-wrapper/backup/store/wire"
)

// awkward is a prefix with everything that has to be escaped somewhere.
const awkward = "pre fix/ü+%41&=;@:#/"

func TestAzureKeepsTheContractOnAServer(t *testing.T) {
	endpoint := servers.Azure(t)
	made := 0
	next := func(t *testing.T) string {
		made++
		name := fmt.Sprintf("container-%d", made)
		return makeContainer(t, opened(t, endpoint, name), name)
	}
	storetest.Run(t, storetest.Subject{
		Open:   func(t *testing.T) store.Store { return opened(t, endpoint, next(t)) },
		Server: endpoint,
		Through: func(t *testing.T, proxied *url.URL) store.Store {
			return opened(t, proxied, next(t))
		},
		Missing: func(t *testing.T) store.Store { return opened(t, endpoint, "missing") },
		Denied: func(t *testing.T) store.Store {
			existing := next(t)
			t.Setenv("AZURE_STORAGE_KEY", "YW5vdGhlcg==")
			return open(t, endpoint, existing)
		},
	})
}

func makeContainer(t *testing.T, s *Store, name string) string {
	request := wire.Request{Method: http.MethodPut, URL: s.url(""), Query: url.Values{"restype": {"container"}}}
	_, err := s.Send(t.Context(), request, nil, http.StatusCreated)
	require.NoError(t, err)
	return name
}

// opened uses the key of the server.
func opened(t *testing.T, endpoint *url.URL, container string) *Store {
	t.Setenv("AZURE_STORAGE_KEY", servers.AzureKey)
	return open(t, endpoint, container)
}

func open(t *testing.T, endpoint *url.URL, container string) *Store {
	s, err := New(wire.Place{Bucket: container, Prefix: awkward, Endpoint: endpoint}, servers.AzureAccount)
	require.NoError(t, err)
	return s
}
