package faults_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcd-wrapper/cmd/suites/harness"
)

// If a listener fails, the process must exit, because clients or peers cannot connect until it is restarted.
func TestFaultListenerFails(t *testing.T) {
	t.Parallel()
	for name, listener := range map[string]struct {
		port    func(p *harness.Pod) int
		status  int
		message string
	}{
		"of etcd's clients": {func(p *harness.Pod) int { return p.ClientPort }, 70, "an etcd listener failed"},
		"of etcd's peers":   {func(p *harness.Pod) int { return p.PeerPort }, 70, "an etcd listener failed"},
		"of the wrapper":    {func(p *harness.Pod) int { return p.Port }, 69, "cannot serve on"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trial(t, "serving", "failed listener "+name)
			p := harness.NewPod(t)
			p.ExpectTerminationMessage()
			run := p.StartReady()
			cutListener(run, listener.port(p))
			status := run.Exit(harness.StopBudget)
			assert.Equal(t, listener.status, status)
			assertRecord(run, status, nil)
			assert.False(t, clean(p))
			assertExplained(p, run, listener.message)
			assertNextStart(p, t, "a failed listener")
		})
	}
}

// cutListener makes a listener of the process fail by shutting down its socket from outside.
func cutListener(run *harness.Run, port int) {
	run.T.Helper()
	process, err := unix.PidfdOpen(run.Cmd.Process.Pid, 0)
	require.NoError(run.T, err)
	defer unix.Close(process)
	socket, err := unix.PidfdGetfd(process, listener(run, port), 0)
	if err != nil {
		run.T.Skipf("skipped: cannot get a file descriptor of another process: %v", err)
	}
	defer unix.Close(socket)
	require.NoError(run.T, unix.Shutdown(socket, unix.SHUT_RDWR))
}

// listener returns the file descriptor of the process's socket that is listening on the port.
func listener(run *harness.Run, port int) (fd int) {
	run.T.Helper()
	dir := fmt.Sprintf("/proc/%d", run.Cmd.Process.Pid)
	wanted := "socket:[" + inode(run.T, dir, port) + "]"
	entries, err := os.ReadDir(filepath.Join(dir, "fd"))
	require.NoError(run.T, err)
	for _, entry := range entries {
		if target, _ := os.Readlink(filepath.Join(dir, "fd", entry.Name())); target == wanted {
			_, err := fmt.Sscan(entry.Name(), &fd)
			require.NoError(run.T, err)
			return fd
		}
	}
	require.FailNow(run.T, "the process has no socket that is listening on the port")
	return 0
}

// inode returns the inode of the socket that is listening on the port. In the kernel's table of sockets, column 2
// contains the local address, column 4 the state, and column 10 the inode.
func inode(t *testing.T, dir string, port int) string {
	t.Helper()
	const listening = "0A"
	for _, family := range []string{"tcp", "tcp6"} {
		table, err := os.ReadFile(filepath.Join(dir, "net", family))
		require.NoError(t, err)
		for line := range strings.Lines(string(table)) {
			columns := strings.Fields(line)
			if strings.HasSuffix(columns[1], fmt.Sprintf(":%04X", port)) && columns[3] == listening {
				return columns[9]
			}
		}
	}
	require.FailNow(t, "no socket is listening", "port %d", port)
	return ""
}
