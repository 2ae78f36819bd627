package certificates_test

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

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcd-wrapper/readiness/certificates"
)

// bundle writes a file of certificates that end at the given times.
func bundle(t *testing.T, ends ...time.Time) (path string) {
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
	past, soon, late := time.Now().Add(-time.Hour), time.Now().Add(71*time.Hour), time.Now().Add(73*time.Hour)
	files := certificates.New(map[string]string{
		certificates.SidecarCA: bundle(t, late, soon), certificates.EtcdClient: "/nowhere", certificates.WrapperServer: "",
	}, zerolog.New(&log))
	ofEtcd := map[string]string{certificates.EtcdServer: bundle(t, past), certificates.EtcdPeer: bundle(t, late)}
	files.Use(ofEtcd)
	files.Use(ofEtcd) // reads all again

	found := files.Now()
	require.Len(t, found, 3)
	assert.Equal(t, certificates.EtcdPeer, found[0].Name)
	assert.Equal(t, certificates.EtcdServer, found[1].Name)
	assert.Equal(t, past.Unix(), found[1].Expires.Unix())
	assert.Equal(t, soon.Unix(), found[2].Expires.Unix(), "the first of a bundle")
	assert.Equal(t, 1, strings.Count(log.String(), "has expired"), log.String())
	assert.Equal(t, 1, strings.Count(log.String(), "expires soon"), log.String())
}

func TestFilesAreNotReadBeforeSomebodyAsks(t *testing.T) {
	var log bytes.Buffer
	files := certificates.New(map[string]string{certificates.SidecarCA: bundle(t, time.Now())}, zerolog.New(&log))
	assert.Empty(t, log.String())
	assert.Len(t, files.Now(), 1)
	assert.NotEmpty(t, log.String())
}

// The path of a certificate may lead to a pipe that nobody writes to.
func TestACertificateThatBlocksDelaysNobody(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	told := make(chan int, 1)
	go func() {
		files := certificates.New(map[string]string{certificates.SidecarCA: fifo, certificates.EtcdClient: os.DevNull}, zerolog.Nop())
		told <- len(files.Now())
	}()
	select {
	case count := <-told:
		require.Zero(t, count)
	case <-time.After(10 * time.Second):
		require.Fail(t, "it waits for the other end of the pipe")
	}
}
