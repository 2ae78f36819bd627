package endtoend_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"etcd-wrapper/cmd/suites/harness"
)

// joining is a pod without a sidecar whose member joins that of another one.
func joining(t *testing.T, first *harness.Pod) *harness.Pod {
	t.Helper()
	p := harness.NewStandalonePod(t, map[string]any{"name": "etcd-main-1", "initial-cluster-state": "existing"})
	p.Config["initial-cluster"] = fmt.Sprintf("%s,etcd-main-1=%s", first.Config["initial-cluster"], p.PeerURL())
	text, err := yaml.Marshal(p.Config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(p.Dir, "etcd.yaml"), text, 0o600))
	return p
}

func TestAMemberThatIsAddedAsALearnerBecomesReadyWithoutAnybody(t *testing.T) {
	t.Parallel()
	first := harness.NewStandalonePod(t, nil)
	first.StartReady()
	first.Put("key", "value")
	second := joining(t, first)
	_, log, code := first.Begin("etcdctl", "member", "add", "etcd-main-1", "--learner", "--peer-urls="+second.PeerURL()).Wait()
	require.Zero(t, code, log)

	run := second.StartReady()
	assert.Equal(t, "value", second.Get("key"))
	out, log, code := first.Begin("etcdctl", "member", "list").Wait()
	require.Zero(t, code, log)
	assert.Equal(t, 2, strings.Count(out, ", false"), "nobody is a learner in\n%s", out)
	assert.NotEmpty(t, run.Log.Containing("this learner was promoted"))
	run.StopCleanly()
}
