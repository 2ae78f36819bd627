// Package certificates creates certificate authorities and certificates for tests.
package certificates

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An Authority is a certificate authority for a test.
type Authority struct {
	t    testing.TB
	dir  string
	name string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	ends time.Time // expiry of certificates issued from now on
}

const day = 24 * time.Hour

// A Pair holds the paths of a certificate and its key.
type Pair struct{ Cert, Key string }

// NewAuthority returns an authority whose files are deleted when the test ends.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	a := &Authority{t: t, dir: t.TempDir(), name: name, ends: time.Now().Add(day)}
	template := a.template(name)
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	a.key = a.newKey()
	a.cert = a.write(name, template, template, a.key, a.key)
	return a
}

// IssuesUntil sets the expiry of certificates issued from now on. It may be in the past.
func (a *Authority) IssuesUntil(end time.Time) { a.ends = end }

// Bundle returns the path of a file that contains the authority's own certificate.
func (a *Authority) Bundle() string { return filepath.Join(a.dir, a.name+".crt") }

// Pool returns a certificate pool that contains the authority.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Issue creates a certificate and a key for a server on loopback or for a client.
func (a *Authority) Issue(name string) Pair {
	a.t.Helper()
	return a.IssueFor(name, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
}

// IssueFor creates a certificate with the given extended key usages, and its key.
func (a *Authority) IssueFor(name string, usages ...x509.ExtKeyUsage) Pair {
	a.t.Helper()
	template := a.template(name)
	template.DNSNames, template.IPAddresses = []string{"localhost", name}, []net.IP{net.IPv4(127, 0, 0, 1)}
	template.ExtKeyUsage = usages
	key := a.newKey()
	a.write(name, template, a.cert, key, a.key)
	return Pair{filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key")}
}

func (a *Authority) template(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(a.t, err)
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: time.Now().Add(-day), NotAfter: a.ends,
	}
}

func (a *Authority) newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	return key
}

// write signs a certificate and writes the certificate and its key to files.
func (a *Authority) write(name string, template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) *x509.Certificate {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	a.save(name+".crt", "CERTIFICATE", der)
	a.save(name+".key", "PRIVATE KEY", secret)
	cert, err := x509.ParseCertificate(der)
	require.NoError(a.t, err)
	return cert
}

func (a *Authority) save(name, kind string, der []byte) {
	a.t.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	require.NoError(a.t, os.WriteFile(filepath.Join(a.dir, name), text, 0o600))
}

// Load loads the pair for use in a TLS configuration.
func (p Pair) Load(t testing.TB) []tls.Certificate {
	t.Helper()
	loaded, err := tls.LoadX509KeyPair(p.Cert, p.Key)
	require.NoError(t, err)
	return []tls.Certificate{loaded}
}

// Insecure returns a TLS configuration for tests that do not verify certificates.
func Insecure() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}
}
