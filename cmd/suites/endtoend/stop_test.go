package endtoend_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sys/unix"

	"etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/cmd/suites/harness"
)

// stops lists the ways to request a stop.
var stops = map[string]func(run *harness.Run) error{
	"SIGTERM": func(run *harness.Run) error { return run.Cmd.Process.Signal(syscall.SIGTERM) },
	"SIGINT":  func(run *harness.Run) error { return run.Cmd.Process.Signal(syscall.SIGINT) },
	"POST stop": func(run *harness.Run) error {
		if code, body := run.Request(http.MethodPost, "/stop"); code != http.StatusOK || body == "" {
			return fmt.Errorf("POST /stop: status %d, body %q", code, body)
		}
		return nil
	},
}

// beforeEtcd lists the states of the lifecycle before etcd is started.
var beforeEtcd = map[string]struct {
	hold func(*harness.Sidecar) // keeps the wrapper in the state that is the map key
	path string                 // path of the last request that the sidecar receives
}{
	"Query":       {func(s *harness.Sidecar) { s.Broken[harness.StatusPath] = harness.Block }, harness.StatusPath},
	"Trigger":     {func(s *harness.Sidecar) { s.Broken[harness.StartPath] = harness.Block }, harness.StartPath},
	"Wait":        {func(s *harness.Sidecar) { s.Takes = harness.Forever }, harness.StartPath},
	"FetchConfig": {func(s *harness.Sidecar) { s.Broken[harness.ConfigPath] = harness.Block }, harness.ConfigPath},
}

func TestStop_beforeEtcdKeepsTheRecord(t *testing.T) {
	t.Parallel()
	for state, held := range beforeEtcd {
		for way, ask := range stops {
			t.Run(state+" "+way, func(t *testing.T) {
				t.Parallel()
				p := harness.NewPod(t)
				held.hold(p.Sidecar)
				p.WriteRecord("terminated")
				same := unchangedFile(t, p.RecordPath())
				run := p.Start()
				run.AwaitLine(harness.Line{"to": state})
				p.Sidecar.Await(held.path)
				if state == "Wait" {
					harness.Eventually(t, "the wrapper has polled more than 10 times, so that its pauses are long", func() bool { return len(p.Sidecar.Statuses("Progress")) > 10 })
				}
				watch := harness.StartWatch()
				require.NoError(t, ask(run))
				assert.Equal(t, 0, run.Exit(harness.Patience))
				assert.Less(t, watch.Duration(), harness.AbortBudget)
				same()
				p.RequireNoData()
				assert.NotContains(t, states(run), "StartEtcd")
			})
		}
	}
}

func TestStop_postIsAnsweredFirst(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	run := p.StartReady()
	code, _ := run.Request(http.MethodGet, "/stop")
	require.Equal(t, http.StatusMethodNotAllowed, code)
	code, body := run.Request(http.MethodPost, "/stop")
	require.Equal(t, http.StatusOK, code)
	assert.NotEmpty(t, body)
	assert.Equal(t, 0, run.Exit(harness.StopBudget))
	assert.Equal(t, "terminated", p.Record())
}

func TestStop_openWatches(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	run := p.StartReady()
	for range 3 {
		replies := p.Etcd().Watch(context.Background(), "key")
		p.Put("key", "value")
		reply, _ := harness.Receive(t, "the watch returns the write", replies)
		require.NoError(t, reply.Err())
	}
	status, took := run.Stop(syscall.SIGTERM)
	assert.Equal(t, 0, status)
	assert.Less(t, took, 3*time.Second, "plain etcd waits 7 s for open watches")
	assert.Equal(t, "terminated", p.Record())
}

func TestStop_secondSignalForcesExit(t *testing.T) {
	t.Parallel()
	for second, want := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130} {
		t.Run(second.String(), func(t *testing.T) {
			t.Parallel()
			p := harness.NewPod(t)
			run := p.StartReady()
			p.BlockClose()
			run.Signal(syscall.SIGTERM)
			run.AwaitLine(harness.Line{"to": "Terminating", "event": "signal"})
			start := time.Now()
			harness.Eventually(t, "100 ms have passed, so that the second signal is not treated as a duplicate", func() bool { return time.Since(start) > 100*time.Millisecond })
			status, took := run.Stop(second)
			assert.Equal(t, want, status)
			assert.Less(t, took, harness.AbortBudget)
			assert.NoFileExists(t, p.RecordPath(), "there is no exit record, because etcd was not closed")
		})
	}
}

