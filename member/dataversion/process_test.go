package dataversion_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/cmd/suites/ports"
	"etcd-wrapper/internal/logtest"
	"etcd-wrapper/member/dataversion"
)

// patience is the timeout for each wait in these tests.
const patience = 3 * time.Minute

// tick is the polling interval of the tests.
const tick = 20 * time.Millisecond

func optIn(t *testing.T) {
	t.Helper()
	if !*allTests {
		t.Skip("this test is slow or starts etcd 3.5: enable it with -downgrade")
	}
	t.Parallel()
}

// node is a member with its directory, its addresses and, while it is running, its process.
type node struct {
	t       *testing.T
	name    string
	dir     string
	client  string
	peer    string
	process *exec.Cmd
	log     *logtest.Lines
	ended   chan struct{}
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, client: freeURL(t), peer: freeURL(t)}
	n.name = "member-" + n.peer[strings.LastIndex(n.peer, ":")+1:]
	n.dir = filepath.Join(t.TempDir(), "data")
	return n
}

func cluster(nodes ...*node) string {
	var entries []string
	for _, n := range nodes {
		entries = append(entries, n.name+"="+n.peer)
	}
	return strings.Join(entries, ",")
}

// noVersion is the wanted version of a wrapper that lets etcd choose the version.
var noVersion dataversion.Version

// start starts the embedded etcd in a process of its own, with the given wanted version.
func (n *node) start(wanted dataversion.Version, cluster, state string) {
	n.t.Helper()
	configuration, err := json.Marshal(settings{n.name, n.dir, n.client, n.peer, cluster, state, wanted.String()})
	require.NoError(n.t, err)
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), asMember+"="+string(configuration))
	n.run(command)
}

// startOldEtcd starts etcd 3.5 without a wrapper.
func (n *node) startOldEtcd(cluster string) {
	n.t.Helper()
	n.run(exec.Command(harness.OldEtcd(n.t, "3.5"), "--name="+n.name, "--data-dir="+n.dir, "--listen-client-urls="+n.client, "--advertise-client-urls="+n.client,
		"--listen-peer-urls="+n.peer, "--initial-advertise-peer-urls="+n.peer, "--initial-cluster="+cluster))
}

func (n *node) run(command *exec.Cmd) {
	n.t.Helper()
	log, done := &logtest.Lines{}, make(chan struct{})
	command.Stderr = log
	n.process, n.log, n.ended = command, log, done
	require.NoError(n.t, command.Start())
	go func() {
		_ = command.Wait() // fails if the process was killed, as in some tests
		close(done)
	}()
	n.t.Cleanup(func() {
		_ = command.Process.Kill() // the process may have exited already
		<-done
		if n.t.Failed() {
			all := log.String()
			n.t.Logf("end of the log of %s:\n%s", n.name, all[max(0, len(all)-3000):])
		}
	})
}

// stop stops the process cleanly.
func (n *node) stop() {
	n.t.Helper()
	require.NoError(n.t, n.process.Process.Signal(syscall.SIGTERM))
	n.await()
}

func (n *node) kill() {
	_ = n.process.Process.Kill() // the process may have exited already
	<-n.ended
}

func (n *node) await() {
	n.t.Helper()
	select {
	case <-n.ended:
	case <-time.After(patience):
		require.FailNow(n.t, "the process of "+n.name+" has not exited")
	}
}

// versions returns the versions that the member reports, or the zero value if the member does not respond.
func (n *node) versions() (v version.Versions) {
	if body, err := get(n.client + "/version"); err == nil {
		_ = json.Unmarshal(body, &v) // fails if etcd is not ready, which leaves v zero
	}
	return v
}

// downgrading returns "true" or "false", which is the response that a joining member gets when it asks this member
// whether a downgrade is enabled.
func (n *node) downgrading() string {
	body, _ := get(n.peer + "/downgrade/enabled") // on error, body is empty
	return string(body)
}

func get(url string) ([]byte, error) {
	client := http.Client{Timeout: 5 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// eventually waits until the condition is true. It fails the test if the process exits first or the wait times out.
func (n *node) eventually(what string, condition func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(patience); !condition(); {
		select {
		case <-n.ended:
			require.FailNow(n.t, "the process of "+n.name+" has exited", "while waiting for: %s", what)
		case <-time.After(tick):
		}
		require.True(n.t, time.Now().Before(deadline), "%s: %s; last seen %+v", n.name, what, n.versions())
	}
}

func (n *node) ready() {
	n.t.Helper()
	n.eventually("the member is healthy", func() bool {
		body, err := get(n.client + "/health")
		return err == nil && strings.Contains(string(body), `"true"`)
	})
}

// awaitVersion waits until both the cluster version and the storage version are v.
func (n *node) awaitVersion(v dataversion.Version) {
	n.t.Helper()
	n.eventually("cluster and storage version "+v.String(), func() bool {
		now := n.versions()
		return dataversion.Parse(now.Cluster) == v && dataversion.Parse(now.Storage) == v
	})
}

// awaitLog waits until the log of the running process contains the given text.
func (n *node) awaitLog(text string) {
	n.t.Helper()
	n.eventually("log entry: "+text, func() bool { return strings.Contains(n.log.String(), text) })
}

func (n *node) connect() *clientv3.Client {
	n.t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{n.client}, DialTimeout: patience, Logger: zap.NewNop()})
	require.NoError(n.t, err)
	n.t.Cleanup(func() { _ = client.Close() })
	return client
}

func (n *node) put(from, to int) {
	n.t.Helper()
	client := n.connect()
	for i := from; i < to; i++ {
		_, err := client.Put(withTimeout(n.t), key(i), key(i))
		require.NoError(n.t, err)
	}
}

// requireKeys fails the test if the member lacks any of the keys with a number below keys.
func (n *node) requireKeys(keys int) {
	n.t.Helper()
	n.ready()
	response, err := n.connect().Get(withTimeout(n.t), "key-", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(n.t, err)
	has := map[string]bool{}
	for _, kv := range response.Kvs {
		has[string(kv.Key)] = true
	}
	for i := range keys {
		require.True(n.t, has[key(i)], "%s is missing: the member has %d of %d keys", key(i), len(has), keys)
	}
}

func key(i int) string { return fmt.Sprintf("key-%05d", i) }

func withTimeout(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func freeURL(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("http://127.0.0.1:%d", ports.Lease(t))
}
