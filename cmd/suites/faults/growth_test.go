package faults_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"sigs.k8s.io/yaml"

	"etcd-wrapper/cmd/suites/harness"
)

// An isolated member runs without a sidecar in a network namespace of its own. Commands for it must also run in that
// namespace.
type isolated struct {
	*wires
	name string
	host int // last byte of its IP address
	dir  string
	cmd  *exec.Cmd
}

func (w *wires) member(name string, host int) *isolated {
	w.t.Helper()
	w.attach(name, host)
	return &isolated{wires: w, name: name, host: host, dir: w.t.TempDir()}
}

func (m *isolated) endpoint() string { return "http://" + at(m.host) + ":2379" }

func (m *isolated) peer() string { return "http://" + at(m.host) + ":2380" }

// start starts the member and waits until it is ready. state is etcd's initial-cluster-state, "new" or "existing".
func (m *isolated) start(state string, members ...*isolated) {
	m.t.Helper()
	m.begin(state, members...)
	m.awaitReady()
}

func (m *isolated) begin(state string, initial ...*isolated) {
	m.t.Helper()
	var members []string
	for _, each := range initial {
		members = append(members, each.name+"="+each.peer())
	}
	config, err := yaml.Marshal(map[string]any{
		"name": m.name, "listen-client-urls": m.endpoint() + ",http://127.0.0.1:2379", "advertise-client-urls": m.endpoint(),
		"listen-peer-urls": m.peer(), "initial-advertise-peer-urls": m.peer(),
		"initial-cluster": strings.Join(members, ","), "initial-cluster-state": state, "initial-cluster-token": "grows",
	})
	require.NoError(m.t, err)
	require.NoError(m.t, os.WriteFile(m.file("etcd.yaml"), config, 0o600))
	m.cmd = m.command("start-etcd", "--standalone", "--etcd-config-file="+m.file("etcd.yaml"), "--volume-dir="+m.dir)
	log, err := os.OpenFile(m.file("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(m.t, err)
	defer log.Close()
	m.cmd.Stderr = log
	require.NoError(m.t, m.cmd.Start())
	running := m.cmd
	m.t.Cleanup(func() {
		_ = running.Process.Kill() // the process may have exited already
		_ = running.Wait()
		if content, _ := os.ReadFile(m.file("log")); m.t.Failed() {
			m.t.Logf("end of %s's log:\n%s", m.name, content[max(0, len(content)-3000):])
		}
	})
}

func (m *isolated) file(name string) string { return filepath.Join(m.dir, name) }

// command returns a subcommand of the program that runs in the member's namespace, as if it had been started with
// kubectl exec.
func (m *isolated) command(args ...string) *exec.Cmd {
	command := exec.Command("ip", append([]string{"netns", "exec", m.wires.name(m.name), harness.Program}, args...)...)
	command.Env = append(os.Environ(), "HOME="+m.dir)
	return command
}

func (m *isolated) run(args ...string) (out string) {
	m.t.Helper()
	output, err := m.command(args...).CombinedOutput()
	require.NoError(m.t, err, "%v: %s", args, output)
	return string(output)
}

// reconfigure retries a command that etcd rejects until all members have been connected for 5 s.
func (m *isolated) reconfigure(args ...string) {
	m.t.Helper()
	output := ""
	defer func() {
		if m.t.Failed() {
			m.t.Log(output)
		}
	}()
	harness.Eventually(m.t, strings.Join(args, " ")+" succeeds", func() bool {
		out, err := m.command(args...).CombinedOutput()
		output = string(out)
		require.True(m.t, err == nil || strings.Contains(output, "unhealthy cluster"), output)
		return err == nil
	})
}

func (m *isolated) awaitReady() {
	m.t.Helper()
	harness.Eventually(m.t, m.name+" is ready", func() bool { return m.command("status").Run() == nil })
}

// exit waits until the process has exited and returns its exit status.
func (m *isolated) exit() int {
	m.t.Helper()
	finished := make(chan struct{})
	go func() { defer close(finished); _ = m.cmd.Wait() }() // the result is in ProcessState
	select {
	case <-finished:
	case <-time.After(harness.Patience):
		require.FailNow(m.t, m.name+" did not exit")
	}
	return m.cmd.ProcessState.ExitCode()
}

func (m *isolated) stop() {
	m.t.Helper()
	require.NoError(m.t, m.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(m.t, m.exit())
}

// list returns the output of "etcdctl member list", by member name.
func (m *isolated) list() map[string]listed {
	m.t.Helper()
	var reply struct{ Members []listed }
	require.NoError(m.t, json.Unmarshal([]byte(m.run("etcdctl", "member", "list", "-w", "json")), &reply))
	all := map[string]listed{}
	for _, each := range reply.Members {
		all[each.Name] = each
	}
	return all
}

type listed struct {
	ID        uint64
	Name      string
	PeerURLs  []string
	IsLearner bool
}

func (l listed) id() string { return fmt.Sprintf("%x", l.ID) }

// client returns a client that knows the addresses of the given members, even if they have not been started yet.
func (w *wires) client(members []*isolated) *clientv3.Client {
	w.t.Helper()
	var endpoints []string
	for _, m := range members {
		endpoints = append(endpoints, m.endpoint())
	}
	return harness.NewClient(w.t, clientv3.Config{Endpoints: endpoints, DialOptions: []grpc.DialOption{grpc.WithContextDialer(w.dial)}})
}

// The commands in docs/maintenance.md must grow a cluster from one to three members, change a member's address, and
// shrink the cluster again, without losing a write.
func TestMaintenance_growMoveAndShrink(t *testing.T) {
	if !*day {
		t.Skip("skipped: part of make test-maintenance")
	}
	w := newWires(t)
	harness.Output(t, "version") // build the program before it is started in a namespace
	members := []*isolated{w.member("etcd-0", 10), w.member("etcd-1", 11), w.member("etcd-2", 12)}
	first := members[0]
	first.start("new", first)
	end := harness.StartLatencyClients(t, 4, func() *clientv3.Client { return w.client(members) })

	for size := 2; size <= 3; size++ {
		joins := members[size-1]
		first.reconfigure("etcdctl", "member", "add", joins.name, "--learner", "--peer-urls="+joins.peer())
		joins.begin("existing", members[:size]...)
		harness.Eventually(t, "the learner is promoted", func() bool {
			known, found := first.list()[joins.name]
			return found && first.command("etcdctl", "member", "promote", known.id()).Run() == nil
		})
		joins.awaitReady()
		assert.False(t, first.list()[joins.name].IsLearner)
	}

	moves := members[2]
	moves.stop()
	moves.host = 22
	w.address(moves.name, "eth0", moves.host)
	moves.start("existing", members...)
	harness.Eventually(t, "the member list contains the new address", func() bool {
		return assert.ObjectsAreEqual([]string{moves.peer()}, first.list()[moves.name].PeerURLs)
	})

	first.lead(members)
	for _, leaves := range []*isolated{members[2], members[1]} {
		first.reconfigure("etcdctl", "member", "remove", first.list()[leaves.name].id())
		leaves.requireExitAsRemoved()
	}
	first.awaitReady()
	assert.Len(t, first.list(), 1)
	w.requireNothingLost(members, end())
}

// requireExitAsRemoved requires that the process exits because its member was removed. etcd notices this either
// through a notification or because the member is missing from the member list.
func (m *isolated) requireExitAsRemoved() {
	m.t.Helper()
	status := m.exit()
	log, err := os.ReadFile(m.file("log"))
	require.NoError(m.t, err)
	reasons := map[int]string{70: "removed from the cluster", 2: "failed to find local ID in cluster members"}
	require.Contains(m.t, reasons, status)
	assert.Contains(m.t, string(log), reasons[status])
}

// lead transfers leadership to this member unless it is already the leader.
func (m *isolated) lead(members []*isolated) {
	m.t.Helper()
	for _, each := range members {
		var status struct{ Leader, MemberID string }
		require.NoError(m.t, json.Unmarshal([]byte(each.run("status", "-o", "json")), &status))
		if each != m && status.Leader == status.MemberID {
			each.run("etcdctl", "move-leader", m.list()[m.name].id())
		}
	}
}

func (w *wires) requireNothingLost(members []*isolated, writers []*harness.LatencyClient) {
	w.t.Helper()
	longest := harness.Longest(writers)
	failed := 0
	for _, writer := range writers {
		failed += len(writer.Failed)
	}
	w.t.Logf("longest write gap of %d clients: %s; %d writes failed; errors of the client with the longest gap: %v", len(writers), longest.Longest, failed, longest.Failed)
	requireNothingLost(w.t, w.client(members), writers)
}
