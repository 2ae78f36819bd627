package harness

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Command is one of the program's other commands, as people run it beside start-etcd.
type Command struct {
	t     *testing.T
	cmd   *exec.Cmd
	out   string // the file that it prints to
	log   bytes.Buffer
	ended chan struct{}
}

// Begin runs a command that is told where the pod's wrapper is.
func (p *Pod) Begin(args ...string) *Command {
	p.T.Helper()
	return p.begin(exec.Command(Program, args...))
}

func (p *Pod) begin(cmd *exec.Cmd) *Command {
	p.T.Helper()
	out, err := os.CreateTemp(p.Dir, "out-")
	require.NoError(p.T, err)
	defer out.Close() // the command has it, too
	c := &Command{t: p.T, cmd: cmd, out: out.Name(), ended: make(chan struct{})}
	c.cmd.Env = p.environment(append(slices.Clone(p.Env),
		"ETCD_WRAPPER_ETCD_WRAPPER_PORT="+fmt.Sprint(p.Port), "ETCD_WRAPPER_STORED_CONFIG_PATH="+p.StoredConfig())...)
	c.cmd.Stdout, c.cmd.Stderr = out, &c.log
	require.NoError(p.T, c.cmd.Start())
	go func() {
		defer close(c.ended)
		_ = c.cmd.Wait() // ProcessState tells
	}()
	p.T.Cleanup(func() {
		_ = c.cmd.Process.Kill() // it may have ended
		<-c.ended
	})
	return c
}

// Printed is what the command has printed so far.
func (c *Command) Printed() string {
	c.t.Helper()
	content, err := os.ReadFile(c.out)
	require.NoError(c.t, err)
	return string(content)
}

// Wait waits for the end of the command and returns what it printed, what it wrote to stderr and its exit status.
func (c *Command) Wait() (out, log string, status int) {
	c.t.Helper()
	Eventually(c.t, c.cmd.String()+" ends", func() bool {
		select {
		case <-c.ended:
			return true
		default:
			return false
		}
	})
	return c.Printed(), c.log.String(), c.cmd.ProcessState.ExitCode()
}

// Output runs a command that needs no pod and returns what it printed.
func Output(t *testing.T, args ...string) string {
	t.Helper()
	prepare(t)
	var stderr bytes.Buffer
	command := exec.CommandContext(t.Context(), Program, args...)
	command.Stderr = &stderr
	out, err := command.Output()
	require.NoError(t, err, stderr.String())
	require.Empty(t, stderr.String())
	return string(out)
}
