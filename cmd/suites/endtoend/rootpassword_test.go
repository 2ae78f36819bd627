package endtoend_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// The root password must not change after a restart. If the volume is lost, the password must be restored from the
// backups, even if the cluster contained no keys.
func TestRootPassword_newCluster(t *testing.T) {
	t.Parallel()
	p := newPodWithStore(t)
	p.Config["bcrypt-cost"] = 4 // with the default cost, hashing a password takes a minute on a busy machine
	p.WriteConfigFile()
	file := filepath.Join(p.Dir, "password")
	require.NoError(t, os.WriteFile(file, []byte("se:cret\n"), 0o600))
	p.Flags = append(p.Flags, "--root-password-file="+file)
	guarded := func(run *harness.Run) {
		out, log, status := p.Begin("etcdctl", "get", "key").Wait()
		assert.NotZero(t, status, out)
		assert.Contains(t, log, "user name is empty")
		visit(p, "etcdctl", "--user=root:se:cret", "user", "list")
		assert.Equal(t, "ok", run.Status().Headline.Health, run.Status().Headline.Summary)
		assert.Empty(t, run.Log.FindText("se:cret"))
	}
	run := p.StartReady()
	guarded(run)
	shutdownStored(run)
	emptyVolume(p)
	run = p.StartReady()
	guarded(run)

	visit(p, "etcdctl", "--user=root:se:cret", "put", "key", "value")
	visit(p, "backup", "now")
	visit(p, "backup", "verify")
	visit(p, "defrag")
	shutdownStored(run)
	require.NoError(t, os.WriteFile(file, []byte("another"), 0o600)) // the password in etcd does not change
	run = p.StartReady()
	guarded(run)
	run.LoseVolume()
	run = p.StartReady()
	guarded(run)
	assert.Equal(t, "value\n", visit(p, "etcdctl", "--user=root:se:cret", "get", "key", "--print-value-only"))
	run.Shutdown()
}

// visit runs a command that must succeed.
func visit(p *harness.Pod, args ...string) (out string) {
	p.T.Helper()
	out, log, status := p.Begin(args...).Wait()
	require.Equal(p.T, 0, status, "%v: %s", args, log)
	return out
}
