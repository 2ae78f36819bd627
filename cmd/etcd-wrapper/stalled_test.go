package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A log whose reader has stalled must keep etcd neither from serving nor from being stopped.
func TestALogThatIsFullHoldsNothingUp(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.sidecar.listen()
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	defer reader.Close() // open to the end, and never read
	fillPipe(t, writer)

	command := exec.CommandContext(t.Context(), program, "start-etcd", "--volume-dir="+p.volume, "--stored-config-path="+p.stored(),
		"--log-level=debug", fmt.Sprintf("--etcd-wrapper-port=%d", p.port),
		fmt.Sprintf("--backup-restore-host-port=127.0.0.1:%d", p.sidecar.port))
	command.Stderr = writer
	require.NoError(t, command.Start())
	w := &wrapper{t: t, place: p, cmd: command}
	eventually(t, "ready", func() bool { return w.readyz() == 200 })

	asked := time.Now()
	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	require.NoError(t, command.Wait())
	assert.Less(t, time.Since(asked), 10*time.Second)
	assert.Equal(t, "terminated", p.record())
}

// fillPipe leaves no room in a pipe.
func fillPipe(t *testing.T, pipe *os.File) {
	t.Helper()
	require.NoError(t, pipe.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	for {
		if _, err := pipe.Write(make([]byte, 4096)); err != nil {
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			break
		}
	}
}