func TestStop_duplicateSignal(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	run := p.StartReady()
	release := p.BlockClose()
	run.Signal(syscall.SIGTERM)
	run.Signal(syscall.SIGTERM)
	run.AwaitLine(harness.Line{"to": "Terminating", "event": "signal"})
	release()
	assert.Equal(t, 0, run.Exit(harness.StopBudget))
	assert.Equal(t, "terminated", p.Record())
}

func TestStop_beforeStart(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	pipe := filepath.Join(p.Dir, "pipe") // opening the pipe blocks until another process opens it for writing
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	run := p.Start("--backup-restore-tls-enabled", "--backup-restore-ca-cert-bundle-path="+pipe)
	run.AwaitLine(harness.Line{"message": "starting etcd-wrapper"})
	_ = run.Cmd.Process.Signal(syscall.SIGTERM) // the process may have exited already
	run.Exit(harness.AbortBudget)               // any exit status is acceptable
}

func TestStop_openConnections(t *testing.T) {
	t.Parallel()
	p := harness.NewPodWithStoppedSidecar(t)
	run := p.Start()
	run.AwaitLine(harness.Line{"event": "no answer"})
	for range 3 {
		idle, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.Port)) // simulates a prober that connects but sends nothing
		require.NoError(t, err)
		defer idle.Close() // nothing was sent, so a close error is harmless
	}
	status, took := run.Stop(syscall.SIGTERM)
	assert.Equal(t, 0, status)
	assert.Less(t, took, harness.AbortBudget)
}

func TestHangup_unreadLog(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	run := p.StartReady()
	run.Signal(syscall.SIGHUP)
	require.NoError(t, run.Stderr.Close())
	run.Signal(syscall.SIGHUP)
	p.Put("key", "value")
	run.AwaitReady()
	code, _ := run.Request(http.MethodPost, "/stop") // the process must survive logging the request
	require.Equal(t, http.StatusOK, code)
	assert.Equal(t, 0, run.Exit(harness.StopBudget))
	assert.Equal(t, "terminated", p.Record())
}

// A stop must not wait for clients that do not read their responses: a suspended "etcdctl watch", a watch and a
// snapshot.
func TestStop_stalledClients(t *testing.T) {
	t.Parallel()
	for name, secure := range map[string]bool{"plain text": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := harness.NewPod(t)
			if secure {
				p.RequireClientCerts(certificates.NewAuthority(t, "authority"))
			}
			run := p.StartReady()
			p.Put("key", "first")
			stopped := p.Begin("etcdctl", "watch", "--prefix", "--rev=1", "key")
			harness.Eventually(t, "etcdctl watches", func() bool { return strings.Contains(stopped.Output(), "first") })
			stopped.Signal(syscall.SIGSTOP)
			for range 32 {
				p.Put("key", strings.Repeat("x", 1<<20))
			}
			client := p.Etcd()
			snapshot, err := client.Snapshot(t.Context())
			require.NoError(t, err)
			defer snapshot.Close()
			watch, err := etcdserverpb.NewWatchClient(client.ActiveConnection()).Watch(t.Context())
			require.NoError(t, err)
			require.NoError(t, watch.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
				CreateRequest: &etcdserverpb.WatchCreateRequest{Key: []byte("key"), StartRevision: 1},
			}}))
			_, err = watch.Recv()
			require.NoError(t, err)

			status, took := run.Stop(syscall.SIGTERM)
			assert.Equal(t, 0, status)
			assert.Less(t, took, 4*time.Second, "the stop waits for at most 2 s until it closes the clients' connections")
			assert.Equal(t, "terminated", p.Record())
			for _, call := range []string{"Maintenance/Snapshot", "Watch/Watch"} {
				assert.NotEmpty(t, run.Log.FindText("is not reading the response to "+call), "the log names the client that does not read %s", call)
			}
		})
	}
}
