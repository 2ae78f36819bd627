// Package harness runs the program as a pod would, with real processes, real signals, a scripted sidecar and etcd's
// own client. Package harness is for tests only. The suites in the neighboring directories test the requirements.
//
// A Pod is everything that outlives a process, and a Run is one process in a pod. No helper sleeps for a fixed time:
// tests wait for an expected event up to a deadline. On a busy machine, time limits are extended (see Watch).
package harness

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/readiness/status"
)

// A Run is one run of the program in a separate process.
type Run struct {
	T      *testing.T
	Pod    *Pod
	Cmd    *exec.Cmd
	Log    *Log
	Stderr *os.File      // read end of the pipe
	Ended  chan struct{} // closed once the process has exited and its log is complete
}

// Start runs start-etcd in the pod, with the pod's flags followed by the given flags.
func (p *Pod) Start(flags ...string) *Run {
	p.T.Helper()
	if !p.Sidecar.stopped {
		p.Sidecar.Listen()
	}
	return p.Run(append(p.Arguments("--log-level=debug"), flags...)...)
}

// Arguments returns the arguments for running start-etcd in the pod. Unless the sidecar is stopped, Arguments also
// starts its listener.
func (p *Pod) Arguments(flags ...string) []string {
	args := append([]string{
		"start-etcd", "--volume-dir=" + p.Volume, "--stored-config-path=" + p.StoredConfig(),
		fmt.Sprintf("--etcd-wrapper-port=%d", p.Port), "--termination-message-path=" + p.TerminationMessage(),
		fmt.Sprintf("--backup-restore-host-port=127.0.0.1:%d", p.Sidecar.Port),
	}, p.Flags...)
	return append(args, flags...)
}

// Run starts the program with the given arguments. It is killed at the end of the test if it is still running.
func (p *Pod) Run(args ...string) *Run {
	p.T.Helper()
	if _, err := os.Lstat(p.Volume); errors.Is(err, fs.ErrNotExist) {
		require.NoError(p.T, os.MkdirAll(p.Volume, 0o700)) // like Kubernetes, replace a lost volume
	}
	reader, writer, err := os.Pipe()
	require.NoError(p.T, err)
	run := &Run{T: p.T, Pod: p, Log: &Log{}, Stderr: reader, Ended: make(chan struct{})}
	command := append(slices.Clone(p.Under), cmp.Or(p.Program, Program))
	run.Cmd = exec.Command(command[0], append(command[1:], args...)...)
	run.Cmd.Env = p.environment(p.Env...)
	run.Cmd.Stderr = writer
	require.NoError(p.T, run.Cmd.Start())
	require.NoError(p.T, writer.Close())
	go run.collectLog()
	p.T.Cleanup(run.cleanup)
	return run
}

func (p *Pod) environment(more ...string) []string {
	return append([]string{"HOME=" + p.Dir, "PATH=" + os.Getenv("PATH")}, more...)
}

// collectLog reads the log until the process or the test closes its end of the pipe, and then waits until the process
// has exited.
func (r *Run) collectLog() {
	defer close(r.Ended)
	lines := bufio.NewReader(r.Stderr)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, os.ErrClosed) {
			break // a test has closed the reader, possibly in the middle of a line
		}
		r.Log.add(line)
		if err != nil {
			break
		}
	}
	_ = r.Cmd.Wait() // the result is in ProcessState
}

// cleanup kills the process and checks its log: every line must be JSON, and none may report an event that should be
// impossible.
func (r *Run) cleanup() {
	r.Kill()
	_ = r.Stderr.Close() // a test may have closed the reader
	assert.Empty(r.T, r.Log.bad, "every log line must be a JSON object with a level and a time")
	assert.Empty(r.T, r.Log.Matching(Line{"answer": "reject"}), "the state machine must not reject an event")
	assert.Empty(r.T, r.Log.FindText("illegal transition"), "all transitions must be in the table")
	if r.T.Failed() {
		r.T.Logf("log of process %d:\n%s", r.Cmd.Process.Pid, r.Log.summary())
	}
}

// Kill sends SIGKILL and waits until the process has exited.
func (r *Run) Kill() {
	r.T.Helper()
	_ = r.Cmd.Process.Kill() // the process may have exited already
	Receive(r.T, "the killed process exits and closes its log", r.Ended)
}

// LoseVolume kills the process and deletes its volume so that the next process finds an empty one.
func (r *Run) LoseVolume() {
	r.T.Helper()
	r.Kill()
	require.NoError(r.T, os.RemoveAll(r.Pod.Volume))
}

// Signal sends a signal to the process, which must still be running.
func (r *Run) Signal(s syscall.Signal) {
	r.T.Helper()
	require.NoError(r.T, r.Cmd.Process.Signal(s))
}

