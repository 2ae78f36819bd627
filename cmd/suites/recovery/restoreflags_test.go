package recovery_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/internal/clock"
)

// The documentation allows users to leave --restore-to set after a restore. TestLeftoverRestoreFlags_blockNoMember
// checks that members with these flags can still be replaced. The program must not treat a start as a new restore: as
// in a release, it would then wait until there has been no new backup for 90 s, but the clients never stop writing.
func TestLeftoverRestoreFlags_blockNoMember(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		members int
		action  func(*restoredCluster)
	}{
		"one of three members lost": {3, func(l *restoredCluster) {
			l.lose(2)
			l.start(l.members, 2)
			l.requireReady()
		}},
		"two of three members lost, cluster restored": {3, func(l *restoredCluster) {
			l.lose(1, 2)
			l.start(l.members, 1, 2)
			l.requireReason(1, "stop all members, then start all of them with --restore-to=latest and the same new --restore-id")
			l.restoreAll("twice")
		}},
		"cluster grows from one member to three": {1, func(l *restoredCluster) {
			l.stop(0)
			l.start(3, 0, 1, 2)
			l.requireReady()
			l.lose(1)
			l.start(3, 1)
			l.requireReady()
		}},
		"one of two members lost, cluster restored": {2, func(l *restoredCluster) {
			l.lose(1)
			l.start(l.members, 1)
			l.requireReason(1, "stop all members, then start all of them with --restore-to=latest and the same new --restore-id")
			l.restoreAll("twice")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "one of three members lost" && !*whole {
				t.Skip("skipped: part of make test-recovery")
			}
			t.Parallel()
			l := newRestoredCluster(t, c.members)
			c.action(l)
			l.requireAcknowledged()
		})
	}
}

// A restoredCluster is a cluster under load that has been restored and whose members still have the restore flags.
type restoredCluster struct {
	t       *testing.T
	members int // number of members in initial-cluster
	pods    []*harness.Pod
	runs    []*harness.Run
	flags   []string
	etcd    *clientv3.Client
	written atomic.Int64 // number of keys that etcd has acknowledged
	paused  atomic.Bool  // the client does not write
}

func newRestoredCluster(t *testing.T, members int) *restoredCluster {
	t.Helper()
	program, err := harness.BuildAsReleased()
	require.NoError(t, err)
	l := &restoredCluster{t: t, pods: harness.StandaloneMembers(t, 3), runs: make([]*harness.Run, 3)}
	d := newDepot(t)
	var endpoints []string
	for _, p := range l.pods {
		p.Program = program
		d.store().configure(p)
		endpoints = append(endpoints, p.Endpoint())
	}
	all := numbers(members)
	l.start(members, all...)
	l.requireReady()
	l.pods[0].Put("first", "value")
	l.runs[0].AwaitStored(l.pods[0].Revision())
	l.stop(all...)
	l.flags = []string{"--restore-to=latest", "--restore-id=once"}
	l.start(members, all...)
	l.requireReady()
	l.etcd = harness.NewClient(t, clientv3.Config{Endpoints: endpoints})
	l.write()
	return l
}

func numbers(count int) (all []int) {
	for i := range count {
		all = append(all, i)
	}
	return all
}

// write makes a client write until the test ends.
func (l *restoredCluster) write() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	l.t.Cleanup(func() { cancel(); <-done; _ = l.etcd.Close() })
	go func() {
		defer close(done)
		for clock.Sleep(ctx, 20*time.Millisecond) == nil {
			if l.paused.Load() {
				continue
			}
			put, stop := context.WithTimeout(ctx, patience)
			if _, err := l.etcd.Put(put, fmt.Sprintf("key-%06d", l.written.Load()+1), "value"); err == nil {
				l.written.Add(1)
			}
			stop()
		}
	}()
	l.requireWrites()
}

func (l *restoredCluster) requireWrites() {
	l.t.Helper()
	before := l.written.Load()
	harness.Eventually(l.t, "10 more keys are written", func() bool { return l.written.Load() > before+10 })
}

// start starts some members. Their initial-cluster lists the given total number of members.
func (l *restoredCluster) start(members int, which ...int) {
	l.t.Helper()
	l.members = members
	cluster := ""
	for i, p := range l.pods[:members] {
		cluster += fmt.Sprintf(",etcd-main-%d=%s", i, p.PeerURL())
	}
	for _, i := range which {
		l.pods[i].Config["initial-cluster"] = cluster[1:]
		l.pods[i].WriteConfigFile()
		l.runs[i] = l.pods[i].Start(l.flags...)
	}
}

func (l *restoredCluster) stop(which ...int) {
	l.t.Helper()
	for _, i := range which {
		l.runs[i].Shutdown()
	}
}

// lose kills members and deletes their volumes. If the cluster loses its quorum, lose first pauses the client until
// the first member and the store have all writes, because other writes would be lost.
func (l *restoredCluster) lose(which ...int) {
	l.t.Helper()
	if l.members-len(which) <= l.members/2 {
		l.paused.Store(true)
		defer l.paused.Store(false)
		last := fmt.Sprintf("key-%06d", l.written.Load())
		harness.Eventually(l.t, "the first member has the last written key", func() bool { return l.pods[0].Get(last) == "value" })
		l.runs[0].AwaitStored(l.pods[0].Revision())
	}
	for _, i := range which {
		l.runs[i].Kill()
		require.NoError(l.t, os.RemoveAll(l.pods[i].Volume))
		require.NoError(l.t, os.Mkdir(l.pods[i].Volume, 0o700))
	}
}

func (l *restoredCluster) requireReady() {
	l.t.Helper()
	for i, run := range l.runs[:l.members] {
		for watch := harness.StartWatch(); run.Readyz() != 200; <-time.After(50 * time.Millisecond) {
			recovery := run.Status().Recovery
			require.Less(l.t, watch.Duration(), recoveryTimeout, "member %d is not ready: %+v", i, recovery)
		}
	}
}

func (l *restoredCluster) requireReason(member int, part string) {
	l.t.Helper()
	harness.Eventually(l.t, "the member reports how to proceed", func() bool {
		recovery := l.runs[member].Status().Recovery
		return recovery != nil && strings.Contains(recovery.Reason, part)
	})
}

// restoreAll stops all members and starts them with a new restore request, as the members' messages advise.
func (l *restoredCluster) restoreAll(id string) {
	l.t.Helper()
	for i := range l.members {
		l.runs[i].Kill()
	}
	l.flags = []string{"--restore-to=latest", "--restore-id=" + id}
	l.start(l.members, numbers(l.members)...)
	l.requireReady()
}

// requireAcknowledged requires that no acknowledged write is missing and that clients can write.
func (l *restoredCluster) requireAcknowledged() {
	l.t.Helper()
	l.requireWrites()
	written := l.written.Load()
	ctx, cancel := context.WithTimeout(l.t.Context(), harness.Patience)
	defer cancel()
	reply, err := l.etcd.Get(ctx, "key-", clientv3.WithPrefix(), clientv3.WithCountOnly())
	require.NoError(l.t, err)
	assert.GreaterOrEqual(l.t, reply.Count, written)
}
