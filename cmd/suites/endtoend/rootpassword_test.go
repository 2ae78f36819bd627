package endtoend_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// The root password is set only when the cluster is created. It must not change when a member is restarted, and must
// be restored from the backups if the volume is lost, even if the cluster contained no keys.
func TestRootPassword_newCluster(t *testing.T) {
	t.Parallel()
	p := newPodWithStore(t)
	p.Config["bcrypt-cost"] = 4 // with the default cost, hashing a password takes a minute on a busy machine
	p.WriteConfigFile()
	file := filepath.Join(p.Dir, "password")
	require.NoError(t, os.WriteFile(file, []byte("se:cret\n"), 0o600))
	p.Flags = append(p.Flags, "--root-password-file="+file)
	requirePassword := func(run *harness.Run) {
		out, log, status := p.Begin("etcdctl", "get", "key").Wait()
		assert.NotZero(t, status, out)
		assert.Contains(t, log, "user name is empty")
		command(p, "etcdctl", "--user=root:se:cret", "user", "list")
		assert.Equal(t, "ok", run.Status().Headline.Health, run.Status().Headline.Summary)
		assert.Empty(t, run.Log.FindText("se:cret"))
	}
	run := p.StartReady()
	requirePassword(run)
	shutdownStored(run)
	emptyVolume(p)
	run = p.StartReady()
	requirePassword(run)

	command(p, "etcdctl", "--user=root:se:cret", "put", "key", "value")
	command(p, "backup", "now")
	command(p, "backup", "verify")
	command(p, "defrag")
	shutdownStored(run)
	// A new password in the file must not change the one in etcd.
	require.NoError(t, os.WriteFile(file, []byte("another"), 0o600))
	run = p.StartReady()
	requirePassword(run)
	run.LoseVolume()
	run = p.StartReady()
	requirePassword(run)
	assert.Equal(t, "value\n", command(p, "etcdctl", "--user=root:se:cret", "get", "key", "--print-value-only"))
	run.Shutdown()
}

// command runs a command, which must succeed, and returns its output.
func command(p *harness.Pod, args ...string) (out string) {
	p.T.Helper()
	out, log, status := p.Begin(args...).Wait()
	require.Equal(p.T, 0, status, "%v: %s", args, log)
	return out
}
