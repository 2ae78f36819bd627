package backups_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/cmd/suites/harness"
)

// A cluster has three members that share a store, and a client that writes to them until stopWriters is called.
type cluster struct {
	depot
	t    *testing.T
	pods []*harness.Pod
	runs []*harness.Run

	stopWriters func()

	mu    sync.Mutex
	acked int64 // highest acknowledged revision
	known state // values of the acknowledged writes
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{depot: newDepot(t), t: t, pods: harness.StandaloneMembers(t, 3), known: state{}}
	for _, p := range c.pods {
		p.Flags = append(p.Flags, c.flag(), "--backup-interval=200ms")
	}
	c.runs = harness.StartAll(c.pods)
	c.stopWriters = c.startWriters()
	return c
}

// startWriters starts a client that writes to any available member until the test ends or stop is called.
func (c *cluster) startWriters() (stop func()) {
	c.t.Helper()
	var endpoints []string
	for _, p := range c.pods {
		endpoints = append(endpoints, p.Endpoint())
	}
	etcd := c.pods[0].Etcd()
	etcd.SetEndpoints(endpoints...)
	ctx, cancel := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			c.put(ctx, etcd, fmt.Sprintf("key-%d", i), fmt.Sprint(i))
		}
	})
	stop = sync.OnceFunc(func() { cancel(); writing.Wait() })
	c.t.Cleanup(stop)
	return stop
}

func (c *cluster) put(ctx context.Context, etcd *clientv3.Client, key, value string) {
	ctx, cancel := context.WithTimeout(ctx, harness.Patience/20)
	defer cancel()
	reply, err := etcd.Put(ctx, key, value)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[key] = value
	c.acked = max(c.acked, reply.Header.Revision)
}

func (c *cluster) acknowledged() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.acked
}

// awaitGrowth waits until the store contains a write that was acknowledged during the call.
func (c *cluster) awaitGrowth() {
	c.t.Helper()
	from := c.acknowledged()
	harness.Eventually(c.t, "etcd acknowledges a write", func() bool { return c.acknowledged() > from })
	from = c.acknowledged()
	harness.Eventually(c.t, "the store contains the write", func() bool { return c.head(c.t) >= from })
}

// writer returns the index of the member that uploaded the newest segment.
func (c *cluster) writer() int {
	c.t.Helper()
	var head archive.Head
	harness.Eventually(c.t, "the store contains a segment", func() bool {
		var err error
		head, err = c.archive(c.t).Head(c.t.Context(), 1)
		return err == nil && head.Segment != nil
	})
	for i, p := range c.pods {
		if c.runs[i] != nil && fmt.Sprintf("%x", memberID(p)) == head.Segment.Member {
			return i
		}
	}
	require.FailNow(c.t, "the newest segment was not uploaded by a running member", "member ID %s", head.Segment.Member)
	return -1
}

func memberID(p *harness.Pod) uint64 {
	p.T.Helper()
	reply, err := p.Etcd().Status(p.T.Context(), p.Endpoint())
	require.NoError(p.T, err)
	return reply.Header.MemberId
}

// pauseInUpload suspends a process while it is uploading a segment, and returns the path of the temporary file.
func (c *cluster) pauseInUpload(run *harness.Run) (draft string) {
	c.t.Helper()
	segments := filepath.Join(c.dir, "gen", "000001", "segment")
	created := watchFolder(c.t, segments)
	harness.Eventually(c.t, "the process is suspended during an upload", func() bool {
		_, err := created.Read(make([]byte, 4096)) // blocks until a file has been created
		require.NoError(c.t, err)
		run.Signal(syscall.SIGSTOP)
		awaitStopped(run)
		drafts, _ := filepath.Glob(filepath.Join(segments, ".new-*"))
		if len(drafts) > 0 && !isUploaded(drafts[0]) {
			draft = drafts[0]
			return true
		}
		run.Signal(syscall.SIGCONT) // the upload was already complete: try the next one
		return false
	})
	return draft
}

// requireOneChain stops the given members, and requires that the store contains a single chain and that this chain
// contains every acknowledged write.
func (c *cluster) requireOneChain(stop ...*harness.Run) {
	c.t.Helper()
	for _, run := range stop {
		run.Signal(syscall.SIGTERM)
	}
	for _, run := range stop {
		require.Zero(c.t, run.Exit(harness.Patience))
	}
	chains := c.requireSound(c.t)
	require.Len(c.t, chains, 1)
	assert.GreaterOrEqual(c.t, chains[0].To, c.acknowledged())
	kept := c.keys(c.t, archive.Target{})
	for key, value := range c.known {
		require.Equal(c.t, value, kept[key], "the store contains the acknowledged write of %s", key)
	}
}

// lead transfers leadership to the given member.
func (c *cluster) lead(member int) {
	c.t.Helper()
	wanted := memberID(c.pods[member])
	harness.Eventually(c.t, "the member is the leader", func() bool {
		for _, p := range c.pods {
			_, _ = p.Etcd().MoveLeader(c.t.Context(), wanted) // only the leader accepts the request
		}
		reply, err := c.pods[member].Etcd().Status(c.t.Context(), c.pods[member].Endpoint())
		return err == nil && reply.Leader == wanted
	})
}
