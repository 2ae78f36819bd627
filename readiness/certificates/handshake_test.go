package certificates_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	testcerts "etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/readiness/certificates"
)

// serve starts a listener that rereads its certificate and key for each connection, as etcd does.
func serve(t *testing.T, pair testcerts.Pair) (address string) {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			loaded, err := tls.LoadX509KeyPair(pair.Cert, pair.Key)
			return &loaded, err
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_ = connection.(*tls.Conn).Handshake()
				_ = connection.Close()
			}()
		}
	}()
	return listener.Addr().String()
}

func TestRejectedListenerCertificateIsReportedUntilReplaced(t *testing.T) {
	const long = 10 * 365 * 24 * time.Hour
	authority, other := testcerts.NewAuthority(t, "authority"), testcerts.NewAuthority(t, "other")
	for _, each := range []*testcerts.Authority{authority, other} {
		each.IssuesUntil(time.Now().Add(long))
	}
	good := authority.Issue("good")
	for name, c := range map[string]struct {
		pair testcerts.Pair
		host string // advertised host
		ca   string // CA bundle of the listener; "" if there is none
		why  string // expected problem; "" if there is none
	}{
		"valid":                      {good, "127.0.0.1", authority.Bundle(), ""},
		"valid, without a CA":        {good, "localhost", "", ""},
		"wrong host":                 {good, "etcd.example.org", authority.Bundle(), "does not cover every advertised host (missing: etcd.example.org)"},
		"client authentication only": {authority.IssueFor("client-only", x509.ExtKeyUsageClientAuth), "127.0.0.1", authority.Bundle(), "does not have the extended key usage \"server auth\""},
		"client authentication only, without a CA": {authority.IssueFor("client-alone", x509.ExtKeyUsageClientAuth), "127.0.0.1", "", "does not have the extended key usage \"server auth\""},
		"signed by another CA":                     {other.Issue("stranger"), "127.0.0.1", authority.Bundle(), "is not signed by a CA in"},
		"key of another certificate":               {testcerts.Pair{Cert: authority.Issue("mixed").Cert, Key: good.Key}, "127.0.0.1", authority.Bundle(), "check that"},
	} {
		t.Run(name, func(t *testing.T) {
			files := certificates.New(map[string]string{certificates.EtcdServer: c.pair.Cert}, zerolog.Nop())
			files.Serve([]certificates.Listener{{
				Name: certificates.EtcdServer, Address: serve(t, c.pair), Hosts: []string{c.host}, Cert: c.pair.Cert, Key: c.pair.Key, CA: c.ca,
			}})
			if c.why == "" {
				assert.Never(t, func() bool { _, soon := files.Check(time.Now()); return soon != "" }, 300*time.Millisecond, 20*time.Millisecond)
				return
			}
			require.Eventually(t, func() bool { _, soon := files.Check(time.Now()); return soon != "" }, 30*time.Second, 10*time.Millisecond)
			ended, soon := files.Check(time.Now())
			assert.Empty(t, ended, "the problem does not make the member unready")
			assert.Contains(t, soon, c.why)
			assert.Contains(t, soon, c.pair.Cert)
		})
	}

	pair := authority.IssueFor("rotated", x509.ExtKeyUsageClientAuth)
	files := certificates.New(map[string]string{certificates.EtcdServer: pair.Cert}, zerolog.Nop())
	files.Serve([]certificates.Listener{{Name: certificates.EtcdServer, Address: serve(t, pair), Hosts: []string{"127.0.0.1"}, Cert: pair.Cert, Key: pair.Key}})
	refused := func() bool { _, soon := files.Check(time.Now()); return soon != "" }
	require.Eventually(t, refused, 30*time.Second, 10*time.Millisecond)
	for from, to := range map[string]string{good.Cert: pair.Cert, good.Key: pair.Key} {
		content, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(to, content, 0o600))
	}
	require.Eventually(t, func() bool { return !refused() }, 20*time.Second, 10*time.Millisecond, "the new files must be read within seconds")
}
