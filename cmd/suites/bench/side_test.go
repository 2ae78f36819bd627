//go:build bench

package bench_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"etcd-wrapper/cmd/suites/harness"
)

// A side is one of the programs that are compared: plain etcd, or the wrapper with certain flags.
type side struct {
	command func(p *harness.Pod) *exec.Cmd
	healthy func(p *harness.Pod) string // URL that returns status 200 once etcd is ready
}

var plain = &side{
	command: func(p *harness.Pod) *exec.Cmd { return exec.Command(plainProgram, "--config-file="+writeConfig(p)) },
	healthy: func(p *harness.Pod) string { return p.Endpoint() + "/health" },
}

var wrapped = &side{
	command: func(p *harness.Pod) *exec.Cmd {
		p.Sidecar.Listen()
		return exec.Command(harness.Program, p.Arguments()...)
	},
	healthy: func(p *harness.Pod) string {
		return fmt.Sprintf("%s://127.0.0.1:%d/readyz", harness.Scheme(p.Trust), p.Port)
	},
}

// both lists the sides in the order of the table's columns.
var both = []*side{plain, wrapped}

func goTool(args ...string) (string, error) {
	command := exec.Command("go", args...)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := command.CombinedOutput()
	return string(output), err
}

// writeConfig writes the configuration without the keys that plain etcd rejects.
func writeConfig(p *harness.Pod) string {
	known := map[string]any{}
	for key, value := range p.Config {
		if key != "member-name-prefix" && key != "next-cluster-version-compatible" {
			known[key] = value
		}
	}
	text, err := yaml.Marshal(known)
	require.NoError(p.T, err)
	path := filepath.Join(p.Dir, "plain.yaml")
	require.NoError(p.T, os.WriteFile(path, text, 0o600))
	return path
}

// A process is a running side. Its log is written to a file, because reading a pipe would take time during a
// measurement.
type process struct {
	t       *testing.T
	pod     *harness.Pod
	cmd     *exec.Cmd
	health  string
	client  *http.Client
	log     string
	started time.Time
	ready   time.Time
	ended   chan struct{}
}

// start starts the side in a pod and waits until it is ready.
func (s *side) start(t *testing.T, p *harness.Pod) *process {
	t.Helper()
	r := s.launch(t, p)
	r.await(http.StatusOK)
	r.ready = time.Now()
	return r
}

func (s *side) launch(t *testing.T, p *harness.Pod) *process {
	t.Helper()
	r := &process{t: t, pod: p, cmd: s.command(p), health: s.healthy(p), ended: make(chan struct{})}
	tls := p.Identity
	if s == wrapped {
		tls = p.Trust
	}
	r.client = &http.Client{Transport: &http.Transport{TLSClientConfig: tls}, Timeout: harness.Patience}
	file, err := os.CreateTemp(p.Dir, "log-")
	require.NoError(t, err)
	defer file.Close()
	r.log, r.cmd.Stderr = file.Name(), file
	r.cmd.Env = append(append(os.Environ(), "HOME="+p.Dir), p.Env...)
	r.started = time.Now()
	require.NoError(t, r.cmd.Start())
	go func() {
		defer close(r.ended)
		_ = r.cmd.Wait() // the result is in ProcessState
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // the process may have exited already
		<-r.ended
	})
	return r
}

// await polls the health URL until it responds with the given status code. It polls every millisecond, but only every
// five milliseconds after the first second, because polling costs CPU time.
func (r *process) await(code int) {
	r.t.Helper()
	r.awaitWithin(harness.Patience, code)
}

func (r *process) awaitWithin(limit time.Duration, code int) {
	r.t.Helper()
	deadline, start := time.After(limit), time.Now()
	for r.code() != code {
		pause := time.Millisecond
		if time.Since(start) > time.Second {
			pause *= 5
		}
		select {
		case <-time.After(pause):
		case <-r.ended:
			text, _ := os.ReadFile(r.log)
			require.FailNow(r.t, "the process ended", "%s", text)
		case <-deadline:
			require.FailNow(r.t, "timed out", "%s did not return status code %d", r.health, code)
		}
	}
}

func (r *process) code() int {
	response, err := r.client.Get(r.health)
	if err != nil {
		return 0
	}
	defer response.Body.Close() // the body is short and need not be read
	return response.StatusCode
}

// stop sends SIGTERM and returns the number of milliseconds until the process has exited.
func (r *process) stop() float64 {
	r.t.Helper()
	r.client.CloseIdleConnections()
	asked := time.Now()
	require.NoError(r.t, r.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-r.ended:
		return milliseconds(time.Since(asked))
	case <-time.After(harness.Patience):
		require.FailNow(r.t, "the process did not exit after SIGTERM")
		return 0
	}
}

// logged returns the time of the last log line that contains the message, or the zero time.
func (r *process) logged(message string) (at time.Time) {
	r.t.Helper()
	text, err := os.ReadFile(r.log)
	require.NoError(r.t, err)
	for raw := range strings.Lines(string(text)) {
		if strings.Contains(raw, message) {
			at = timestamp(raw)
		}
	}
	return at
}

// timestamp returns the time of a log line, which plain etcd logs in the field ts and the wrapper in the field time.
func timestamp(raw string) time.Time {
	var line struct{ Time, TS time.Time }
	_ = json.Unmarshal([]byte(raw), &line) // both times remain zero if the line is not JSON
	if line.Time.IsZero() {
		return line.TS
	}
	return line.Time
}

// memory returns the named value from /proc/<pid>/status, such as VmRSS, in MiB.
func (r *process) memory(name string) float64 {
	r.t.Helper()
	text := field(r.t, fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid), name)
	kilobytes, err := strconv.ParseFloat(strings.TrimSuffix(text, " kB"), 64)
	require.NoError(r.t, err)
	return kilobytes / 1024
}

// cpu returns the CPU time of the process in microseconds. Linux reports CPU time in units of 10 ms.
func (r *process) cpu() float64 {
	r.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.cmd.Process.Pid))
	require.NoError(r.t, err)
	_, after, _ := strings.Cut(string(text), ") ") // the process name may contain any character
	values := strings.Fields(after)
	user, err := strconv.ParseFloat(values[11], 64)
	require.NoError(r.t, err)
	system, err := strconv.ParseFloat(values[12], 64)
	require.NoError(r.t, err)
	return (user + system) * 10_000
}
