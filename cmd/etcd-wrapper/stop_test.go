package main_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// stops are the ways to ask for a stop; each reports what went wrong with asking.
var stops = map[string]func(w *wrapper) error{
	"SIGTERM": func(w *wrapper) error { return w.cmd.Process.Signal(syscall.SIGTERM) },
	"SIGINT":  func(w *wrapper) error { return w.cmd.Process.Signal(syscall.SIGINT) },
	"POST stop": func(w *wrapper) error {
		if code, body := w.request(http.MethodPost, "/stop"); code != http.StatusOK || body == "" {
			return fmt.Errorf("POST /stop: status %d, body %q", code, body)
		}
		return nil
	},
}

// beforeEtcd says how to keep a wrapper in each state before etcd, and what the sidecar sees of it.
var beforeEtcd = map[string]struct {
	hold func(*sidecar)
	path string
}{
	"Query":       {func(s *sidecar) { s.broken[statusPath] = hang }, statusPath},
	"Trigger":     {func(s *sidecar) { s.broken[startPath] = hang }, startPath},
	"Wait":        {func(s *sidecar) { s.takes = forever }, startPath},
	"FetchConfig": {func(s *sidecar) { s.broken[configPath] = hang }, configPath},
}

func TestStopBeforeEtcdIsQuickAndLeavesTheRecordAsItWas(t *testing.T) {
	t.Parallel()
	for state, held := range beforeEtcd {
		for way, ask := range stops {
			t.Run(state+" "+way, func(t *testing.T) {
				t.Parallel()
				p := newPlace(t)
				held.hold(p.sidecar)
				p.writeRecord("terminated")
				same := untouched(t, p.recordPath())
				w := p.start()
				w.awaitLine(line{"to": state})
				p.sidecar.await(held.path)
				if state == "Wait" {
					eventually(t, "the pauses are long", func() bool { return len(p.sidecar.told("Progress")) > 10 })
				}
				began := time.Now()
				require.NoError(t, ask(w))
				assert.Equal(t, 0, w.exit(soon))
				assert.Less(t, time.Since(began), abortBudget)
				same()
				p.neverOpened()
				assert.NotContains(t, w.log.states(), "StartEtcd")
			})
		}
	}
}

func TestStopPostedIsAnsweredInFullBeforeEtcdEnds(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	w := p.start()
	w.awaitReady()
	code, _ := w.request(http.MethodGet, "/stop")
	require.Equal(t, http.StatusMethodNotAllowed, code)
	code, body := w.request(http.MethodPost, "/stop")
	require.Equal(t, http.StatusOK, code)
	assert.NotEmpty(t, body)
	assert.Equal(t, 0, w.exit(stopBudget))
	assert.Equal(t, "terminated", p.record())
}

func TestOpenWatchesDoNotDelayTheStop(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	w := p.start()
	w.awaitReady()
	for range 3 {
		replies := p.etcd().Watch(context.Background(), "key")
		p.put("key", "value")
		reply := <-replies
		require.NoError(t, reply.Err())
	}
	status, took := w.stop(syscall.SIGTERM)
	assert.Equal(t, 0, status)
	assert.Less(t, took, 3*time.Second, "etcd alone waits 7 s for them")
	assert.Equal(t, "terminated", p.record())
}

func TestSecondSignalForcesTheEnd(t *testing.T) {
	t.Parallel()
	for second, want := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130} {
		t.Run(second.String(), func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			w := p.start()
			w.awaitReady()
			p.holdClose()
			w.signal(syscall.SIGTERM)
			began := time.Now()
			w.awaitLine(line{"to": "Terminating", "event": "signal"})
			eventually(t, "the second signal is no echo", func() bool { return time.Since(began) > 100*time.Millisecond })
			status, took := w.stop(second)
			assert.Equal(t, want, status)
			assert.Less(t, took, abortBudget)
			assert.NoFileExists(t, p.recordPath(), "etcd's close did not return")
		})
	}
}

func TestSignalThatComesTwiceAtOnceCountsOnce(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	w := p.start()
	w.awaitReady()
	release := p.holdClose()
	w.signal(syscall.SIGTERM)
	w.signal(syscall.SIGTERM)
	w.awaitLine(line{"to": "Terminating", "event": "signal"})
	release()
	assert.Equal(t, 0, w.exit(stopBudget))
	assert.Equal(t, "terminated", p.record())
}

func TestStopAlsoEndsAProcessThatHasNotBegunYet(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	pipe := filepath.Join(p.dir, "pipe") // opening it blocks until somebody writes to it
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	for _, flags := range [][]string{
		{"--backup-restore-tls-enabled", "--backup-restore-ca-cert-bundle-path=" + pipe},
		{"--etcd-wrapper-cert-path=" + pipe, "--etcd-wrapper-key-path=" + pipe},
	} {
		w := p.start(flags...)
		w.awaitLine(line{"message": "etcd-wrapper starts"})
		w.signal(syscall.SIGTERM)
		select {
		case <-w.ended: // with whatever status: a pipe is no certificate
		case <-time.After(abortBudget):
			assert.Fail(t, "SIGTERM does not end the process", "%v", flags)
		}
	}
}

func TestOpenConnectionsDoNotDelayAStop(t *testing.T) {
	t.Parallel()
	p := placeWithoutSidecar(t)
	w := p.start()
	w.awaitLine(line{"event": "no answer"})
	for range 3 {
		idle, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.port)) // a prober that sends nothing
		require.NoError(t, err)
		defer idle.Close() // nothing was sent
	}
	status, took := w.stop(syscall.SIGTERM)
	assert.Equal(t, 0, status)
	assert.Less(t, took, abortBudget)
}

func TestHangupAndALogThatNobodyReadsDoNotEndEtcd(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	w := p.start()
	w.awaitReady()
	w.signal(syscall.SIGHUP)
	require.NoError(t, w.stderr.Close())
	w.signal(syscall.SIGHUP)
	p.put("key", "value")
	w.awaitReady()
	code, _ := w.request(http.MethodPost, "/stop") // which is logged
	require.Equal(t, http.StatusOK, code)
	assert.Equal(t, 0, w.exit(stopBudget))
	assert.Equal(t, "terminated", p.record())
}

// lockFile takes bbolt's lock as another process would.
func lockFile(t *testing.T, path string) (release func()) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() }) // released before
	require.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_EX))
	return func() { require.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_UN)) }
}
