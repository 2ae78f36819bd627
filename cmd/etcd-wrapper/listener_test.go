package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A listener that dies takes the process with it: a member that nobody reaches is of no use, and only a new start helps.
func TestFaultListenerThatDies(t *testing.T) {
	t.Parallel()
	for name, listener := range map[string]struct {
		port   func(p *place) int
		status int
		says   string
	}{
		"of etcd's clients": {func(p *place) int { return p.client }, 70, "an etcd listener ended"},
		"of etcd's peers":   {func(p *place) int { return p.peer }, 70, "an etcd listener ended"},
		"of the wrapper":    {func(p *place) int { return p.port }, 2, "cannot serve on"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trial(t, "serving", "the listener "+name+" dies")
			p := newPlace(t)
			require.NoError(t, os.WriteFile(p.termination(), nil, 0o600))
			w := p.start()
			w.awaitReady()
			w.cutListener(listener.port(p))
			status := w.exit(stopBudget)
			assert.Equal(t, listener.status, status)
			w.assertTruth(status)
			assert.False(t, p.clean())
			p.assertExplained(w, listener.says)
			p.assertNextStart(t, "a listener that died")
		})
	}
}

// cutListener shuts a listening socket of the process down, as nothing but a fault can.
func (w *wrapper) cutListener(port int) {
	w.t.Helper()
	process, err := unix.PidfdOpen(w.cmd.Process.Pid, 0)
	require.NoError(w.t, err)
	defer unix.Close(process)
	socket, err := unix.PidfdGetfd(process, w.listener(port), 0)
	if err != nil {
		w.t.Skipf("skipped: no file descriptor can be taken from another process here: %v", err)
	}
	defer unix.Close(socket)
	require.NoError(w.t, unix.Shutdown(socket, unix.SHUT_RDWR))
}

// listener is the file descriptor, in the process, of the socket that listens on the port.
func (w *wrapper) listener(port int) (fd int) {
	w.t.Helper()
	dir := fmt.Sprintf("/proc/%d", w.cmd.Process.Pid)
	wanted := "socket:[" + inode(w.t, dir, port) + "]"
	entries, err := os.ReadDir(filepath.Join(dir, "fd"))
	require.NoError(w.t, err)
	for _, entry := range entries {
		if target, _ := os.Readlink(filepath.Join(dir, "fd", entry.Name())); target == wanted {
			_, err := fmt.Sscan(entry.Name(), &fd)
			require.NoError(w.t, err)
			return fd
		}
	}
	require.FailNow(w.t, "the process has no such socket")
	return 0
}

// inode identifies the socket that listens on the port. The kernel's table has the local address in its second column,
// the state in the fourth and the inode in the tenth.
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
	require.FailNow(t, "nobody listens", "port %d", port)
	return ""
}
