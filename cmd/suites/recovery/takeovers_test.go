package recovery_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

// takeoversPerCluster is the number of takeovers after which a new cluster is created. Clusters run in parallel,
// because the pods spend most of their time waiting.
const takeoversPerCluster = 25

// TestTakenOverMember_exits suspends a pod, restores its backups in another pod, and resumes the first pod. The first
// pod must then exit, and no write that it reported as stored may be lost.
func TestTakenOverMember_exits(t *testing.T) {
	t.Parallel()
	takeOvers(t,
		func(t *testing.T, _ string) func() store {
			kept := newDepot(t).store()
			return func() store { return kept }
		},
		func(owner backupWriter) { owner.run.Signal(syscall.SIGSTOP) },
		func(owner backupWriter) { owner.run.Signal(syscall.SIGCONT) },
	)
}

// TestTakenOverMember_disconnectedFromServer is like TestTakenOverMember_exits, but instead of being suspended, the
// first pod remains under load without a connection to the store.
func TestTakenOverMember_disconnectedFromServer(t *testing.T) {
	t.Parallel()
	buckets := bucket(t)
	takeOvers(t,
		func(t *testing.T, prefix string) func() store { return func() store { return buckets(t, prefix) } },
		func(owner backupWriter) { owner.store.disconnect() },
		func(owner backupWriter) { owner.store.reconnect() },
	)
}

// takeOvers runs all takeovers. For each cluster, newStores returns a function that returns a store for each pod.
// interrupt suspends or disconnects the current pod, and resume ends this after another pod has taken over.
func takeOvers(t *testing.T, newStores func(t *testing.T, prefix string) func() store, interrupt, resume func(owner backupWriter)) {
	t.Helper()
	for done := 0; done < *rounds; done += takeoversPerCluster {
		t.Run(fmt.Sprint("from ", done), func(t *testing.T) {
			t.Parallel()
			h := newSuccession(t, newStores(t, fmt.Sprint("takeovers-", done)))
			for range min(takeoversPerCluster, *rounds-done) {
				h.takeOver(interrupt, resume)
			}
		})
	}
}

// A succession is a cluster that pods take over one after another.
type succession struct {
	t            *testing.T
	newStore     func() store
	backupWriter          // the current pod
	count        int      // number of takeovers
	confirmed    []string // keys that a pod reported as stored
}

// A backupWriter is a pod together with its store and its process.
type backupWriter struct {
	*harness.Pod
	store store
	run   *harness.Run
}

func newSuccession(t *testing.T, newStore func() store) *succession {
	h := &succession{t: t, newStore: newStore}
	h.backupWriter = h.startWriter()
	return h
}

// startWriter starts a pod with an empty volume and waits until it is ready.
func (h *succession) startWriter() backupWriter {
	h.t.Helper()
	pod, store := harness.NewStandalonePod(h.t, nil), h.newStore()
	store.configure(pod)
	return backupWriter{pod, store, pod.StartReady(infoLevel)}
}

// takeOver interrupts the current pod, which is under load, starts another pod, and then resumes the first one, which
// must exit.
func (h *succession) takeOver(interrupt, resume func(owner backupWriter)) {
	h.t.Helper()
	owner := h.backupWriter
	writes := owner.startWriting(fmt.Sprintf("written/%d/", h.count))
	harness.Eventually(h.t, "the pod has reported three writes as stored", func() bool { return len(writes.confirmed()) >= 3 })
	interrupt(owner)
	h.backupWriter, h.count = h.startWriter(), h.count+1
	resume(owner)
	start, watch := time.Now(), harness.StartWatch()
	assert.Equal(h.t, 70, owner.run.Exit(10*time.Second), "exit status of the previous pod")
	overlap, idleOverlap := time.Since(start), watch.Duration()
	acknowledged := writes.stop()
	h.confirmed = append(h.confirmed, writes.confirmed()...)
	lost := h.missingKeys()
	assert.Empty(h.t, lost, "writes that were reported as stored must not be lost")
	sum.add(func(f *figures) {
		f.takeovers++
		f.confirmed, f.lost = f.confirmed+len(writes.confirmed()), f.lost+len(lost)
		f.longestOverlap, f.longestOverlapIdle = max(f.longestOverlap, overlap), max(f.longestOverlapIdle, idleOverlap)
	})
	h.t.Logf("takeover %d: the previous pod exited %s after it was resumed; %d writes, %d confirmed", h.count, overlap.Round(10*time.Millisecond), acknowledged, len(writes.confirmed()))
	h.Put("takeover", fmt.Sprint(h.count))
	harness.Eventually(h.t, "the new pod stores backups in a generation of its own", func() bool {
		b := h.run.Status().Backup
		return b != nil && b.Generation == h.count+1
	})
	require.NoError(h.t, os.RemoveAll(owner.Volume), "the volume must be removed to save space")
}

// missingKeys returns the confirmed keys that no longer exist.
func (h *succession) missingKeys() (keys []string) {
	h.t.Helper()
	reply, err := h.Etcd().Get(h.t.Context(), "written/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(h.t, err)
	has := map[string]bool{}
	for _, kv := range reply.Kvs {
		has[string(kv.Key)] = true
	}
	return slices.DeleteFunc(slices.Clone(h.confirmed), func(key string) bool { return has[key] })
}

// A writes records the acknowledged writes to a pod, and the revision that the pod has reported as stored.
type writes struct {
	end, ended chan struct{}

	mu       sync.Mutex
	keys     []string
	revision []int64 // revision of each key
	stored   int64   // highest revision that the pod has reported as stored
}

// startWriting starts a client that writes until it is stopped or the pod has exited.
func (p backupWriter) startWriting(prefix string) *writes {
	w := &writes{end: make(chan struct{}), ended: make(chan struct{})}
	client := p.Etcd()
	go func() {
		defer close(w.ended)
		defer client.Close()
		for n := 0; ; n++ {
			select {
			case <-w.end:
				return
			case <-p.run.Ended:
				return
			case <-time.After(writePause):
				w.write(client, fmt.Sprint(prefix, n))
				w.readStatus(p.run)
			}
		}
	}()
	return w
}

// writePause is the pause between two writes to a pod. It is long, because many pods are under load at the same time.
const writePause = 200 * time.Millisecond

func (w *writes) write(client *clientv3.Client, key string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // a suspended process does not respond
	defer cancel()
	reply, err := client.Put(ctx, key, "value")
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys, w.revision = append(w.keys, key), append(w.revision, reply.Header.Revision)
}

func (w *writes) readStatus(run *harness.Run) {
	backup := run.Status().Backup
	w.mu.Lock()
	defer w.mu.Unlock()
	if backup != nil {
		w.stored = max(w.stored, backup.Revision)
	}
}

// confirmed returns the keys that the pod has reported as stored.
func (w *writes) confirmed() (keys []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, key := range w.keys {
		if w.revision[i] <= w.stored {
			keys = append(keys, key)
		}
	}
	return keys
}

// stop stops the client and returns the number of acknowledged writes.
func (w *writes) stop() int {
	close(w.end)
	<-w.ended // soon, because each write has a deadline
	return len(w.keys)
}
