package endtoend_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

func TestFailedInitialization_isRetried(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.Sidecar.Results = []string{"Failed", "Failed", "Successful"}
	p.Sidecar.Takes = 20 * time.Millisecond
	run := p.StartReady()
	assert.Equal(t, []string{"full", "full", "full"}, p.Sidecar.Modes())
	assert.Len(t, run.Log.Matching(harness.Line{"event": "config valid"}), 1, "the configuration is accepted, and etcd opened, only once")
	assert.Len(t, p.Sidecar.Statuses("Failed"), 2)
	run.Shutdown()
}

func TestSidecarStartsLate(t *testing.T) {
	t.Parallel()
	p := harness.NewPodWithStoppedSidecar(t)
	run := p.Start()
	run.AwaitLine(harness.Line{"event": "no answer", "to": "Wait"})
	assert.Equal(t, http.StatusServiceUnavailable, run.Readyz())
	p.Sidecar.Listen()
	run.AwaitReady()
	assert.Equal(t, []string{"full"}, p.Sidecar.Modes())
	run.Shutdown()
}

func TestInitializationResult_inTwoPackets(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.Sidecar.Takes, p.Sidecar.Broken[harness.StatusPath] = harness.Forever, sendInTwoParts
	run := p.Start()
	harness.Eventually(t, "the wrapper waits for the validation", func() bool { return len(p.Sidecar.Statuses("Progress")) > 0 })
	watch := harness.StartWatch()
	p.Sidecar.Finish()
	run.AwaitLine(startsEtcd)
	took := watch.Duration()
	run.AwaitReady()
	oneInitialization(p)
	assert.Less(t, took, 500*time.Millisecond, "time from the validation result to the start of etcd")
	run.Shutdown()
}

func TestUnavailableConfiguration_noSecondInitialization(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]harness.Fault{
		"500": harness.Reply(http.StatusInternalServerError, ""), "cut": cut, "redirect": redirect, "endless": sendForever,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := harness.NewPod(t)
			p.Sidecar.Broken[trapPath] = harness.Reply(http.StatusOK, "Successful")
			p.Sidecar.Faults[harness.ConfigPath] = slices.Repeat([]harness.Fault{broken}, 3)
			run := p.StartReady()
			oneInitialization(p)
			assert.Len(t, p.Sidecar.Requests(harness.ConfigPath), 4)
			assert.Empty(t, p.Sidecar.Requests(trapPath), "redirects are not followed")
			run.Shutdown()
		})
	}
}

func TestSlowConfiguration(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.Sidecar.Slow, p.Sidecar.Takes = 7100*time.Millisecond, 5*time.Second
	run := p.StartReady()
	oneInitialization(p)
	fetched := p.Sidecar.Requests(harness.ConfigPath)
	assert.True(t, fetched[0].At.Before(p.Sidecar.Statuses("Successful")[0].At), "the configuration is requested before the validation ends")
	assert.True(t, p.Sidecar.Statuses("Successful")[0].At.Before(openTime(run)), "etcd starts after the validation result")
	require.Len(t, fetched, 2)
	assert.Less(t, openTime(run).Sub(fetched[1].At), p.Sidecar.Slow, "etcd starts with the prefetched configuration, without waiting for the second response")
	run.Shutdown()
}

func TestEtcdOpens_onlyAfterTheResult(t *testing.T) {
	t.Parallel()
	for name, misleading := range map[string]harness.Fault{
		"an empty body":              harness.Reply(http.StatusOK, ""),
		"the status in lower case":   harness.Reply(http.StatusOK, "successful"),
		"the status with a suffix":   harness.Reply(http.StatusOK, "Successful!"),
		"the status in an HTML page": harness.Reply(http.StatusOK, "<html>Successful</html>"),
		"the status twice":           harness.Reply(http.StatusOK, "Successful Successful"),
		"the status with code 202":   harness.Reply(http.StatusAccepted, "Successful"),
		"the status with code 500":   harness.Reply(http.StatusInternalServerError, "Successful"),
		"a redirect to the status":   redirect,
		"a truncated status":         cutShort,
		"no response":                cut,
		"an endless body":            sendForever,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := harness.NewPod(t)
			p.Sidecar.Broken[trapPath] = harness.Reply(http.StatusOK, "Successful")
			p.Sidecar.Faults[harness.StatusPath] = slices.Repeat([]harness.Fault{misleading}, 2)
			run := p.StartReady()
			oneInitialization(p)
			assert.Empty(t, p.Sidecar.Requests(trapPath), "redirects are not followed")
			assert.True(t, p.Sidecar.Statuses("Successful")[0].At.Before(openTime(run)), "etcd starts after the validation result")
			assert.GreaterOrEqual(t, len(p.Sidecar.Requests(harness.StatusPath)), 4, "the wrapper retried after each misleading response")
			run.Shutdown()
		})
	}
}

func TestLostTrigger_isRepeated(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]harness.Fault{"cut": cut, "503": harness.Reply(http.StatusServiceUnavailable, "")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := harness.NewPod(t)
			p.WriteRecord("terminated")
			p.Sidecar.Faults[harness.StartPath] = slices.Repeat([]harness.Fault{broken}, 2)
			run := p.StartReady()
			assert.Equal(t, []string{"sanity", "sanity", "sanity"}, p.Sidecar.Modes())
			assert.Len(t, p.Sidecar.Statuses("Successful"), 1)
			run.Shutdown()
		})
	}
}

// startsEtcd is the message logged when etcd is started.
var startsEtcd = harness.Line{"message": "starting an etcd server"}

// openTime returns the time at which etcd was started, and fails the test unless it was started exactly once.
func openTime(run *harness.Run) time.Time {
	run.T.Helper()
	started := run.Log.Matching(startsEtcd)
	require.Len(run.T, started, 1)
	at, err := time.Parse(time.RFC3339Nano, started[0]["time"].(string))
	require.NoError(run.T, err)
	return at
}

// oneInitialization requires that the wrapper requested exactly one initialization and received exactly one result.
func oneInitialization(p *harness.Pod) {
	p.T.Helper()
	require.Len(p.T, p.Sidecar.Requests(harness.StartPath), 1, "initialization requests")
	require.Len(p.T, p.Sidecar.Statuses("Successful"), 1, "results")
	for _, r := range p.Sidecar.Filter(func(r harness.Request) bool { return r.Method != "" }) {
		require.Equal(p.T, http.MethodGet, r.Method, r.Path)
	}
}
