package harness

import (
	"crypto/tls"
	"fmt"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/certificates"
)

// Scheme is that of a URL.
func Scheme(config *tls.Config) string {
	if config == nil {
		return "http"
	}
	return "https"
}

// SpeakTLS makes the sidecar serve HTTPS, and the wrapper trust the authority in the bundle.
func (p *Pod) SpeakTLS(a *certificates.Authority, bundle string) {
	p.Sidecar.tls = &tls.Config{Certificates: a.Issue("sidecar").Load(p.T), MinVersion: tls.VersionTLS12}
	p.Flags = append(p.Flags, "--backup-restore-tls-enabled=true", "--backup-restore-ca-cert-bundle-path="+bundle)
}

// DemandCertificates makes etcd serve TLS to clients with a certificate only.
func (p *Pod) DemandCertificates(a *certificates.Authority) {
	server, client := a.Issue("etcd-main-local"), a.Issue("client")
	p.Trust = &tls.Config{RootCAs: a.Pool(), MinVersion: tls.VersionTLS12}
	p.Identity = p.Trust.Clone()
	p.Identity.Certificates = client.Load(p.T)
	p.Config["listen-client-urls"], p.Config["advertise-client-urls"] = p.Endpoint(), p.Endpoint()
	p.Config["client-transport-security"] = map[string]any{
		"cert-file": server.Cert, "key-file": server.Key, "client-cert-auth": true, "trusted-ca-file": a.Bundle(),
	}
	p.Flags = append(p.Flags, "--etcd-client-cert-path="+client.Cert, "--etcd-client-key-path="+client.Key,
		"--etcd-server-name=etcd-main-local", fmt.Sprintf("--etcd-client-port=%d", p.ClientPort))
}

// ShownToClients is the name in the certificate of the wrapper's own server.
func (p *Pod) ShownToClients() string {
	p.T.Helper()
	connection, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.Port), p.Trust)
	require.NoError(p.T, err)
	defer connection.Close() // nothing was sent
	return connection.ConnectionState().PeerCertificates[0].Subject.CommonName
}
