package main_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// place is what outlives a process: the volume, the sidecar, the ports.
type place struct {
	t       *testing.T
	dir     string // HOME, among others
	volume  string
	sidecar *sidecar
	config  map[string]any // what the sidecar serves; nobody changes it while a process runs
	flags   []string
	env     []string
	under   []string // the command that runs the program, if it does not run by itself

	port, client, peer int         // of the wrapper and of etcd
	trust              *tls.Config // of clients, towards the wrapper: nil for plain HTTP
	identity           *tls.Config // of clients, towards etcd
}

// placeWithoutSidecar has a sidecar that listens when a test wants it to.
func placeWithoutSidecar(t *testing.T) *place {
	t.Helper()
	p := newPlace(t)
	p.sidecar.late = true
	return p
}

// newPlace has a sidecar that listens when the first process starts. What it does is scripted before that.
func newPlace(t *testing.T) *place {
	t.Helper()
	dir := t.TempDir()
	p := &place{
		t: t, dir: dir, volume: filepath.Join(dir, "volume"),
		port: freePort(t), client: freePort(t), peer: freePort(t),
	}
	require.NoError(t, os.Mkdir(p.volume, 0o700))
	p.config = p.singleMember()
	p.sidecar = newSidecar(t, func() map[string]any { return p.config })
	return p
}

// singleMember is what a sidecar serves, down to the keys that etcd does not know.
func (p *place) singleMember() map[string]any {
	client, peer := p.endpoint(), fmt.Sprintf("http://127.0.0.1:%d", p.peer)
	return map[string]any{
		"name": "etcd-main-0", "data-dir": p.data(), "metrics": "extensive",
		"advertise-client-urls": client, "listen-client-urls": client,
		"initial-advertise-peer-urls": peer, "listen-peer-urls": peer,
		"initial-cluster": "etcd-main-0=" + peer, "initial-cluster-state": "new", "initial-cluster-token": "etcd-cluster",
		"auto-compaction-mode": "periodic", "auto-compaction-retention": "30m",
		"quota-backend-bytes": int64(8589934592), "snapshot-count": 10000,
		"member-name-prefix": "etcd-main", "next-cluster-version-compatible": true,
	}
}

// withoutQuorum makes the member one of three, the others of which do not exist.
func (p *place) withoutQuorum() {
	p.config["initial-cluster"] = fmt.Sprintf("%s,etcd-main-1=http://127.0.0.1:%d,etcd-main-2=http://127.0.0.1:%d",
		p.config["initial-cluster"], freePort(p.t), freePort(p.t))
}

func (p *place) data() string        { return filepath.Join(p.volume, "new.etcd") }
func (p *place) database() string    { return filepath.Join(p.data(), "member", "snap", "db") }
func (p *place) recordPath() string  { return filepath.Join(p.volume, "exit_code") }
func (p *place) stored() string      { return filepath.Join(p.dir, "etcd.conf.yaml") }
func (p *place) termination() string { return filepath.Join(p.dir, "termination-log") }
func (p *place) endpoint() string {
	return fmt.Sprintf("%s://127.0.0.1:%d", scheme(p.identity), p.client)
}

func scheme(config *tls.Config) string {
	if config == nil {
		return "http"
	}
	return "https"
}

// record returns what the exit record holds, or why it can't be read.
func (p *place) record() string {
	content, err := os.ReadFile(p.recordPath())
	if err != nil {
		return err.Error()
	}
	return string(content)
}

func (p *place) writeRecord(content string) {
	p.t.Helper()
	require.NoError(p.t, os.WriteFile(p.recordPath(), []byte(content), 0o600))
}

// neverOpened says that no etcd has touched the volume.
func (p *place) neverOpened() {
	p.t.Helper()
	require.NoDirExists(p.t, p.data())
}

// request returns the status code and the whole body of a reply, 0 if there is none.
func (w *wrapper) request(method, path string) (int, string) {
	w.t.Helper()
	url := fmt.Sprintf("%s://127.0.0.1:%d%s", scheme(w.place.trust), w.place.port, path)
	request, err := http.NewRequest(method, url, nil)
	require.NoError(w.t, err)
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: w.place.trust}
	response, err := (&http.Client{Transport: transport, Timeout: 2 * time.Second}).Do(request)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close() // read to its end
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, ""
	}
	return response.StatusCode, string(body)
}

// etcd returns a client of the embedded etcd.
func (p *place) etcd() *clientv3.Client {
	p.t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{p.endpoint()}, TLS: p.identity, DialTimeout: soon, Logger: zap.NewNop(),
	})
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = client.Close() }) // a test may have closed it
	return client
}

// put writes a key and returns when etcd has acknowledged it.
func (p *place) put(key, value string) { //nolint:unparam // a key beside a value reads better
	p.t.Helper()
	require.NoError(p.t, p.tryPut(key, value, soon))
}

// tryPut returns nil when etcd has acknowledged the key.
func (p *place) tryPut(key, value string, within time.Duration) error {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_, err := p.etcd().Put(ctx, key, value)
	return err
}

func (p *place) get(key string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	reply, err := p.etcd().Get(ctx, key)
	require.NoError(p.t, err)
	require.Len(p.t, reply.Kvs, 1, "the key %q is there", key)
	return string(reply.Kvs[0].Value)
}

// nextPort starts anywhere below the range that outgoing connections get their ports from, so that none of them takes a
// port between its choice and its use.
var nextPort atomic.Int32

func init() { nextPort.Store(15000 + rand.Int32N(10000)) }

func freePort(t *testing.T) int {
	t.Helper()
	for range 1000 {
		port := int(nextPort.Add(1))
		if listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			require.NoError(t, listener.Close())
			return port
		}
	}
	require.FailNow(t, "no port is free")
	return 0
}

// occupy holds a port for the rest of the test.
func occupy(t *testing.T, port int) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() }) // a test may have closed it
	return listener
}
