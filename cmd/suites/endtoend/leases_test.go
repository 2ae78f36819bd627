package endtoend_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/cmd/suites/harness"
)

func TestLeases_unreachableAPIServer(t *testing.T) {
	t.Parallel()
	p := harness.NewStandalonePod(t, nil)
	p.Flags = append(p.Flags, "--kubernetes=leases")
	p.Env = []string{"KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT=1", "POD_NAME=etcd-main-0"}
	run := p.StartReady()
	p.Put("key", "value")
	run.AwaitLine(harness.Line{"level": "warn", "lease": "etcd-main-0"})
	harness.Eventually(t, "the status shows that the lease was retried", func() bool {
		status := run.Status()
		return len(status.Leases) == 1 && status.Leases[0].Problem != nil && status.Leases[0].Problem.Count > 1
	})
	_, metrics := run.Request(http.MethodGet, "/metrics")
	assert.Contains(t, metrics, `etcd_wrapper_lease_problem{kind="member"} 1`)
	out, _, _ := p.Begin("status", "-v").Wait()
	assert.Regexp(t, `(?m)^lease fails +.+`, out)
	assert.Equal(t, http.StatusOK, run.Readyz())
	run.Shutdown()
}

func TestLeases_podOutsideAStatefulSet(t *testing.T) {
	t.Parallel()
	p := harness.NewStandalonePod(t, nil)
	p.Env = []string{"KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT=1", "POD_NAME=etcd"}
	run := p.Start("--kubernetes=leases")
	assert.Equal(t, 64, run.Exit(harness.Patience))
	assert.NotEmpty(t, run.Log.FindText(`set POD_NAME`))
}
