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

// The tests in this file count requests and goroutines, because these numbers do not depend on the machine. "make
// bench" measures the performance.

func TestStart_sidecarRequests(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.StartAndStop()
	progress := len(p.Sidecar.Statuses("Progress")) // depends on how long the validation takes
	assert.Len(t, p.Sidecar.Requests(harness.StatusPath), 2+progress, "one request before the validation and one after it")
	assert.Len(t, p.Sidecar.Requests(harness.StartPath), 1)
	assert.LessOrEqual(t, len(p.Sidecar.Requests(harness.ConfigPath)), 2, "a prefetch, and another request if the prefetch is not complete when the validation ends")
}

// ours matches the stack of a goroutine that the wrapper has started or that is executing the wrapper's code.
var ours = regexp.MustCompile(`(?m)^(created by )?(main\.|etcd-wrapper/)`)

func TestServing_goroutines(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.Config["enable-pprof"] = true
	run := p.StartReady()
	var found []string
	harness.Eventually(t, "goroutines that are needed only for the start have exited", func() bool {
		found = goroutines(t, p.Endpoint())
		return len(found) <= 12
	})
	// Two of them exist in plain etcd as well: the main goroutine and the one that waits for signals.
	assert.Len(t, found, 12, "the wrapper's goroutines while etcd is serving:\n%s", strings.Join(found, "\n\n"))
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
