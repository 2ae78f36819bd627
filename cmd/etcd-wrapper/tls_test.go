package main_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// speakTLS makes the sidecar serve HTTPS, and the wrapper trust the authority in the bundle.
func (p *place) speakTLS(a *authority, bundle string) {
	p.sidecar.tls = &tls.Config{Certificates: a.issue("sidecar").load(p.t), MinVersion: tls.VersionTLS12}
	p.flags = append(p.flags, "--backup-restore-tls-enabled=true", "--backup-restore-ca-cert-bundle-path="+bundle)
}

// demandCertificates makes etcd serve TLS to clients with a certificate only.
func (p *place) demandCertificates(a *authority) {
	server, client := a.issue("etcd-main-local"), a.issue("client")
	p.trust = &tls.Config{RootCAs: a.pool(), MinVersion: tls.VersionTLS12}
	p.identity = p.trust.Clone()
	p.identity.Certificates = client.load(p.t)
	p.config["listen-client-urls"], p.config["advertise-client-urls"] = p.endpoint(), p.endpoint()
	p.config["client-transport-security"] = map[string]any{
		"cert-file": server.cert, "key-file": server.key, "client-cert-auth": true, "trusted-ca-file": a.bundle(),
	}
	p.flags = append(p.flags, "--etcd-client-cert-path="+client.cert, "--etcd-client-key-path="+client.key,
		"--etcd-server-name=etcd-main-local", fmt.Sprintf("--etcd-client-port=%d", p.client))
}

func TestSidecarAndClientsSpeakTLS(t *testing.T) {
	t.Parallel()
	p, ca := newPlace(t), newAuthority(t, "ca")
	p.speakTLS(ca, ca.bundle())
	p.demandCertificates(ca)
	w := p.start()
	w.awaitReady() // over HTTPS, without a certificate of its own
	p.put("key", "value")
	assert.Equal(t, "value", p.get("key"))
	assert.Equal(t, "etcd-main-local", p.shownToClients(), "/readyz has etcd's certificate")
	require.Error(t, p.putWithoutCertificate(), "etcd itself asks for one")
	p.oneInitialization()
	code, _ := w.request(http.MethodPost, "/stop")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, 0, w.exit(stopBudget))
	assert.Equal(t, "terminated", p.record())
}

func TestReadyzIsHTTPSAlsoWhenOnlyEtcdsConfigurationSaysSo(t *testing.T) {
	t.Parallel()
	p, ca := newPlace(t), newAuthority(t, "ca")
	p.demandCertificates(ca)
	p.flags = nil
	w := p.start()
	w.awaitReady()
	p.put("key", "value")
	w.stopCleanly()
}

func TestReadyzMayHaveItsOwnCertificateFromTheFirstInstant(t *testing.T) {
	t.Parallel()
	p, ca := placeWithoutSidecar(t), newAuthority(t, "ca")
	own := ca.issue("wrapper")
	p.trust = &tls.Config{RootCAs: ca.pool(), MinVersion: tls.VersionTLS12}
	w := p.start("--etcd-wrapper-cert-path="+own.cert, "--etcd-wrapper-key-path="+own.key)
	eventually(t, "/readyz answers before the sidecar does", func() bool { return w.readyz() == http.StatusServiceUnavailable })
	assert.Equal(t, "wrapper", p.shownToClients())
	p.sidecar.listen()
	w.awaitReady()
	assert.Equal(t, "wrapper", p.shownToClients())
	p.put("key", "value")
	w.stopCleanly()
}

func TestSidecarOfAnotherAuthorityIsNotBelieved(t *testing.T) {
	t.Parallel()
	p, ca := newPlace(t), newAuthority(t, "ca")
	p.speakTLS(newAuthority(t, "stranger"), ca.bundle())
	w := p.start()
	w.awaitLine(line{"event": "no answer", "message": "certificate signed by unknown authority"})
	eventually(t, "it tries again", func() bool { return len(w.log.matching(line{"event": "no answer"})) > 2 })
	status, took := w.stop(syscall.SIGTERM)
	assert.Equal(t, 0, status)
	assert.Less(t, took, abortBudget)
	for _, later := range []string{"Trigger", "FetchConfig", "StartEtcd"} {
		assert.NotContains(t, w.log.states(), later)
	}
	assert.Empty(t, p.sidecar.filter(func(request) bool { return true }), "not a word to it")
	p.neverOpened()
}

func TestBundleWithoutCertificateIsAWrongFlag(t *testing.T) {
	t.Parallel()
	p := placeWithoutSidecar(t)
	p.writeRecord("terminated")
	for _, bundle := range []string{"", "/nowhere.crt", p.recordPath()} {
		w := p.start("--backup-restore-tls-enabled", "--backup-restore-ca-cert-bundle-path="+bundle)
		require.Equal(t, 64, w.exit(soon))
		require.NotEmpty(t, w.log.containing("--backup-restore-ca-cert-bundle-path"), "the log names the flag")
	}
	assert.Equal(t, "terminated", p.record())
}

// shownToClients is the name in the certificate of the wrapper's own server.
func (p *place) shownToClients() string {
	p.t.Helper()
	connection, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.port), p.trust)
	require.NoError(p.t, err)
	defer connection.Close() // nothing was sent
	return connection.ConnectionState().PeerCertificates[0].Subject.CommonName
}

func (p *place) putWithoutCertificate() error {
	p.t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{p.endpoint()}, TLS: p.trust, Logger: zap.NewNop()})
	require.NoError(p.t, err)
	defer client.Close() // it never worked
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err = client.Put(ctx, "key", "another value")
	return err
}
