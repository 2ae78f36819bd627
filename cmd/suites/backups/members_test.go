package backups_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/cmd/suites/harness"
)

// cluster is three members that back up to one store, and clients that write all the time.
type cluster struct {
	depot
	t    *testing.T
	pods []*harness.Pod
	runs []*harness.Run

	quiet func() // ends the clients

	mu    sync.Mutex
	acked int64
	known state
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{depot: newDepot(t), t: t, pods: harness.StandaloneMembers(t, 3), known: state{}}
	for _, p := range c.pods {
		p.Flags = append(p.Flags, c.flag(), "--backup-interval=200ms")
		c.runs = append(c.runs, p.Start())
	}
	for _, run := range c.runs {
		run.AwaitReady()
	}
	c.quiet = c.beWrittenTo()
	return c
}

// beWrittenTo has a client write through any member that answers, until the test ends or the returned function is called.
func (c *cluster) beWrittenTo() (stop func()) {
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

// awaitGrowth waits until something that is written from now on is in the store.
func (c *cluster) awaitGrowth() {
	c.t.Helper()
	from := c.acknowledged()
	harness.Eventually(c.t, "etcd takes writes", func() bool { return c.acknowledged() > from })
	from = c.acknowledged()
	harness.Eventually(c.t, "the chain grows", func() bool { return c.head(c.t) >= from })
}

// writer is the member that made the newest segment.
func (c *cluster) writer() int {
	c.t.Helper()
	var head archive.Head
	harness.Eventually(c.t, "there is a segment", func() bool {
		var err error
		head, err = c.archive(c.t).Head(c.t.Context(), 1)
		return err == nil && head.Segment != nil
	})
	for i, p := range c.pods {
		if c.runs[i] != nil && fmt.Sprintf("%x", memberID(p)) == head.Segment.Member {
			return i
		}
	}
	require.FailNow(c.t, "nobody's", "%s", head.Segment.Member)
	return -1
}

func memberID(p *harness.Pod) uint64 {
	p.T.Helper()
	reply, err := p.Etcd().Status(p.T.Context(), p.Endpoint())
	require.NoError(p.T, err)
	return reply.Header.MemberId
}

// pauseInUpload stops a process while it uploads a segment, and returns the draft that it had written.
func (c *cluster) pauseInUpload(run *harness.Run) (draft string) {
	c.t.Helper()
	segments := filepath.Join(c.dir, "gen", "000001", "segment")
	news := watchFolder(c.t, segments)
	harness.Eventually(c.t, "it is paused in an upload", func() bool {
		_, err := news.Read(make([]byte, 4096)) // until something is created
		require.NoError(c.t, err)
		run.Signal(syscall.SIGSTOP)
		awaitStopped(run)
		drafts, _ := filepath.Glob(filepath.Join(segments, ".new-*"))
		if len(drafts) > 0 && !linked(drafts[0]) {
			draft = drafts[0]
			return true
		}
		run.Signal(syscall.SIGCONT) // it was quicker
		return false
	})
	return draft
}

// watchFolder can be read from whenever something is created in a folder.
func watchFolder(t *testing.T, path string) *os.File {
	t.Helper()
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	require.NoError(t, err)
	file := os.NewFile(uintptr(watch), path)
	t.Cleanup(func() { _ = file.Close() }) // it was only read
	_, err = unix.InotifyAddWatch(watch, path, unix.IN_CREATE)
	require.NoError(t, err)
	require.NoError(t, file.SetReadDeadline(time.Now().Add(10*harness.Patience)))
	return file
}

// linked says that a draft has its object's name already.
func linked(path string) bool {
	info, err := os.Stat(path)
	return err != nil || info.Sys().(*syscall.Stat_t).Nlink > 1
}

// awaitStopped waits until every thread of a process stands.
func awaitStopped(run *harness.Run) {
	run.T.Helper()
	harness.Eventually(run.T, "the process stands", func() bool {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", run.Cmd.Process.Pid))
		for _, task := range tasks {
			text, err := os.ReadFile(task)
			if err != nil || !strings.Contains(string(text), ") T ") {
				return false
			}
		}
		return len(tasks) > 0
	})
}

// requireOneChain ends all members that run and looks at what they have left.
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
		require.Equal(c.t, value, kept[key], "the acknowledged write of %s is kept", key)
	}
}

func TestAWriterThatIsPausedInItsUploadIsReplacedAndGoesOnBehindTheOther(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.awaitGrowth()
	paused := c.runs[c.writer()]
	draft := c.pauseInUpload(paused)
	position := c.head(t)
	harness.Eventually(t, "another member goes on", func() bool { return c.head(t) > position })
	c.awaitGrowth()
	paused.Signal(syscall.SIGCONT)
	harness.Eventually(t, "the upload ends", func() bool { return linked(draft) })
	c.awaitGrowth()
	assert.NotEqual(t, paused, c.runs[c.writer()], "it does not lead any longer")
	c.requireOneChain(c.runs...)
}

func TestALeaderThatIsKilledIsReplacedInTheSameChain(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.awaitGrowth()
	writer := c.writer()
	c.runs[writer].Kill()
	c.awaitGrowth()
	c.runs[writer] = c.pods[writer].StartReady()
	c.awaitGrowth()
	c.requireOneChain(c.runs...)
}

func TestALeaderThatCannotReachTheStoreIsReplacedByAnother(t *testing.T) {
	t.Parallel()
	onlyAsAWhole(t)
	c := newCluster(t)
	c.awaitGrowth()
	writer := c.writer()
	c.runs[writer].Kill()
	c.pods[writer].Flags = append(c.pods[writer].Flags, "--backup-store=file:///nowhere/at/all")
	c.runs[writer] = c.pods[writer].StartReady()
	_, err := c.pods[writer].Etcd().MoveLeader(t.Context(), memberID(c.pods[writer]))
	if err != nil { // only the leader does that
		c.lead(writer)
	}
	c.awaitGrowth()
	assert.NotEqual(t, writer, c.writer())
	c.quiet() // what the leader takes on when the others have ended nobody would store
	harness.Eventually(t, "all is stored", func() bool { return c.head(t) >= c.acknowledged() })
	c.requireOneChain(c.runs[(writer+1)%3], c.runs[(writer+2)%3])
}

// lead makes a member the leader.
func (c *cluster) lead(member int) {
	c.t.Helper()
	wanted := memberID(c.pods[member])
	harness.Eventually(c.t, "it leads", func() bool {
		for _, p := range c.pods {
			_, _ = p.Etcd().MoveLeader(c.t.Context(), wanted) // only the one that leads can
		}
		reply, err := c.pods[member].Etcd().Status(c.t.Context(), c.pods[member].Endpoint())
		return err == nil && reply.Leader == wanted
	})
}