// Exit waits for the process to exit and returns its status, or -1 if it was killed by a signal.
func (r *Run) Exit(within time.Duration) int {
	r.T.Helper()
	await(r.T, "the process exits", within, r.HasEnded)
	return r.Cmd.ProcessState.ExitCode()
}

// HasEnded reports whether the process has exited and its log is complete.
func (r *Run) HasEnded() bool {
	select {
	case <-r.Ended:
		return true
	default:
		return false
	}
}

// Stop sends s and waits for the process to exit. It returns the exit status and the time until the exit, as measured
// by a Watch.
func (r *Run) Stop(s syscall.Signal) (status int, took time.Duration) {
	r.T.Helper()
	watch := StartWatch()
	r.Signal(s)
	return r.Exit(Patience), watch.Duration()
}

// Shutdown sends SIGTERM while etcd is running, and requires a clean exit. It returns the time until the process
// exited, as measured by a Watch.
func (r *Run) Shutdown() (took time.Duration) {
	r.T.Helper()
	status, took := r.Stop(syscall.SIGTERM)
	require.Equal(r.T, 0, status)
	require.Less(r.T, took, StopBudget)
	require.Equal(r.T, "terminated", r.Pod.Record())
	return took
}

// requestTimeout limits a request to the wrapper's own server. It is sufficient even on a busy machine, because the
// server responds from memory.
const requestTimeout = 10 * time.Second

// Readyz returns the status code of GET /readyz, or 0 if there is no response.
func (r *Run) Readyz() int {
	code, _ := r.Request(http.MethodGet, "/readyz")
	return code
}

// Request returns the status code and the body of a response, or 0 if there is no response. Like the kubelet, Request
// does not verify certificates (see Pod.ServerCertName).
func (r *Run) Request(method, path string) (int, string) {
	r.T.Helper()
	request, err := http.NewRequest(method, r.URL(path), nil)
	require.NoError(r.T, err)
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: certificates.Insecure()}
	response, err := (&http.Client{Transport: transport, Timeout: requestTimeout}).Do(request)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close() // the whole body has been read
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, ""
	}
	return response.StatusCode, string(body)
}

// URL returns the URL of a path on the wrapper's own server.
func (r *Run) URL(path string) string {
	return fmt.Sprintf("%s://127.0.0.1:%d%s", Scheme(r.Pod.Trust), r.Pod.Port, path)
}

// Status returns the document from GET /lifecycle, or an empty document if there is no response.
func (r *Run) Status() (document status.Document) {
	r.T.Helper()
	if code, body := r.Request(http.MethodGet, "/lifecycle"); code == http.StatusOK {
		require.NoError(r.T, json.Unmarshal([]byte(body), &document))
	}
	return document
}

// AwaitStored waits until the process reports that the backup store contains the revision.
func (r *Run) AwaitStored(revision int64) {
	r.T.Helper()
	Eventually(r.T, fmt.Sprintf("revision %d is in the store", revision), func() bool {
		backup := r.Status().Backup
		return backup != nil && backup.Revision >= revision
	})
}

// AwaitReady waits until the member is ready.
func (r *Run) AwaitReady() {
	r.T.Helper()
	r.AwaitReadyz(http.StatusOK)
}

// AwaitReadyz waits until /readyz responds with the status code, and returns the elapsed time as measured by a Watch.
// The test fails if the process exits first.
func (r *Run) AwaitReadyz(status int) time.Duration {
	r.T.Helper()
	watch := StartWatch()
	Eventually(r.T, fmt.Sprintf("/readyz returns %d", status), func() bool {
		if r.HasEnded() {
			require.FailNow(r.T, "the process exited", "before /readyz returned %d, with exit status %d", status, r.Cmd.ProcessState.ExitCode())
		}
		return r.Readyz() == status
	})
	return watch.Duration()
}

// AwaitLive waits until the wrapper's own server is listening.
func (r *Run) AwaitLive() {
	r.T.Helper()
	Eventually(r.T, "/livez returns 200", func() bool {
		code, _ := r.Request(http.MethodGet, "/livez")
		return code == http.StatusOK
	})
}

// AwaitLine waits until the log contains a line that Log.Matching returns.
func (r *Run) AwaitLine(what Line) {
	r.T.Helper()
	Eventually(r.T, fmt.Sprintf("the log contains a line with %v", what), func() bool { return len(r.Log.Matching(what)) > 0 })
}

// StartReady starts the program and waits until the member is ready.
func (p *Pod) StartReady(flags ...string) *Run {
	p.T.Helper()
	run := p.Start(flags...)
	run.AwaitReady()
	return run
}

// StartAndStop starts the program, writes the given keys and values, and stops the program, leaving a clean exit
// record.
func (p *Pod) StartAndStop(keysAndValues ...string) *Run {
	p.T.Helper()
	run := p.StartReady()
	for pair := range slices.Chunk(keysAndValues, 2) {
		p.Put(pair[0], pair[1])
	}
	run.Shutdown()
	return run
}
