package status_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/readiness/status"
)

func TestTheClientFindsOutWhetherTheServerSpeaksTLS(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("GET /lifecycle", status.Handler(newTeller().source()))
	for name, serve := range map[string]func(http.Handler) *httptest.Server{
		"plain": httptest.NewServer, "TLS": httptest.NewTLSServer,
	} {
		t.Run(name, func(t *testing.T) {
			server := serve(mux)
			defer server.Close()
			document, err := status.NewClient(portOf(server)).Fetch(t.Context())
			require.NoError(t, err)
			require.Equal(t, "Query", document.State)
		})
	}
}

func TestTheClientSaysThatNobodyAnswers(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	_, err := status.NewClient(portOf(server)).Fetch(t.Context())
	require.ErrorContains(t, err, "HTTP status 404")
	server.Close()
	_, err = status.NewClient(portOf(server)).Fetch(t.Context())
	require.ErrorIs(t, err, status.ErrNoAnswer)
}

func portOf(server *httptest.Server) uint16 {
	return uint16(server.Listener.Addr().(*net.TCPAddr).Port)
}
