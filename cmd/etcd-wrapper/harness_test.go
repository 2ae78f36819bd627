// Package main_test drives the built program from outside: real processes, real signals, a scripted sidecar and etcd's
// own client. Nothing here waits for a fixed time; everything polls for what it expects, up to a deadline.
package main_test

import (
	"bufio"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/lifecycle"
)

const (
	// soon is how long an expectation may take to come true, on a machine that is busy with other tests.
	soon = 40 * time.Second
	// abortBudget is what a stop may take before etcd was opened, stopBudget after that.
	abortBudget = lifecycle.AbortBudget
	stopBudget  = lifecycle.StopBudget
	// processes is how many tests run at a time: they wait far more than they compute.
	processes = "6"
)

// program is the path of the binary under test.
var program string

func TestMain(m *testing.M) { os.Exit(withProgram(m.Run)) }

func withProgram(run func() int) int {
	flag.Parse()
	if flag.Lookup("test.fuzzworker").Value.String() == "true" {
		return run() // it tries inputs and runs no program
	}
	dir, err := os.MkdirTemp("", "etcd-wrapper-test-")
	if err == nil {
		defer os.RemoveAll(dir) // a temporary directory
		program = filepath.Join(dir, "etcd-wrapper")
		err = build()
	}
	if err == nil {
		err = flag.Set("test.parallel", processes)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot prepare the program under test:", err)
		return 1
	}
	defer tried.print(os.Stdout)
	return run()
}

func build() error {
	args := []string{"build", "-o", program}
	if underRace {
		args = append(args, "-race")
	}
	command := exec.Command("go", append(args, ".")...)
	command.Stderr = os.Stderr
	return command.Run()
}

// wrapper is one run of the program.
type wrapper struct {
	t      *testing.T
	place  *place
	cmd    *exec.Cmd
	log    *logbook
	stderr *os.File // the end that is read
	ended  chan struct{}
}

// start runs `start-etcd` on the place, flags last.
func (p *place) start(flags ...string) *wrapper {
	p.t.Helper()
	if !p.sidecar.late {
		p.sidecar.listen()
	}
	args := append([]string{
		"start-etcd", "--volume-dir=" + p.volume, "--stored-config-path=" + p.stored(), "--log-level=debug",
		fmt.Sprintf("--etcd-wrapper-port=%d", p.port), "--termination-message-path=" + p.termination(),
		fmt.Sprintf("--backup-restore-host-port=127.0.0.1:%d", p.sidecar.port),
	}, p.flags...)
	return p.run(append(args, flags...)...)
}

// run runs the program and makes sure that it ends with the test.
func (p *place) run(args ...string) *wrapper {
	p.t.Helper()
	reader, writer, err := os.Pipe()
	require.NoError(p.t, err)
	w := &wrapper{t: p.t, place: p, log: &logbook{}, stderr: reader, ended: make(chan struct{})}
	command := append(slices.Clone(p.under), program)
	w.cmd = exec.Command(command[0], append(command[1:], args...)...)
	w.cmd.Env = append([]string{"HOME=" + p.dir, "PATH=" + os.Getenv("PATH")}, p.env...)
	w.cmd.Stderr = writer
	require.NoError(p.t, w.cmd.Start())
	require.NoError(p.t, writer.Close())
	go w.follow()
	p.t.Cleanup(w.cleanup)
	return w
}

// follow keeps the log until its writer or this reader is closed, and then how the process ended.
func (w *wrapper) follow() {
	defer close(w.ended)
	lines := bufio.NewReader(w.stderr)
	for {
		line, err := lines.ReadBytes('\n')
		w.log.add(line)
		if err != nil {
			break
		}
	}
	_ = w.cmd.Wait() // ProcessState tells
}

// cleanup holds what every run has to keep: each line is JSON, and no event came that cannot come.
func (w *wrapper) cleanup() {
	w.kill()
	_ = w.stderr.Close() // a test may have closed it
	assert.Empty(w.t, w.log.malformed(), "every line of the log is a JSON object with a level and a time")
	assert.Empty(w.t, w.log.matching(line{"answer": "reject"}), "no event came that cannot come")
	assert.Empty(w.t, w.log.containing("disagree"), "table and machine agree")
	if w.t.Failed() {
		w.t.Logf("log of process %d:\n%s", w.cmd.Process.Pid, w.log.text())
	}
}

// kill is kill -9, and waits for the end.
func (w *wrapper) kill() {
	_ = w.cmd.Process.Kill() // it may have ended
	<-w.ended
}

func (w *wrapper) signal(s syscall.Signal) {
	w.t.Helper()
	require.NoError(w.t, w.cmd.Process.Signal(s))
}

// exit waits for the process to end and returns its status, -1 if a signal ended it.
func (w *wrapper) exit(within time.Duration) int {
	w.t.Helper()
	select {
	case <-w.ended:
		return w.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		require.FailNow(w.t, "the process does not end", "within %s", within)
		return 0
	}
}

// stop sends the signal and returns how the process ended, and how long that took.
func (w *wrapper) stop(s syscall.Signal) (status int, took time.Duration) {
	w.t.Helper()
	began := time.Now()
	w.signal(s)
	return w.exit(soon), time.Since(began)
}

// stopCleanly sends SIGTERM to an etcd that runs and expects nothing but the best.
func (w *wrapper) stopCleanly() {
	w.t.Helper()
	status, took := w.stop(syscall.SIGTERM)
	require.Equal(w.t, 0, status)
	require.Less(w.t, took, stopBudget)
	require.Equal(w.t, "terminated", w.place.record())
}

// readyz returns the status code of GET /readyz, 0 if there is no answer.
func (w *wrapper) readyz() int {
	code, _ := w.request(http.MethodGet, "/readyz")
	return code
}

func (w *wrapper) awaitReady() {
	w.t.Helper()
	eventually(w.t, "/readyz says 200", func() bool {
		select {
		case <-w.ended:
			require.FailNow(w.t, "the process ended before it was ready", "status %d", w.cmd.ProcessState.ExitCode())
		default:
		}
		return w.readyz() == http.StatusOK
	})
}

func (w *wrapper) awaitLine(what line) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("the log has a line with %v", what), func() bool { return len(w.log.matching(what)) > 0 })
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline, tick := time.After(soon), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			require.FailNow(t, "never came true: "+what)
		}
	}
}
