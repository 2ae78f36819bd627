package main_test

import (
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFirstStartValidatesInFullAndTheNextOneOnlySanity(t *testing.T) {
	t.Parallel()
	for signal, word := range map[syscall.Signal]string{syscall.SIGTERM: "terminated", syscall.SIGINT: "interrupt"} {
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			first := p.start()
			first.awaitReady()
			p.put("key", "value")
			assert.NoFileExists(t, p.recordPath(), "no record while etcd runs")
			status, took := first.stop(signal)
			require.Equal(t, 0, status)
			assert.Less(t, took, stopBudget)
			assert.Equal(t, word, p.record())

			second := p.start()
			second.awaitReady()
			assert.Equal(t, "value", p.get("key"))
			assert.NoFileExists(t, p.recordPath())
			second.stopCleanly()
			assert.Equal(t, []string{"full", "sanity"}, p.sidecar.modes())
		})
	}
}

func TestKilledEtcdIsValidatedInFullAndKeepsWhatItAcknowledged(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.writeRecord("terminated")
	first := p.start()
	first.awaitReady()
	p.put("key", "value")
	first.kill()
	require.NoFileExists(t, p.recordPath())

	second := p.start()
	second.awaitReady()
	assert.Equal(t, "value", p.get("key"))
	second.stopCleanly()
	assert.Equal(t, []string{"sanity", "full"}, p.sidecar.modes())
}

func TestEveryStateIsVisitedInTheOrderOfTheTable(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.sidecar.takes = 500 * time.Millisecond
	w := p.start()
	w.awaitReady()
	w.stopCleanly()
	assert.Equal(t, []string{
		"Query", "Trigger", "Wait", "Query", "FetchConfig", "StartEtcd", "Serving", "Terminating", "Terminated",
	}, w.log.states())
	assert.NotEmpty(t, p.sidecar.told("Progress"), "the validation was waited for")
}

func TestFetchedConfigurationIsStoredForItsOwnerOnly(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	w := p.start()
	w.awaitReady()
	w.stopCleanly()
	stored, err := os.Stat(p.stored())
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), stored.Mode())
	content, err := os.ReadFile(p.stored())
	require.NoError(t, err)
	assert.Contains(t, string(content), "member-name-prefix: etcd-main", "as it was served")
	assert.NotEmpty(t, w.log.containing("next-cluster-version-compatible"), "the log names the keys that etcd does not know")
}

func TestReadyzFollowsTheLifecycle(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.sidecar.takes = 300 * time.Millisecond
	w := p.start()
	eventually(t, "there is an answer before etcd runs", func() bool { return w.readyz() == http.StatusServiceUnavailable })
	_, why := w.request(http.MethodGet, "/readyz")
	assert.Regexp(t, `lifecycle failed: (Query|Trigger|Wait|FetchConfig|StartEtcd) for`, why)
	w.awaitReady()
	release := p.holdClose()
	w.signal(syscall.SIGTERM)
	w.awaitLine(line{"to": "Terminating", "event": "signal"})
	assert.Equal(t, http.StatusServiceUnavailable, w.readyz(), "unready at once, while etcd still closes")
	assert.Empty(t, w.log.matching(line{"event": "etcd closed"}), "etcd is still closing")
	assert.NoFileExists(t, p.recordPath(), "no record before etcd is closed")
	release()
	require.Equal(t, 0, w.exit(stopBudget))
	assert.Equal(t, "terminated", p.record())
}

func TestReadyzIsNeverTrueWithoutQuorum(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.withoutQuorum()
	p.writeRecord("terminated")
	w := p.start()
	w.awaitLine(line{"message": "is starting a new election at term"})
	assert.Equal(t, http.StatusServiceUnavailable, w.readyz())
	status, took := w.stop(syscall.SIGTERM)
	require.Equal(t, 0, status)
	assert.Less(t, took, 5*time.Second, "there is nobody to wait for")
	assert.Equal(t, "terminated", p.record())
	assert.NotContains(t, w.log.states(), "Serving")
}

func TestReadyTimeoutEndsAStartThatDoesNotBecomeReady(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.withoutQuorum()
	p.writeRecord("terminated")
	w := p.start("--etcd-ready-timeout=1s")
	require.Equal(t, 75, w.exit(soon))
	assert.NoFileExists(t, p.recordPath(), "not a stop that was asked for")
	assert.NotContains(t, w.log.states(), "Serving")
}

func TestDataBelongsToItsOwnerOnly(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	first := p.start()
	first.awaitReady()
	first.stopCleanly()
	p.chmodData(0o644, 0o755)
	second := p.start()
	second.awaitReady()
	p.put("key", "value")
	assert.Empty(t, p.modesOtherThan(0o600, 0o700), "while etcd runs")
	second.stopCleanly()
	assert.Empty(t, p.modesOtherThan(0o600, 0o700), "afterwards")
}
