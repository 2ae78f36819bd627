package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/readiness/status"
)

// patience bounds every wait of these tests; none of them takes that long.
const patience = 30 * time.Second

// playWrapper in the environment makes the test binary the program itself.
const playWrapper = "TEST_PLAYS_ETCD_WRAPPER"

// The other tests of this folder have the TestMain.
func init() {
	if os.Getenv(playWrapper) != "" {
		main()
	}
}

// sidecar is a backup-restore sidecar that a test tells what to say; an empty word hangs until the next one.
type sidecar struct {
	mu     sync.Mutex
	word   string
	told   chan struct{}
	config string
}

func newSidecar(t *testing.T, config string) (s *sidecar, hostPort string) {
	s = &sidecar{config: config, told: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /initialization/status", s.status)
	mux.HandleFunc("GET /initialization/start", func(http.ResponseWriter, *http.Request) { s.say("Progress") })
	mux.HandleFunc("GET /config", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s.config) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return s, server.Listener.Addr().String()
}

func (s *sidecar) say(word string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.word = word
	close(s.told)
	s.told = make(chan struct{})
}

func (s *sidecar) status(w http.ResponseWriter, r *http.Request) {
	for {
		s.mu.Lock()
		word, told := s.word, s.told
		s.mu.Unlock()
		if word != "" {
			fmt.Fprint(w, word)
			return
		}
		select {
		case <-told:
		case <-r.Context().Done():
			return
		}
	}
}

// program is a run of the real program, in a process of its own.
type program struct {
	t       *testing.T
	command *exec.Cmd
	dir     string
	port    string
}

// start runs start-etcd on free ports, with a volume of its own.
func start(t *testing.T, more ...string) *program {
	p := &program{t: t, dir: t.TempDir(), port: freePort(t)}
	args := append([]string{
		"start-etcd", "--volume-dir", p.dir, "--stored-config-path", p.storedConfig(), "--etcd-wrapper-port", p.port,
		"--termination-message-path", p.terminationMessage(),
	}, more...)
	require.NoError(t, os.WriteFile(p.terminationMessage(), nil, 0o600))
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	p.command = exec.CommandContext(ctx, os.Args[0], args...)
	p.command.Env = append(os.Environ(), playWrapper+"=1")
	log, err := os.Create(p.logFile())
	require.NoError(t, err)
	defer log.Close() // the program has it, too
	p.command.Stderr = log
	require.NoError(t, p.command.Start())
	t.Cleanup(func() {
		cancel()
		_ = p.command.Wait()
		if t.Failed() {
			t.Log(read(t, p.logFile()))
		}
	})
	return p
}

func (p *program) logFile() string { return filepath.Join(p.dir, "log") }

func (p *program) storedConfig() string { return filepath.Join(p.dir, "etcd.conf.yaml") }

func (p *program) terminationMessage() string { return filepath.Join(p.dir, "termination-log") }

func (p *program) url() string { return "http://127.0.0.1:" + p.port }

// stop asks the program to end and returns its exit status.
func (p *program) stop() int {
	require.NoError(p.t, p.command.Process.Signal(syscall.SIGTERM))
	_ = p.command.Wait() // the status tells
	return p.command.ProcessState.ExitCode()
}

// run runs another command of the program beside this one and returns what it printed and its exit status.
func (p *program) run(args ...string) (out, log string, status int) { return p.begin(args...).wait() }

// invocation is another command that runs beside the program.
type invocation struct {
	t       *testing.T
	command *exec.Cmd
	out     string // the file that it prints to
	log     bytes.Buffer
	cancel  context.CancelFunc
}

func (p *program) begin(args ...string) *invocation {
	out, err := os.Create(filepath.Join(p.t.TempDir(), "out"))
	require.NoError(p.t, err)
	defer out.Close() // the command has it, too
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	i := &invocation{t: p.t, command: exec.CommandContext(ctx, os.Args[0], args...), out: out.Name(), cancel: cancel}
	i.command.Env = append(os.Environ(), playWrapper+"=1",
		"ETCD_WRAPPER_ETCD_WRAPPER_PORT="+p.port, "ETCD_WRAPPER_STORED_CONFIG_PATH="+p.storedConfig())
	i.command.Stdout, i.command.Stderr = out, &i.log
	require.NoError(p.t, i.command.Start())
	return i
}

// printed is what it has printed so far.
func (i *invocation) printed() string {
	content, err := os.ReadFile(i.out)
	require.NoError(i.t, err)
	return string(content)
}

func (i *invocation) wait() (out, log string, status int) {
	defer i.cancel()
	_ = i.command.Wait() // the status tells
	return i.printed(), i.log.String(), i.command.ProcessState.ExitCode()
}

// enters waits until the lifecycle stands in a state.
func (p *program) enters(state string) {
	require.Eventually(p.t, func() bool {
		reply, err := http.Get(p.url() + "/lifecycle")
		if err != nil {
			return false
		}
		defer reply.Body.Close()
		var now status.Document
		return json.NewDecoder(reply.Body).Decode(&now) == nil && now.State == state
	}, patience, 5*time.Millisecond, "%s was never entered", state)
}

// await waits until the server answers a path with 200.
func (p *program) await(path string) {
	require.Eventually(p.t, func() bool {
		reply, err := http.Get(p.url() + path)
		if err != nil {
			return false
		}
		defer reply.Body.Close()
		return reply.StatusCode == http.StatusOK
	}, patience, 20*time.Millisecond, "%s never said 200", path)
}

func read(t *testing.T, path string) string {
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}

// singleMember is the configuration of a cluster of one on free ports.
func singleMember(t *testing.T) string {
	client, peer := "http://127.0.0.1:"+freePort(t), "http://127.0.0.1:"+freePort(t)
	return fmt.Sprintf(`name: etcd-0
data-dir: %s
listen-client-urls: %[2]s
advertise-client-urls: %[2]s
listen-peer-urls: %[3]s
initial-advertise-peer-urls: %[3]s
initial-cluster: etcd-0=%[3]s
initial-cluster-state: new
`, filepath.Join(t.TempDir(), "new.etcd"), client, peer)
}

func freePort(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
}
