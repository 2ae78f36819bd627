package faults_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/store/storetest/servers"
	"etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/cmd/suites/ports"
)

var kubeAPIServer = flag.String("kube-apiserver", "",
	"path of a kube-apiserver; enables the test that runs it on a member with --backup-ack=stored")

const (
	objectWriters = 10
	objectChanges = 2000 // number of acknowledged changes before each loss of the volume
)

// TestStored_kubernetesKeepsEveryAcknowledgedObject runs an API server on a member with --backup-ack=stored, whose
// store has a latency of 20 ms. Under load, no request may fail until the member is killed and loses its volume. No
// change that was acknowledged or that a watch returned may be lost. The timeouts are those of a release.
func TestStored_kubernetesKeepsEveryAcknowledgedObject(t *testing.T) {
	if *kubeAPIServer == "" {
		t.Skip("skipped: requires -kube-apiserver, which make test-deploy sets")
	}
	t.Parallel()
	asReleased, err := harness.BuildAsReleased()
	require.NoError(t, err)
	server := servers.S3(t)
	servers.MakeS3Bucket(t, server, "kubernetes")
	p, _ := storingOn(t, server, "kubernetes", 20*time.Millisecond)
	p.Program = asReleased
	run := p.StartReady()
	k := startKubernetes(t, p)
	for range *losses {
		k.load(func() {
			run.Kill()
			require.NoError(t, os.RemoveAll(p.Volume))
		})
		run = p.Start()
		awaitRestored(run)
		k.check(p)
	}
	run.Shutdown()
}

// kubernetes is an API server together with the state of its objects as seen by the clients.
type kubernetes struct {
	t      *testing.T
	url    string
	client *http.Client
	ending atomic.Bool // set once the member is about to be killed, so that requests may fail

	mu      sync.Mutex
	objects map[string]*object
	took    []time.Duration // durations of the successful requests
	changes int             // number of acknowledged changes
}

// An object counts the changes to a Kubernetes object that were requested, acknowledged and returned by a watch. The
// changes are the creation, an update and, for some objects, the deletion.
type object struct{ requested, acknowledged, watched int }

// deleted is the number of changes to an object that has been deleted.
const deleted = 3

func startKubernetes(t *testing.T, p *harness.Pod) *kubernetes {
	t.Helper()
	port, tokens := ports.Lease(t), filepath.Join(p.Dir, "tokens.csv")
	accounts := certificates.NewAuthority(t, "accounts").Issue("accounts")
	require.NoError(t, os.WriteFile(tokens, []byte("token,admin,admin,system:masters\n"), 0o600))
	log, err := os.Create(filepath.Join(p.Dir, "kube-apiserver.log"))
	require.NoError(t, err)
	command := exec.Command(*kubeAPIServer, "--etcd-servers="+p.Endpoint(), "--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port), "--cert-dir="+filepath.Join(p.Dir, "apiserver"), "--token-auth-file="+tokens,
		"--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16", "--endpoint-reconciler-type=none",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+accounts.Cert,
		"--service-account-signing-key-file="+accounts.Key)
	command.Stdout, command.Stderr = log, log
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill() // the process may have exited already
		_ = command.Wait()
		_ = log.Close() // the test wrote nothing, so a close error is harmless
		if content, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("end of the API server's log:\n%s", content[max(0, len(content)-5000):])
		}
	})
	k := &kubernetes{
		t: t, url: fmt.Sprintf("https://127.0.0.1:%d", port), objects: map[string]*object{},
		client: &http.Client{Transport: &http.Transport{TLSClientConfig: certificates.Insecure(), ForceAttemptHTTP2: true}},
	}
	t.Cleanup(k.client.CloseIdleConnections)
	k.awaitReady()
	return k
}

// awaitReady waits until the API server is ready. The timeout is long, because the API server takes minutes to
// reconnect if etcd was unreachable for a minute.
func (k *kubernetes) awaitReady() {
	k.t.Helper()
	for _, path := range []string{"/readyz", "/api/v1/namespaces/default"} {
		require.Eventually(k.t, func() bool {
			ctx, cancel := context.WithTimeout(k.t.Context(), 10*time.Second)
			defer cancel()
			_, err := k.request(ctx, http.MethodGet, path, "", 0)
			return err == nil
		}, 10*time.Minute, 100*time.Millisecond, "the API server does not respond to %s", path)
	}
}

// configMap contains the fields of a ConfigMap that the test reads.
type configMap struct {
	Metadata struct{ Name string }
	Data     struct{ Changes string }
}

const configMaps = "/api/v1/namespaces/default/configmaps"

// request sends a request. If name is set, the body is a ConfigMap that records the given number of changes.
func (k *kubernetes) request(ctx context.Context, method, path, name string, changes int) (content []byte, err error) {
	body := ""
	if name != "" {
		body = fmt.Sprintf(`{"metadata": {"name": %q}, "data": {"changes": "%d"}}`, name, changes)
	}
	reply, err := k.send(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	if content, err = io.ReadAll(reply.Body); err == nil && reply.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s: %s", reply.Status, content)
	}
	return content, err
}

