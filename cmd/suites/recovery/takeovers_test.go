package recovery_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// TestWhoIsTakenOverEndsWhenItComesBack has the cluster's pod paused, again and again, another one take its place from the backups
// on an empty volume, and the first one go on as if nothing had happened.
func TestWhoIsTakenOverEndsWhenItComesBack(t *testing.T) {
	t.Parallel()
	kept := newDepot(t).store()
	h := newHeirs(t, func() store { return kept })
	for range *rounds {
		h.takeOver(
			func(owner heir) { owner.run.Signal(syscall.SIGSTOP) },
			func(owner heir) { owner.run.Signal(syscall.SIGCONT) },
		)
	}
}

// TestWhoIsCutOffFromTheServerEndsWhenItComesBack is the same with a pod that runs all the time and is written to, and loses only
// its way to the store.
func TestWhoIsCutOffFromTheServerEndsWhenItComesBack(t *testing.T) {
	t.Parallel()
	buckets := bucket(t)
	h := newHeirs(t, func() store { return buckets(t, "heirs") })
	for range *rounds {
		h.takeOver(func(owner heir) { owner.store.away() }, func(owner heir) { owner.store.back() })
	}
}

// heirs are pods of which each takes the place of the one before.
type heirs struct {
	t     *testing.T
	keeps func() store
	heir  // who writes now
	count int
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

// takeOver sees one pod take the place of another, which leaves and comes back.
func (h *heirs) takeOver(leave, comeBack func(owner heir)) {
	h.t.Helper()
	owner, key := h.heir, fmt.Sprint("confirmed-", h.count)
	reply, err := owner.Etcd().Put(h.t.Context(), key, "value")
	require.NoError(h.t, err)
	harness.Eventually(h.t, "the store has it", func() bool {
		b := owner.run.Status().Backup
		return b != nil && b.Revision >= reply.Header.Revision
	})
	stop := owner.writeOn()
	leave(owner)
	h.heir, h.count = h.next(), h.count+1
	for i := range h.count {
		require.Equal(h.t, "value", h.Get(fmt.Sprint("confirmed-", i)), "what was confirmed is there, whoever wrote it")
	}
	comeBack(owner)
	back := harness.StartWatch()
	assert.Equal(h.t, 70, owner.run.Exit(10*time.Second), "it ends by itself")
	h.t.Logf("takeover %d: it ended %s after it came back, %d writes later", h.count, back.Took().Round(10*time.Millisecond), stop())
	h.Put("of the heir", key)
	harness.Eventually(h.t, "it makes backups, and each took over once", func() bool {
		b := h.run.Status().Backup
		return b != nil && b.Generation == h.count+1
	})
}

// writeOn writes all the time until it is stopped, which says how much was acknowledged.
func (p heir) writeOn() (stop func() int64) {
	var acknowledged atomic.Int64
	client, end, ended := p.Etcd(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-p.run.Ended:
				return
			case <-time.After(20 * time.Millisecond):
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second) // who is paused answers nobody
			if _, err := client.Put(ctx, "undone", "value"); err == nil {
				acknowledged.Add(1)
			}
			cancel()
		}
	}()
	return func() int64 {
		close(end)
		<-ended
		return acknowledged.Load()
	}
}
