package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"
)

// certificateFile writes self-signed certificates that end at the given times, and returns the path.
func certificateFile(t *testing.T, ends ...time.Time) (path string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	var content []byte
	for _, end := range ends {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: end}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		require.NoError(t, err)
		content = append(content, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	path = filepath.Join(t.TempDir(), "tls.crt")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

func TestCertificatesThatEndAreNamedOnce(t *testing.T) {
	var log bytes.Buffer
	past, soon, late := time.Now().Add(-time.Hour), time.Now().Add(time.Hour), time.Now().Add(10*expiresSoon)
	bundle := certificateFile(t, late, soon)
	expired := certificateFile(t, past)
	valid := certificateFile(t, late)
	flags := &startCommand{SidecarCAPath: bundle, EtcdCertPath: "/nowhere"}
	watched := newCertificates(flags, newLog(&log, 0))
	config := embed.NewConfig()
	config.ClientTLSInfo.CertFile, config.PeerTLSInfo.CertFile = expired, valid
	watched.add(config)
	watched.add(config) // reads them again

	told := watched.now()
	require.Len(t, told, 3)
	assert.Equal(t, "etcd_peer", told[0].Name)
	assert.Equal(t, "etcd_server", told[1].Name)
	assert.Equal(t, past.Unix(), told[1].Expires.Unix())
	assert.Equal(t, soon.Unix(), told[2].Expires.Unix(), "the first of a bundle")
	assert.Equal(t, 1, strings.Count(log.String(), "has expired"), log.String())
	assert.Equal(t, 1, strings.Count(log.String(), "expires soon"), log.String())
}
