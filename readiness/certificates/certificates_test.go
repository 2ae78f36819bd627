package certificates_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	issuer "etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/readiness/certificates"
)

// bundle writes a file with one certificate for each expiry time.
func bundle(t *testing.T, ends ...time.Time) (path string) {
	authority := issuer.NewAuthority(t, "ca")
	var content []byte
	for i, end := range ends {
		authority.IssuesUntil(end)
		one, err := os.ReadFile(authority.Issue(strconv.Itoa(i)).Cert)
		require.NoError(t, err)
		content = append(content, one...)
	}
	path = filepath.Join(t.TempDir(), "tls.crt")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

func TestExpiringCertificatesAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	past, soon, late := time.Now().Add(-time.Hour), time.Now().Add(71*time.Hour), time.Now().Add(73*time.Hour)
	files := certificates.New(map[string]string{
		certificates.SidecarCA: bundle(t, late, soon), certificates.EtcdClient: "/nowhere", certificates.EtcdPeer: "",
	}, zerolog.New(&log))
	ofEtcd := map[string]string{certificates.EtcdServer: bundle(t, past), certificates.EtcdPeer: bundle(t, late)}
	files.Add(ofEtcd)
	files.Add(ofEtcd) // the second call rereads all files, but must not log the same expiry again

	found := files.List()
	require.Len(t, found, 3)
	assert.Equal(t, certificates.EtcdPeer, found[0].Name)
	assert.Equal(t, certificates.EtcdServer, found[1].Name)
	assert.Equal(t, past.Unix(), found[1].NotAfter.Unix())
	assert.Equal(t, soon.Unix(), found[2].NotAfter.Unix(), "the earliest expiry in the bundle")
	assert.Equal(t, 1, strings.Count(log.String(), " expired on "), log.String())
	assert.Equal(t, 1, strings.Count(log.String(), " expires on "), log.String())
}

// newFiles returns Files that have been read once. It must be called in a synctest bubble.
func newFiles(paths map[string]string) *certificates.Files {
	files := certificates.New(paths, zerolog.Nop())
	synctest.Wait()
	return files
}

func TestRenewedCertificateIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soon, late := time.Now().Add(time.Hour), time.Now().Add(1000*time.Hour)
		path := bundle(t, soon)
		files := newFiles(map[string]string{certificates.EtcdServer: path})
		require.Len(t, files.List(), 1)
		assert.Equal(t, soon.Unix(), files.List()[0].NotAfter.Unix())
		require.NoError(t, os.Rename(bundle(t, late), path))
		time.Sleep(11 * time.Second)
		files.List() // rereads the files in the background
		synctest.Wait()
		assert.Equal(t, late.Unix(), files.List()[0].NotAfter.Unix())
	})
}

func TestOnlyTheServerCertificateExcludesClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		server, peer := bundle(t, now.Add(80*time.Hour), now.Add(79*time.Hour)), bundle(t, now.Add(81*time.Hour))
		files := newFiles(map[string]string{certificates.EtcdServer: server, certificates.EtcdPeer: peer})
		for _, c := range []struct {
			after       time.Duration // time of the check, relative to now
			ended, soon string        // patterns that the results must match
		}{
			{-25 * time.Hour, "^no client can connect: etcd's server certificate " + server + " is not valid before 1999-12-31 00:00 UTC; correct this machine's clock", "^etcd_peer " + peer + " is not valid before 1999-12-31 00:00 UTC; correct "},
			{0, "^$", "^$"},
			{8 * time.Hour, "^$", "^etcd_server " + server + ` expires on 2000-01-04 07:00 UTC; renew it in its Secret; no restart is needed$`},
			{79 * time.Hour, "^$", "^etcd_peer " + peer + " expires on .* UTC; renew it .*; etcd_server .* expired on .* UTC; renew it "},
			{80 * time.Hour, "^no client can connect: etcd's server certificate " + server + " expired on 2000-01-04 08:00 UTC; renew it", "^etcd_peer .* expires"},
			{81 * time.Hour, "^no client can connect: etcd's server certificate", "^etcd_peer .* expired"},
		} {
			ended, soon := files.Check(now.Add(c.after))
			assert.Regexp(t, c.ended, ended, "after %v", c.after)
			assert.Regexp(t, c.soon, soon, "after %v", c.after)
		}
	})
}

// If the CA bundle that etcd has loaded has expired, clients must be reported as locked out even if the file has been
// renewed, because etcd reads CA bundles only at startup.
func TestCABundlesAreCheckedAsLoadedByEtcd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		clients, peers := bundle(t, now.Add(70*time.Hour), now.Add(90*time.Hour)), bundle(t, now.Add(200*time.Hour))
		var log bytes.Buffer
		files := certificates.New(map[string]string{}, zerolog.New(&log))
		files.Add(map[string]string{certificates.EtcdServerCA: clients, certificates.EtcdPeerCA: peers})
		ended, soon := files.Check(now)
		assert.Empty(t, ended)
		assert.Regexp(t, "^etcd_server_ca .* expires on ", soon)
		assert.Contains(t, log.String(), "restart this member, because etcd reads it only at startup")

		require.NoError(t, os.Rename(bundle(t, now.Add(1000*time.Hour)), clients))
		time.Sleep(11 * time.Second)
		files.List() // rereads the files in the background
		synctest.Wait()
		ended, soon = files.Check(now)
		assert.Empty(t, ended)
		assert.Equal(t, "etcd_server_ca "+clients+" has changed since etcd loaded it: restart this member", soon)
		ended, _ = files.Check(now.Add(90 * time.Hour))
		assert.Regexp(t, "^no client with a certificate can connect: .* expired on .*; restart this member to load the renewed file$", ended)
		ended, _ = files.Check(now.Add(-25 * time.Hour))
		assert.Equal(t, "no client with a certificate can connect: etcd_server_ca "+clients+", which etcd loaded at startup, is not valid before 1999-12-31 00:00 UTC; "+
			"correct this machine's clock or reissue the certificate", ended)

		files.Add(nil) // simulates a restart of etcd
		ended, soon = files.Check(now.Add(90 * time.Hour))
		assert.Empty(t, ended+soon)
	})
}

// An expired peer CA must not be reported as locking out clients, because established connections between members
// stay open.
func TestExpiredAuthorityOfPeersDoesNotExcludeClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		peers := bundle(t, now.Add(90*time.Hour))
		files := certificates.New(map[string]string{}, zerolog.Nop())
		files.Add(map[string]string{certificates.EtcdPeerCA: peers})
		ended, soon := files.Check(now.Add(90 * time.Hour))
		assert.Empty(t, ended)
		assert.Equal(t, "no other member can connect: etcd_peer_ca "+peers+", which etcd loaded at startup, expired on 2000-01-04 18:00 UTC; "+
			"renew it in its Secret and restart this member, because etcd reads it only at startup", soon)
	})
}

// No caller may be delayed if a certificate file is a pipe without a writer, which blocks readers.
func TestFileThatBlocksDelaysNoCaller(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	count := make(chan int, 1)
	go func() {
		files := certificates.New(map[string]string{certificates.SidecarCA: fifo, certificates.EtcdClient: os.DevNull}, zerolog.Nop())
		files.Add(nil)
		count <- len(files.List())
	}()
	select {
	case found := <-count:
		require.Zero(t, found)
	case <-time.After(10 * time.Second):
		require.Fail(t, "the caller is blocked by the pipe")
	}
}
