package backups_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcd-wrapper/cmd/suites/harness"
)

// watchFolder returns an inotify file that becomes readable when a file is created in the directory.
func watchFolder(t *testing.T, path string) *os.File {
	t.Helper()
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	require.NoError(t, err)
	file := os.NewFile(uintptr(watch), path)
	t.Cleanup(func() { _ = file.Close() }) // nothing was written, so a close error is harmless
	_, err = unix.InotifyAddWatch(watch, path, unix.IN_CREATE)
	require.NoError(t, err)
	require.NoError(t, file.SetReadDeadline(time.Now().Add(10*harness.Patience)))
	return file
}

// isUploaded reports whether the upload with the given temporary file is complete: the file has been linked to its
// final name, or has been removed afterwards.
func isUploaded(path string) bool {
	info, err := os.Stat(path)
	return err != nil || info.Sys().(*syscall.Stat_t).Nlink > 1
}

// awaitStopped waits until every thread of a process is suspended.
func awaitStopped(run *harness.Run) {
	run.T.Helper()
	harness.Eventually(run.T, "the process is suspended", func() bool {
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

func TestPausedWriter_isReplacedAndContinues(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.awaitGrowth()
	paused := c.runs[c.writer()]
	draft := c.pauseInUpload(paused)
	position := c.head(t)
	harness.Eventually(t, "another member continues the chain", func() bool { return c.head(t) > position })
	c.awaitGrowth()
	paused.Signal(syscall.SIGCONT)
	harness.Eventually(t, "the resumed upload is complete", func() bool { return isUploaded(draft) })
	c.awaitGrowth()
	assert.NotEqual(t, paused, c.runs[c.writer()], "the suspended member has lost leadership")
	c.requireOneChain(c.runs...)
}

func TestKilledLeader_chainContinues(t *testing.T) {
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

func TestLeaderWithoutStore_isReplaced(t *testing.T) {
	t.Parallel()
	requireWholeFlag(t)
	c := newCluster(t)
	c.awaitGrowth()
	writer := c.writer()
	c.runs[writer].Kill()
	c.pods[writer].Flags = append(c.pods[writer].Flags, "--backup-store=file:///nowhere/at/all")
	c.runs[writer] = c.pods[writer].StartReady()
	_, err := c.pods[writer].Etcd().MoveLeader(t.Context(), memberID(c.pods[writer]))
	if err != nil { // the request has failed, so the member is not the leader yet
		c.lead(writer)
	}
	c.awaitGrowth()
	assert.NotEqual(t, writer, c.writer())
	c.stopWriters() // otherwise, etcd could acknowledge writes while the members that can upload them are stopping
	harness.Eventually(t, "all acknowledged writes are in the store", func() bool { return c.head(t) >= c.acknowledged() })
	c.requireOneChain(c.runs[(writer+1)%3], c.runs[(writer+2)%3])
}
