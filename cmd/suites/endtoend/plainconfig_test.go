package endtoend_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// Like plain etcd, the wrapper must accept configurations without initial-cluster. etcd ignores the setting if a log
// exists.
func TestPlainEtcdConfigurations(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	delete(p.Config, "initial-cluster")
	p.Config["Pre-Vote"] = false
	p.Config["advertise-client-urls"] = fmt.Sprintf("http://someone:hunter2@127.0.0.1:%d", p.ClientPort)
	first := p.StartReady()
	first.AwaitLine(harness.Line{"message": `etcd's configuration: "Pre-Vote" is interpreted as pre-vote`, "level": "warn"})
	p.Put("key", "value")
	first.Shutdown()
	assert.NotEmpty(t, first.Log.FindText("redacted@127.0.0.1"))
	assert.Empty(t, first.Log.FindText("hunter2"))

	p.Config["initial-cluster"] = "someone-else=http://127.0.0.1:1"
	second := p.StartReady()
	second.AwaitLine(harness.Line{"message": "ignored because etcd takes the members from its log", "level": "warn"})
	require.Equal(t, "value", p.Get("key"))
	second.Shutdown()
}
