package endtoend_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/version"

	"etcd-wrapper/cmd/suites/harness"
)

// downgrade enables the tests that upgrade clusters from etcd 3.5 and downgrade them again.
var downgrade = flag.Bool("downgrade", false, "also run the tests that upgrade clusters from etcd 3.5 and downgrade them again")

// reportedVersions returns the versions that etcd reports, or the zero value if etcd does not respond.
func reportedVersions(p *harness.Pod) (v version.Versions) {
	response, err := http.Get(p.Endpoint() + "/version")
	if err != nil {
		return v
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err == nil {
		_ = json.Unmarshal(body, &v) // the caller retries if the versions are missing
	}
	return v
}

// awaitVersion waits until etcd reports the given version as both the cluster version and the storage version.
func awaitVersion(p *harness.Pod, wanted string) {
	p.T.Helper()
	harness.Eventually(p.T, "the cluster and storage versions are "+wanted, func() bool {
		now := reportedVersions(p)
		return now.Cluster == wanted && now.Storage == wanted
	})
}

func putMany(p *harness.Pod, from, to int) {
	p.T.Helper()
	client := p.Etcd()
	for i := from; i < to; i++ {
		_, err := client.Put(p.T.Context(), fmt.Sprint("key-", i), fmt.Sprint(i))
		require.NoError(p.T, err)
	}
}

// requireKeys requires that the pod serves the first count keys that putMany wrote.
func requireKeys(p *harness.Pod, count int) {
	p.T.Helper()
	client := p.Etcd()
	for i := range count {
		reply, err := client.Get(p.T.Context(), fmt.Sprint("key-", i))
		require.NoError(p.T, err)
		require.Len(p.T, reply.Kvs, 1, "key-%d of %d", i, count)
	}
}

// requireReadableByOldEtcd runs etcd 3.5 with the pod's data, and requires that it serves the first count keys.
func requireReadableByOldEtcd(p *harness.Pod, count int) {
	p.T.Helper()
	old := beginOldEtcd(p, "3.5")
	p.Get("key-0") // blocks until etcd is listening
	require.Equal(p.T, "3.5.27", reportedVersions(p).Server)
	requireKeys(p, count)
	old.Stop()
}

func TestEtcd3_5ReadsDataAfterStop(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(run *harness.Run, early []byte){
		"stopped": func(run *harness.Run, _ []byte) { run.Shutdown() },
		"killed":  func(run *harness.Run, _ []byte) { run.Kill() },
		"killed, with a database that is older than the log": func(run *harness.Run, early []byte) {
			run.Kill()
			require.NoError(run.T, os.WriteFile(run.Pod.DBPath(), early, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := harness.NewPod(t)
			run := p.StartReady()
			early, err := os.ReadFile(p.DBPath())
			require.NoError(t, err)
			putMany(p, 0, 100)
			end(run, early)
			requireReadableByOldEtcd(p, 100)
			run = p.StartReady()
			requireKeys(p, 100)
			run.Shutdown()
		})
	}
}

func TestDataVersion_isReported(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	run := p.StartReady()
	awaitVersion(p, "3.5.0")
	assert.Equal(t, "3.5.27+3.6.16", reportedVersions(p).Server)
	harness.Eventually(t, "the data version is kept", func() bool { return run.Status().DataVersion.Phase == "kept" })
	about := run.Status()
	assert.Equal(t, "3.6.16", about.Versions.Etcd, "the version of the embedded etcd, not the one that etcd reports to clients")
	assert.Equal(t, "3.5", about.DataVersion.Wanted)
	assert.True(t, about.DataVersion.Readable)
	_, checks := run.Request(http.MethodGet, "/readyz?verbose")
	assert.Contains(t, checks, "[+]data_version ok\n")
	_, metrics := run.Request(http.MethodGet, "/metrics")
	assert.Contains(t, metrics, `etcd_wrapper_data_version_readable{wanted="3.5"} 1`)
	out, _, _ := p.Begin("status", "-v").Wait()
	assert.Contains(t, out, "3.5 wanted, kept: the cluster is at version 3.5")
	assert.Empty(t, run.Log.Matching(harness.Line{"check": "data_version"}), "the check never failed")
	run.Shutdown()
}

func TestDataVersion_standaloneIsCurrent(t *testing.T) {
	t.Parallel()
	p := harness.NewStandalonePod(t, nil)
	run := p.StartReady()
	awaitVersion(p, "3.6.0")
	assert.Equal(t, "3.6.16", reportedVersions(p).Server)
	assert.Equal(t, "3.6", run.Status().DataVersion.Wanted)
	run.Shutdown()
}

func TestDataVersion_raisedAndLowered(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	run := p.StartReady()
	awaitVersion(p, "3.5.0")
	putMany(p, 0, 20)
	run.Shutdown()

	run = p.StartReady("--etcd-data-version=3.6")
	awaitVersion(p, "3.6.0")
	putMany(p, 20, 40)
	run.Shutdown()

	run = p.StartReady()
	run.AwaitLine(harness.Line{"check": "data_version", "to": "degraded"})
	harness.Eventually(t, "etcd 3.5 can read the data", func() bool { return run.Status().DataVersion.Readable })
	assert.Equal(t, "holding", run.Status().DataVersion.Phase)
	harness.Eventually(t, "the data_version check is ok again", func() bool { return dataVersionCheck(run) == "ok" })
	putMany(p, 40, 60)
	run.Kill()
	requireReadableByOldEtcd(p, 60)

	run = p.StartReady()
	harness.Eventually(t, "the data version is kept without a downgrade in progress", func() bool { return run.Status().DataVersion.Phase == "kept" })
	assert.Equal(t, "3.5.27+3.6.16", reportedVersions(p).Server)
	run.Shutdown()
}

func dataVersionCheck(run *harness.Run) string {
	for _, check := range run.Status().Checks {
		if check.Name == "data_version" {
			return check.Status
		}
	}
	return "missing"
}
