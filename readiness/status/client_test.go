package status_test

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/readiness/status"
)

func TestClientReadsTheDocument(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("GET /lifecycle", status.Handler(newFakeRun().source()))
	server := httptest.NewServer(mux)
	defer server.Close()
	document, err := status.NewClient(portOf(server)).Fetch(t.Context())
	require.NoError(t, err)
	require.Equal(t, "Query", document.State)
}

func TestClientReportsMissingWrapper(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	_, err := status.NewClient(portOf(server)).Fetch(t.Context())
	require.ErrorContains(t, err, "HTTP status 404: another program (such as etcd or the sidecar)")
	_, err = status.NewClient(1).Fetch(t.Context()) // no program listens on port 1
	require.ErrorIs(t, err, status.ErrNoAnswer)
}

// The client must stop reading an endless response, which another program that listens on the port might send.
func TestClientStopsReadingAnEndlessDocument(t *testing.T) {
	sent := make(chan int, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		written := 0
		for err := error(nil); err == nil && written < 64<<20; written += 1 << 20 {
			_, err = w.Write(bytes.Repeat([]byte(" "), 1<<20))
		}
		sent <- written
	}))
	defer server.Close()
	_, err := status.NewClient(portOf(server)).Fetch(t.Context())
	require.ErrorContains(t, err, "cannot read the status")
	require.Less(t, <-sent, 64<<20)
}

func portOf(server *httptest.Server) uint16 {
	return uint16(server.Listener.Addr().(*net.TCPAddr).Port)
}

func TestClientOnAHostWithoutIPv4(t *testing.T) {
	listener, err := net.Listen("tcp6", "[::1]:0")
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("GET /lifecycle", status.Handler(newFakeRun().source()))
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: mux}}
	server.Start()
	defer server.Close()
	document, err := status.NewClient(portOf(server)).Fetch(t.Context())
	require.NoError(t, err)
	require.Equal(t, "Query", document.State)
}
