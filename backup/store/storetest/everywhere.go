package storetest

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

// RedirectedClient returns a client that sends every request to one handler, which sees the original host as the request's Host. It replaces
// the addresses from which machines and workloads get their identity.
func RedirectedClient(t *testing.T, handler http.HandlerFunc) *http.Client {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	require.NoError(t, err)
	return &http.Client{Transport: redirected{at}}
}

type redirected struct{ to *url.URL }

// RoundTrip implements http.RoundTripper.
func (r redirected) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Host = request.URL.Host
	request.URL.Scheme, request.URL.Host = r.to.Scheme, r.to.Host
	return http.DefaultTransport.RoundTrip(request)
}
