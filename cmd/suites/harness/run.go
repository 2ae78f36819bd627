// Package harness drives the program from outside, as a pod does: real processes, real signals, a scripted sidecar and
// etcd's own client. It is for tests only; the suites beside it say what the program is held to.
//
// A Pod is what outlives a process, a Run is one process in it. Nothing here waits for a fixed time: a test waits for
// what it expects, up to a deadline, and bounds of real time give way where the machine is busy (see Watch).
package harness

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Run is one run of the program, in a process of its own.
type Run struct {
	T      *testing.T
	Pod    *Pod
	Cmd    *exec.Cmd
	Log    *Log
	Stderr *os.File      // the end that is read
	Ended  chan struct{} // closed when the process has ended and its log is complete
}

// Start runs start-etcd in the pod. The flags come after those of the pod.
func (p *Pod) Start(flags ...string) *Run {
	p.T.Helper()
	if !p.Sidecar.late {
		p.Sidecar.Listen()
	}
	return p.Run(append(p.Arguments("--log-level=debug"), flags...)...)
}

// Arguments are those of start-etcd in the pod. The sidecar listens already, or is late.
func (p *Pod) Arguments(flags ...string) []string {
	args := append([]string{
		"start-etcd", "--volume-dir=" + p.Volume, "--stored-config-path=" + p.StoredConfig(),
		fmt.Sprintf("--etcd-wrapper-port=%d", p.Port), "--termination-message-path=" + p.TerminationMessage(),
		fmt.Sprintf("--backup-restore-host-port=127.0.0.1:%d", p.Sidecar.Port),
	}, p.Flags...)
	return append(args, flags...)
}

// Run runs the program and makes sure that it ends with the test.
func (p *Pod) Run(args ...string) *Run {
	p.T.Helper()
	reader, writer, err := os.Pipe()
	require.NoError(p.T, err)
	run := &Run{T: p.T, Pod: p, Log: &Log{}, Stderr: reader, Ended: make(chan struct{})}
	command := append(slices.Clone(p.Under), Program)
	run.Cmd = exec.Command(command[0], append(command[1:], args...)...)
	run.Cmd.Env = p.environment(p.Env...)
	run.Cmd.Stderr = writer
	require.NoError(p.T, run.Cmd.Start())
	require.NoError(p.T, writer.Close())
	go run.follow()
	p.T.Cleanup(run.cleanup)
	return run
}

func (p *Pod) environment(more ...string) []string {
	return append([]string{"HOME=" + p.Dir, "PATH=" + os.Getenv("PATH")}, more...)
}

// follow keeps the log until its writer or this reader is closed, and then how the process ended.
func (r *Run) follow() {
	defer close(r.Ended)
	lines := bufio.NewReader(r.Stderr)
	for {
		line, err := lines.ReadBytes('\n')
		r.Log.add(line)
		if err != nil {
			break
		}
	}
	_ = r.Cmd.Wait() // ProcessState tells
}

// cleanup holds what every run has to keep: each line is JSON, and no event came that cannot come.
func (r *Run) cleanup() {
	r.Kill()
	_ = r.Stderr.Close() // a test may have closed it
	assert.Empty(r.T, r.Log.malformed(), "every line of the log is a JSON object with a level and a time")
	assert.Empty(r.T, r.Log.Matching(Line{"answer": "reject"}), "no event came that cannot come")
	assert.Empty(r.T, r.Log.Containing("illegal transition"), "table and machine agree")
	if r.T.Failed() {
		r.T.Logf("log of process %d:\n%s", r.Cmd.Process.Pid, r.Log.forPeople())
	}
}

// Kill is kill -9, and waits for the end.
func (r *Run) Kill() {
	_ = r.Cmd.Process.Kill() // it may have ended
	<-r.Ended
}

// Signal sends a signal to a process that has not ended.
func (r *Run) Signal(s syscall.Signal) {
	r.T.Helper()
	require.NoError(r.T, r.Cmd.Process.Signal(s))
}

// Exit waits for the process to end and returns its status, -1 if a signal ended it.
func (r *Run) Exit(within time.Duration) int {
	r.T.Helper()
	watch, tick := StartWatch(), time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-r.Ended:
			return r.Cmd.ProcessState.ExitCode()
		case <-tick.C:
			require.LessOrEqual(r.T, watch.Took(), within, "the process does not end")
		}
	}
}

// Stop sends the signal and returns how the process ended, and how long that took by a Watch.
func (r *Run) Stop(s syscall.Signal) (status int, took time.Duration) {
	r.T.Helper()
	watch := StartWatch()
	r.Signal(s)
	return r.Exit(Patience), watch.Took()
}

// StopCleanly sends SIGTERM to an etcd that runs and expects nothing but the best. It returns how long that took
// by a Watch.
func (r *Run) StopCleanly() (took time.Duration) {
	r.T.Helper()
	status, took := r.Stop(syscall.SIGTERM)
	require.Equal(r.T, 0, status)
	require.Less(r.T, took, StopBudget)
	require.Equal(r.T, "terminated", r.Pod.Record())
	return took
}
