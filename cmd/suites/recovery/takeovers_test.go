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

// succession is the number of pods that take over one cluster, each from the previous one. The time is mostly waiting, so all clusters run
const succession = 25

// TestTakenOverMember_exits has the cluster's pod paused, again and again, another one take its place from the backups
// on an empty volume, and the first one continues as if nothing had happened.
func TestTakenOverMember_exits(t *testing.T) {
	t.Parallel()
	takeOvers(t,
		func(t *testing.T, _ string) func() store {
			kept := newDepot(t).store()
			return func() store { return kept }
		},
		func(owner heir) { owner.run.Signal(syscall.SIGSTOP) },
		func(owner heir) { owner.run.Signal(syscall.SIGCONT) },
	)
}

// TestTakenOverMember_disconnectedFromServer is the same with a pod that runs all the time and is written to, and loses only
// its way to the store.
func TestTakenOverMember_disconnectedFromServer(t *testing.T) {
	t.Parallel()
	buckets := bucket(t)
	takeOvers(t,
		func(t *testing.T, prefix string) func() store { return func() store { return buckets(t, prefix) } },
		func(owner heir) { owner.store.away() },
		func(owner heir) { owner.store.back() },
	)
}

// takeOvers has that many clusters taken over. kept has the address of a store for each pod.
func takeOvers(t *testing.T, kept func(t *testing.T, prefix string) func() store, leave, comeBack func(owner heir)) {
	t.Helper()
	for done := 0; done < *rounds; done += succession {
		t.Run(fmt.Sprint("from ", done), func(t *testing.T) {
			t.Parallel()
			h := newHeirs(t, kept(t, fmt.Sprint("heirs-", done)))
			for range min(succession, *rounds-done) {
				h.takeOver(leave, comeBack)
			}
		})
	}
}

// heirs are pods of which each takes the place of the one before.
type heirs struct {
	t         *testing.T
	keeps     func() store
	heir      // who writes now
	count     int
	confirmed []string // keys that the program reported as stored
}

// heir is one of them.
type heir struct {
	*harness.Pod
	store store
	run   *harness.Run
}

func newHeirs(t *testing.T, keeps func() store) *heirs {
	h := &heirs{t: t, keeps: keeps}
	h.heir = h.next()
	return h
}

// next is a pod with an empty volume, ready.
func (h *heirs) next() heir {
	h.t.Helper()
	pod, kept := harness.NewStandalonePod(h.t, nil), h.keeps()
	kept.use(pod)
	return heir{pod, kept, pod.StartReady(quiet)}
}

// takeOver has one pod replace another, which is under load, disappears and returns.
func (h *heirs) takeOver(leave, comeBack func(owner heir)) {
	h.t.Helper()
	owner := h.heir
	writes := owner.writeOn(fmt.Sprintf("written/%d/", h.count))
	harness.Eventually(h.t, "the store has some of it", func() bool { return len(writes.confirmed()) >= 3 })
	leave(owner)
	h.heir, h.count = h.next(), h.count+1
	comeBack(owner)
	start, back := time.Now(), harness.StartWatch()
	assert.Equal(h.t, 70, owner.run.Exit(10*time.Second), "it ends by itself")
	wentOn, unhurried := time.Since(start), back.Took()
	acknowledged := writes.stop()
	h.confirmed = append(h.confirmed, writes.confirmed()...)
	lost := h.lost()
	assert.Empty(h.t, lost, "what was confirmed is there, whoever wrote it")
	sum.add(func(f *figures) {
		f.takeovers++
		f.kept, f.lost = f.kept+len(writes.confirmed()), f.lost+len(lost)
		f.wentOn, f.wentOnUnhurried = max(f.wentOn, wentOn), max(f.wentOnUnhurried, unhurried)
	})
	h.t.Logf("takeover %d: it ended %s after it came back; %d writes, %d confirmed", h.count, wentOn.Round(10*time.Millisecond), acknowledged, len(writes.confirmed()))
	h.Put("of the heir", fmt.Sprint(h.count))
	harness.Eventually(h.t, "it makes backups, and each took over once", func() bool {
		b := h.run.Status().Backup
		return b != nil && b.Generation == h.count+1
	})
	require.NoError(h.t, os.RemoveAll(owner.Volume), "a thousand of them take room")
}

// lost returns what was confirmed and is missing.
func (h *heirs) lost() (keys []string) {
	h.t.Helper()
	reply, err := h.Etcd().Get(h.t.Context(), "written/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(h.t, err)
	has := map[string]bool{}
	for _, kv := range reply.Kvs {
		has[string(kv.Key)] = true
	}
	return slices.DeleteFunc(slices.Clone(h.confirmed), func(key string) bool { return has[key] })
}

// writes has the writes of one pod, and its reports on them.
type writes struct {
	end, ended chan struct{}

	mu       sync.Mutex
	keys     []string
	revision []int64 // of each
	stored   int64   // the revision that the program reported as stored
}

// writeOn writes until it is stopped or the pod has ended.
func (p heir) writeOn(prefix string) *writes {
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
			case <-time.After(gently):
				w.write(client, fmt.Sprint(prefix, n))
				w.listen(p.run)
			}
		}
	}()
	return w
}

// gently is the pause between two writes of a pod: many are under load at the same time.
const gently = 200 * time.Millisecond

func (w *writes) write(client *clientv3.Client, key string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // a paused process does not answer
	defer cancel()
	reply, err := client.Put(ctx, key, "value")
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys, w.revision = append(w.keys, key), append(w.revision, reply.Header.Revision)
}

func (w *writes) listen(run *harness.Run) {
	backup := run.Status().Backup
	w.mu.Lock()
	defer w.mu.Unlock()
	if backup != nil {
		w.stored = max(w.stored, backup.Revision)
	}
}

// confirmed returns the keys that the store has, as the program reported.
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

// stop returns how many were acknowledged.
func (w *writes) stop() int {
	close(w.end)
	<-w.ended // each of its writes has a deadline
	return len(w.keys)
}
