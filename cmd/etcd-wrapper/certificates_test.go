package main_test

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

// authority is a certificate authority of a test.
type authority struct {
	t    *testing.T
	dir  string
	name string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// pair is a certificate and its key, in files.
type pair struct{ cert, key string }

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir(), name: name}
	template := a.template(name)
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	a.key = a.newKey()
	a.cert = a.write(name, template, template, a.key, a.key)
	return a
}

// bundle is the path of the authority's own certificate.
func (a *authority) bundle() string { return filepath.Join(a.dir, a.name+".crt") }

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// issue makes a pair that is good for servers on loopback and for clients.
func (a *authority) issue(name string) pair {
	a.t.Helper()
	template := a.template(name)
	template.DNSNames, template.IPAddresses = []string{"localhost", name}, []net.IP{net.IPv4(127, 0, 0, 1)}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	key := a.newKey()
	a.write(name, template, a.cert, key, a.key)
	return pair{filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key")}
}

func (a *authority) template(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(a.t, err)
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
}

func (a *authority) newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	return key
}

// write signs a certificate and puts it and its key into files.
func (a *authority) write(name string, template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) *x509.Certificate {
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

func (a *authority) save(name, kind string, der []byte) {
	a.t.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	require.NoError(a.t, os.WriteFile(filepath.Join(a.dir, name), text, 0o600))
}

// load reads the pair for the test's own use.
func (p pair) load(t *testing.T) []tls.Certificate {
	t.Helper()
	loaded, err := tls.LoadX509KeyPair(p.cert, p.key)
	require.NoError(t, err)
	return []tls.Certificate{loaded}
}

// insecure is for a test that looks at certificates by itself.
func insecure() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}
}
