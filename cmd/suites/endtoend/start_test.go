package endtoend_test

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

func TestValidation_firstFullThenSanity(t *testing.T) {
	t.Parallel()
	for signal, word := range map[syscall.Signal]string{syscall.SIGTERM: "terminated", syscall.SIGINT: "interrupt"} {
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			p := harness.NewPod(t)
			first := p.StartReady()
			p.Put("key", "value")
			assert.NoFileExists(t, p.RecordPath(), "there is no exit record while etcd is running")
			status, took := first.Stop(signal)
			require.Equal(t, 0, status)
			assert.Less(t, took, harness.StopBudget)
			assert.Equal(t, word, p.Record())

			second := p.StartReady()
			assert.Equal(t, "value", p.Get("key"))
			assert.NoFileExists(t, p.RecordPath())
			second.Shutdown()
			assert.Equal(t, []string{"full", "sanity"}, p.Sidecar.Modes())
		})
	}
}

func TestValidation_fullAfterKill(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.WriteRecord("terminated")
	first := p.StartReady()
	p.Put("key", "value")
	first.Kill()
	require.NoFileExists(t, p.RecordPath())

	second := p.StartReady()
	assert.Equal(t, "value", p.Get("key"))
	second.Shutdown()
	assert.Equal(t, []string{"sanity", "full"}, p.Sidecar.Modes())
}

func TestStates_order(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.Sidecar.Takes = harness.Forever
	run := p.Start()
	harness.Eventually(t, "the wrapper waits for the validation", func() bool { return len(p.Sidecar.Statuses("Progress")) > 0 })
	p.Sidecar.Finish()
	run.AwaitReady()
	run.Shutdown()
	assert.Equal(t, []string{
		"Query", "Trigger", "Wait", "Query", "FetchConfig", "StartEtcd", "Serving", "Terminating", "Terminated",
	}, states(run))
}

// awaitState waits until the lifecycle is in the given state.
func awaitState(run *harness.Run, state string) {
	run.T.Helper()
	harness.Eventually(run.T, "the state is "+state, func() bool { return run.Status().State == state })
}

// states returns the states that the lifecycle has entered, in order. Repeated changes between Wait and Query, which
// occur while the wrapper polls the sidecar, are listed only once.
func states(run *harness.Run) []string {
	visited := []string{"Query"}
	for _, entry := range run.Log.Matching(nil) {
		to, ok := entry["to"].(string)
		message, _ := entry["message"].(string)
		if entry["event"] == nil || !ok || to == visited[len(visited)-1] || strings.HasPrefix(message, "recovery: ") {
			continue
		}
		visited = append(visited, to)
		if keep := len(visited) - 2; keep >= 2 && slices.Equal(visited[keep-2:], []string{"Wait", "Query", "Wait", "Query"}) {
			visited = visited[:keep]
		}
	}
	return visited
}

func TestFetchedConfiguration_permissions(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	run := p.StartAndStop()
	stored, err := os.Stat(p.StoredConfig())
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), stored.Mode())
	content, err := os.ReadFile(p.StoredConfig())
	require.NoError(t, err)
	assert.Contains(t, string(content), "member-name-prefix: etcd-main", "the file also contains keys that etcd does not support")
	assert.NotEmpty(t, run.Log.FindText("next-cluster-version-compatible"), "the log names the keys that etcd does not support")
}

func TestReadyz_lifecycle(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.Sidecar.Takes = harness.Forever
	run := p.Start()
	harness.Eventually(t, "/readyz returns 503 before etcd is running", func() bool { return run.Readyz() == http.StatusServiceUnavailable })
	_, why := run.Request(http.MethodGet, "/readyz")
	assert.Regexp(t, `lifecycle failed: (Query|Trigger|Wait|FetchConfig|StartEtcd) for`, why)
	p.Sidecar.Finish()
	run.AwaitReady()
	release := p.BlockClose()
	run.Signal(syscall.SIGTERM)
	run.AwaitLine(harness.Line{"to": "Terminating", "event": "signal"})
	assert.Equal(t, http.StatusServiceUnavailable, run.Readyz(), "the member is unready while etcd is closing")
	assert.Empty(t, run.Log.Matching(harness.Line{"event": "etcd closed"}), "etcd is still closing")
	assert.NoFileExists(t, p.RecordPath(), "there is no exit record before etcd is closed")
	release()
	require.Equal(t, 0, run.Exit(harness.StopBudget))
	assert.Equal(t, "terminated", p.Record())
}

func TestReadyz_withoutQuorum(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.WithoutQuorum()
	p.WriteRecord("terminated")
	run := p.Start()
	run.AwaitLine(harness.Line{"message": "is starting a new election at term"})
	assert.Equal(t, http.StatusServiceUnavailable, run.Readyz())
	harness.Eventually(t, "the first line of the status contains the reason", func() bool {
		out, _, _ := p.Begin("status", "-v").Wait()
		return strings.Contains(harness.OneLine(out), "StartEtcd, not ready: waiting for a leader, which requires a quorum")
	})
	status, took := run.Stop(syscall.SIGTERM)
	require.Equal(t, 0, status)
	assert.Less(t, took, 5*time.Second, "the stop does not wait for the missing members")
	assert.Equal(t, "terminated", p.Record())
	assert.NotContains(t, states(run), "Serving")
}

func TestReadyTimeout(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.WithoutQuorum()
	p.WriteRecord("terminated")
	run := p.Start("--etcd-ready-timeout=1s")
	require.Equal(t, 75, run.Exit(harness.Patience))
	assert.NoFileExists(t, p.RecordPath(), "there is no exit record after a timeout, because no stop was requested")
	assert.NotContains(t, states(run), "Serving")
}

func TestData_permissions(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.StartAndStop()
	chmodData(p, 0o644, 0o755)
	second := p.StartReady()
	p.Put("key", "value")
	assert.Empty(t, modesOtherThan(p, 0o600, 0o700), "while etcd runs")
	second.Shutdown()
	assert.Empty(t, modesOtherThan(p, 0o600, 0o700), "afterwards")
}