func (k *kubernetes) send(ctx context.Context, method, path, body string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, k.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer token")
	request.Header.Set("Content-Type", "application/json")
	return k.client.Do(request)
}

// load changes, reads and watches objects until enough changes have been acknowledged. It then calls end, during which
// requests may fail, and stops.
func (k *kubernetes) load(end func()) {
	k.t.Helper()
	k.ending.Store(false)
	k.changes, k.took = 0, nil
	ctx, cancel := context.WithCancel(k.t.Context())
	defer cancel()
	var clients sync.WaitGroup
	clients.Go(func() { k.watch(ctx) })
	first := len(k.objects)
	for n := range objectWriters {
		clients.Go(func() {
			for i := 0; ctx.Err() == nil && k.useObject(ctx, fmt.Sprintf("%d-%d-%d", first, n, i), i); i++ {
			}
		})
	}
	harness.Eventually(k.t, "the API server has acknowledged enough changes", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.changes >= objectChanges
	})
	k.ending.Store(true)
	end()
	cancel()
	clients.Wait()
	slices.Sort(k.took)
	k.t.Logf("%d requests, of which %d changed something: median %s, p99 %s, longest %s", len(k.took), k.changes,
		k.took[len(k.took)/2], k.took[len(k.took)*99/100], k.took[len(k.took)-1])
}

// useObject creates, updates and reads an object, deletes every third one, and reports whether all requests succeeded.
func (k *kubernetes) useObject(ctx context.Context, name string, number int) bool {
	known, path := &object{}, configMaps+"/"+name
	k.mu.Lock()
	k.objects[name] = known
	k.mu.Unlock()
	content, ok := k.must(ctx, http.MethodPost, configMaps, name, known)
	if ok {
		_, ok = k.must(ctx, http.MethodPut, path, name, known)
	}
	if ok {
		content, ok = k.must(ctx, http.MethodGet, path, "", nil)
	}
	if ok {
		assert.Contains(k.t, string(content), `"changes":"2"`)
	}
	if ok && number%3 == 0 {
		_, ok = k.must(ctx, http.MethodDelete, path, "", known)
	}
	if ok && number%10 == 0 {
		_, ok = k.must(ctx, http.MethodGet, configMaps+"?limit=100", "", nil)
	}
	return ok
}

// must sends a request that may fail only if the member is about to exit. changed is the object that the request
// changes, or nil.
func (k *kubernetes) must(ctx context.Context, method, path, name string, changed *object) (content []byte, ok bool) {
	start, changes := time.Now(), 0
	if changed != nil {
		k.mu.Lock()
		changed.requested++
		changes = changed.requested
		k.mu.Unlock()
	}
	content, err := k.request(ctx, method, path, name, changes)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		assert.True(k.t, k.ending.Load(), "%s %s failed: %v", method, path, err)
		return nil, false
	}
	k.took = append(k.took, time.Since(start))
	if changed != nil {
		k.changes++
		changed.acknowledged = changes
	}
	return content, true
}

// watch records the changes that a watch returns, and restarts the watch after an error.
func (k *kubernetes) watch(ctx context.Context) {
	for ctx.Err() == nil {
		reply, err := k.send(ctx, http.MethodGet, configMaps+"?watch=true", "")
		if err != nil {
			continue
		}
		for events := json.NewDecoder(reply.Body); err == nil; {
			var event struct {
				Type   string
				Object configMap
			}
			if err = events.Decode(&event); err == nil {
				k.mu.Lock()
				if known := k.objects[event.Object.Metadata.Name]; known != nil {
					known.watched = max(known.watched, event.Object.changes(event.Type != "DELETED"))
				}
				k.mu.Unlock()
			}
		}
		_ = reply.Body.Close() // the decoder has already returned an error
	}
}

// changes returns the number of changes to an object, including the deletion if it no longer exists.
func (c configMap) changes(exists bool) (count int) {
	if !exists {
		return deleted
	}
	_, _ = fmt.Sscan(c.Data.Changes, &count) // ConfigMaps from other clients have no count
	return count
}

// check requires that the API server lists every change that a client has seen and no change that was not requested,
// and that it lists as many objects as etcd contains.
func (k *kubernetes) check(p *harness.Pod) {
	k.t.Helper()
	k.awaitReady()
	content, err := k.request(k.t.Context(), http.MethodGet, configMaps, "", 0)
	require.NoError(k.t, err)
	var list struct{ Items []configMap }
	require.NoError(k.t, json.Unmarshal(content, &list))
	stored, err := p.Etcd().Get(k.t.Context(), "/registry/configmaps/default/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	require.NoError(k.t, err)
	require.EqualValues(k.t, stored.Count, len(list.Items))
	exists := map[string]configMap{}
	for _, item := range list.Items {
		exists[item.Metadata.Name] = item
	}
	for name, known := range k.objects {
		item, found := exists[name]
		changes := item.changes(found)
		if !found && known.requested < deleted {
			changes = 0
		}
		require.LessOrEqual(k.t, max(known.acknowledged, known.watched), changes, "%s: %+v", name, known)
		require.LessOrEqual(k.t, changes, known.requested, "%s: %+v", name, known)
	}
	k.t.Logf("%d of %d created objects exist", len(exists), len(k.objects))
}
