package endtoend_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// If the process that reads the log hangs, etcd must still serve requests and stop without delay.
func TestStalledLogReader_delaysNothing(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.Sidecar.Listen()
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	defer reader.Close() // until then, the pipe is open but is not read
	fillPipe(t, writer)

	ctx, cancel := harness.WithPatience(t.Context())
	defer cancel()
	command := exec.CommandContext(ctx, harness.Program, p.Arguments("--log-level=debug")...)
	command.Stderr = writer
	require.NoError(t, command.Start())
	run := &harness.Run{T: t, Pod: p, Cmd: command}
	harness.Eventually(t, "the member is ready", func() bool { return run.Readyz() == 200 })

	watch := harness.StartWatch()
	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	require.NoError(t, command.Wait())
	assert.Less(t, watch.Duration(), 10*time.Second)
	assert.Equal(t, "terminated", p.Record())
}

// fillPipe writes to a pipe until its buffer is full.
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
