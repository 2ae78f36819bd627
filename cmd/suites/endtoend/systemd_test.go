package endtoend_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"etcd-wrapper/cmd/suites/harness"
)

// A serviceManager listens on a socket for notifications, like systemd.
type serviceManager struct {
	t      *testing.T
	socket *net.UnixConn
	path   string
}

func newServiceManager(t *testing.T) *serviceManager {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify") // t.TempDir is too long for a socket, whose path is limited to 108 bytes
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "socket")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = socket.Close() })
	return &serviceManager{t, socket, path}
}

// receive returns the next message, or an empty string after a timeout.
func (m *serviceManager) receive(within time.Duration) string {
	m.t.Helper()
	require.NoError(m.t, m.socket.SetReadDeadline(time.Now().Add(within)))
	message := make([]byte, 256)
	n, err := m.socket.Read(message)
	if err != nil {
		require.ErrorIs(m.t, err, os.ErrDeadlineExceeded)
	}
	return string(message[:n])
}

func TestSystemd_readyAndStopping(t *testing.T) {
	t.Parallel()
	for way, ask := range stops {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			manager := newServiceManager(t)
			p := harness.NewStandalonePod(t, nil)
			p.Env = append(p.Env, "NOTIFY_SOCKET="+manager.path)
			run := p.Start()
			require.Equal(t, "READY=1", manager.receive(harness.Patience))
			assert.Equal(t, "Serving", run.Status().State)
			release := p.BlockClose()
			require.NoError(t, ask(run))
			assert.Equal(t, "STOPPING=1", manager.receive(harness.Patience))
			harness.Eventually(t, "the status shows that etcd is being closed", func() bool { return run.Status().State == "Terminating" })
			release()
			assert.Zero(t, run.Exit(harness.Patience))
			assert.Empty(t, manager.receive(time.Millisecond), "each message is sent once")
		})
	}
}

func TestSystemd_stopBeforeReady(t *testing.T) {
	t.Parallel()
	manager := newServiceManager(t)
	p := harness.NewPod(t)
	p.Env = append(p.Env, "NOTIFY_SOCKET="+manager.path)
	p.Sidecar.Takes = harness.Forever
	run := p.Start()
	awaitState(run, "Wait")
	run.Signal(syscall.SIGTERM)
	assert.Equal(t, "STOPPING=1", manager.receive(harness.Patience), "the first message, because READY=1 is not sent")
	assert.Zero(t, run.Exit(harness.Patience))
}

func TestSystemd_missingSocket(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.Env = append(p.Env, "NOTIFY_SOCKET="+filepath.Join(p.Dir, "missing"))
	run := p.StartReady()
	run.AwaitLine(harness.Line{"message": "notifying systemd failed", "state": "READY=1"})
	run.Shutdown()
}

// The commands in the systemd unit and the Compose file must start a member with backups, using the configuration file
// from the same directory.
func TestHostFiles_startAMember(t *testing.T) {
	t.Parallel()
	unit, err := os.ReadFile("../../../deploy/systemd/etcd-wrapper.service")
	require.NoError(t, err)
	_, command, _ := strings.Cut(string(unit), "\nExecStart=")
	command, _, _ = strings.Cut(command, "\n")
	composed, err := os.ReadFile("../../../deploy/compose/compose.yaml")
	require.NoError(t, err)
	var file struct {
		Services map[string]struct{ Command []string }
	}
	require.NoError(t, yaml.Unmarshal(composed, &file))
	for folder, command := range map[string]string{
		"systemd": command + " --backup-store=file:///srv/etcd-backups",
		"compose": "etcd-wrapper " + strings.Join(file.Services["etcd"].Command, " "),
	} {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			config, err := filepath.Abs("../../../deploy/" + folder)
			require.NoError(t, err)
			here := strings.NewReplacer("/usr/local/bin/", "", "/etc/etcd", config, "/var/lib/etcd", "$PWD/volume", "/var/etcd/data", "$PWD/volume",
				"/srv/etcd-backups", "$PWD/backups")
			printed, _ := follow(t, "mkdir volume backups\n"+inAnother(here.Replace(command))+
				"etcd-wrapper etcdctl put greeting hello\nstored 2\netcd-wrapper backup verify\nstopped\n")
			assertPrinted(t, printed, "OK\n", "recorded the result in the store")
		})
	}
}
