package main_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Plain etcd founds a cluster without an initial-cluster, and looks at none as soon as there is a log.
func TestConfigurationsThatPlainEtcdRunsAreRun(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	delete(p.config, "initial-cluster")
	p.config["Pre-Vote"] = false
	p.config["advertise-client-urls"] = fmt.Sprintf("http://someone:hunter2@127.0.0.1:%d", p.client)
	first := p.start()
	first.awaitReady()
	first.awaitLine(line{"message": `etcd's configuration: "Pre-Vote" is read as pre-vote`, "level": "warn"})
	p.put("key", "value")
	first.stopCleanly()
	assert.Contains(t, first.log.text(), "redacted@127.0.0.1")
	assert.NotContains(t, first.log.text(), "hunter2")

	p.config["initial-cluster"] = "someone-else=http://127.0.0.1:1"
	second := p.start()
	second.awaitReady()
	second.awaitLine(line{"message": "etcd goes by its log and does not look at it", "level": "warn"})
	require.Equal(t, "value", p.get("key"))
	second.stopCleanly()
}
