package endtoend_test

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// The tests in this file count resources, because counts do not depend on the machine; make bench measures the effect
// on performance.

func TestStart_sidecarRequests(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.StartAndStop()
	waited := len(p.Sidecar.Statuses("Progress")) // on a busy machine, there may be extra calls
	assert.Len(t, p.Sidecar.Requests(harness.StatusPath), 2+waited, "once before and once after the validation")
	assert.Len(t, p.Sidecar.Requests(harness.StartPath), 1)
	assert.LessOrEqual(t, len(p.Sidecar.Requests(harness.ConfigPath)), 2, "an early request, and one after the result if the first is still open")
}

// ours matches goroutines that the wrapper started or that are executing its code.
var ours = regexp.MustCompile(`(?m)^(created by )?(main\.|etcd-wrapper/)`)

func TestServing_goroutines(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.Config["enable-pprof"] = true
	run := p.StartReady()
	var found []string
	harness.Eventually(t, "the start's own goroutines have ended", func() bool {
		found = goroutines(t, p.Endpoint())
		return len(found) <= 12
	})
	// Plain etcd also has a main goroutine and a goroutine that waits for signals.
	assert.Len(t, found, 12, "main, signals, the log, the server, the monitor, the report, the check that the data are there, the data's version, maintenance and its ear, what catches up, and the machine's work:\n%s", strings.Join(found, "\n\n"))
	run.Shutdown()
}

func goroutines(t *testing.T, endpoint string) (found []string) {
	t.Helper()
	response, err := http.Get(endpoint + "/debug/pprof/goroutine?debug=2")
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	for _, stack := range strings.Split(string(text), "\n\n") {
		if ours.MatchString(stack) {
			found = append(found, stack)
		}
	}
	return found
}
