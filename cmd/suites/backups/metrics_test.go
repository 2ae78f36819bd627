package backups_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/cmd/suites/harness"
)

// The running program must serve all documented metrics in Prometheus format, because alerts rely on them.
func TestBackupMetrics(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	run := m.StartReady()
	run.AwaitStored(m.write("key", "value"))
	awaitBackupStatus(run, "a full snapshot has passed its test restore", func(b facts.Backups) bool {
		return b.LastVerification != nil && b.Window != nil && b.LastFullSnapshot != nil
	})
	healthy := awaitMetrics(run, "problem 0", "lag_revisions 0", "lag_seconds 0", "writer 1", "last_verification_passed 1")
	rename(t, m.mount, m.mount+".away")
	m.write("key", "queued")
	awaitBackupStatus(run, "the status reports that the store is unreachable", func(b facts.Backups) bool { return hasProblem(b) && b.LagRevisions > 0 && b.SpoolBytes > 0 })
	failing := awaitMetrics(run, "problem 1")
	rename(t, m.mount+".away", m.mount)
	run.Shutdown()

	for _, page := range []string{healthy, failing} {
		problems, err := promlint.New(strings.NewReader(page)).Lint()
		require.NoError(t, err)
		assert.Empty(t, problems)
		for line := range strings.Lines(page) {
			name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE ")
			assert.True(t, strings.HasPrefix(name, "etcd_wrapper_"), line)
			assert.False(t, strings.HasPrefix(line, "etcd_wrapper_backup_") && strings.Contains(line, "{"), "the metric has no labels: %s", line)
		}
		for _, name := range []string{
			"lag_revisions", "lag_seconds", "revision", "last_full_snapshot_timestamp_seconds", "last_full_snapshot_bytes", "last_verification_timestamp_seconds",
			"stored_bytes", "uploaded_bytes_total", "spool_limit_bytes", "window_start_timestamp_seconds",
		} {
			assert.Contains(t, page, "\netcd_wrapper_backup_"+name+" ")
		}
	}
	assert.NotContains(t, healthy, "backup_next_retry")
	assert.Contains(t, failing, "\netcd_wrapper_backup_next_retry_timestamp_seconds ")
	assert.NotContains(t, failing, "\netcd_wrapper_backup_lag_revisions 0\n")
	assert.NotContains(t, failing, "\netcd_wrapper_backup_spool_bytes 0\n")
}

// awaitMetrics polls the metrics until they contain all the given lines, and returns the metrics.
func awaitMetrics(run *harness.Run, lines ...string) (page string) {
	run.T.Helper()
	harness.Eventually(run.T, "the metrics contain "+strings.Join(lines, ", "), func() bool {
		_, page = run.Request(http.MethodGet, "/metrics")
		return !slices.ContainsFunc(lines, func(line string) bool { return !strings.Contains(page, "\netcd_wrapper_backup_"+line+"\n") })
	})
	return page
}
