package peers

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// gRPC reports only a timeout.
func TestAdd_serverThatRequiresACertificate(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()
	w := newTown(t)
	w.peers.client = server.Client()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := w.peers.Add(ctx, &Survey{Cluster: "abc", Members: []Member{member(0xc0, "m-0", server.URL)}})
	require.ErrorContains(t, err, server.URL)
	require.ErrorContains(t, err, "certificate required")
	require.ErrorContains(t, err, "give a certificate that they accept with --etcd-client-cert-path")
}
