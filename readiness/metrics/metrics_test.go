package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness/status"
)

// document returns a document that results in all metrics.
func document() status.Document {
	return status.Document{
		Member: state.Member{ClusterID: "c1", VolumeFree: 1, VolumeSize: 2, Peers: []state.Peer{{Active: true}, {}, {Active: true, Learner: true}}}, Standalone: true,
		State: "Wait", Since: time.Now().Add(-time.Minute), LastExit: "crash", Ready: true,
		Versions:     status.Versions{Wrapper: "1", Etcd: "2", Go: "3"},
		Checks:       []status.Check{{Name: "quorum", Status: "failed"}, {Name: "space", Status: "degraded"}},
		DataVersion:  &state.DataVersion{Wanted: "3.5", Readable: true},
		Recovery:     &status.Recovery{State: "Build"},
		Certificates: []status.Certificate{{Name: "etcd_server", NotAfter: time.Unix(4e9, 0)}},
		Maintenance: &state.Maintenance{
			Phase: "running", Completed: 3, Failed: 2, FreedBytes: 12, NoSpaceDisarmed: 1, Readers: make([]state.DatabaseReader, 1),
			LastDefragmentation: &state.Defragmentation{Seconds: 2.5},
		},
		Leases: []state.Lease{
			{Kind: "member", Renewed: time.Unix(5e9, 0)}, {Kind: "full_snapshot", Problem: &state.LeaseProblem{Message: "forbidden"}},
		},
		Backup: &facts.Backups{
			Cluster: "c2", Owner: "play/main", Role: "writer", Revision: 90, LagRevisions: 5, LagSeconds: 2.5, SpoolBytes: 7, SpoolLimit: 8, UploadedBytes: 9, StoredBytes: 10,
			Window:           &facts.Window{From: time.Unix(1e9, 0)},
			LastFullSnapshot: &facts.FullSnapshot{At: time.Unix(2e9, 0), Bytes: 11},
			LastVerification: &facts.Verification{At: time.Unix(3e9, 0), Passed: true},
			Problem:          &facts.Problem{NextRetry: time.Unix(4e9, 0)},
		},
		TransitionCounts: []status.TransitionCount{
			{From: "Query", Event: "replied", To: "Wait", Count: 4, Seconds: 1},
			{From: "Query", Event: "replied", Guard: "Failed", To: "Wait", Count: 3, Seconds: 0.5},
			{From: "Wait", Event: "elapsed", To: "Query", Count: 6, Seconds: 40},
		},
	}
}

func newMetrics() *Metrics {
	m := New()
	m.Request("status", time.Second, nil)
	m.Request("status", 15*time.Second, fmt.Errorf("no answer: %w", context.DeadlineExceeded))
	m.Request("trigger", time.Millisecond, errors.New("refused"))
	m.Initialization("full", Successful)
	m.Recovered("empty", "restored", 7)
	m.EtcdStarted(2 * time.Second)
	m.EtcdStopped(3*time.Second, time.Second)
	return m
}

func scrape(m *Metrics) string {
	w := httptest.NewRecorder()
	m.Handler(document, []string{"Query", "Wait"}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	text, _ := io.ReadAll(w.Body)
	return string(text)
}

func TestMetricsPassPromlint(t *testing.T) {
	problems, err := promlint.New(strings.NewReader(scrape(newMetrics()))).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestAllMetricsAreServed(t *testing.T) {
	text := scrape(newMetrics())
	for _, line := range []string{
		`info{cluster_id="c1",cluster_name="play/main",etcd_version="2",go_version="3",version="1"} 1`,
		`voters 2`, `voters_connected 1`,
		`state{state="Query"} 0`,
		`state{state="Wait"} 1`,
		`state_transitions_total{event="replied",from="Query",to="Wait"} 7`,
		`state_seconds_total{state="Query"} 1.5`,
		`state_seconds_total{state="Wait"} 100.`,
		`ready 1`,
		`readiness_check{check="quorum"} 0`,
		`readiness_check{check="space"} 1`,
		`readiness_check_degraded{check="quorum"} 0`,
		`readiness_check_degraded{check="space"} 1`,
		`last_exit{class="crash"} 1`,
		`last_exit{class="terminated"} 0`,
		`sidecar_request_duration_seconds_count{call="status",outcome="ok"} 1`,
		`sidecar_request_duration_seconds_count{call="status",outcome="timeout"} 1`,
		`sidecar_request_duration_seconds_sum{call="trigger",outcome="error"} 0.001`,
		`initializations_total{mode="full",verdict="successful"} 1`,
		`recovery_state{state="Build"} 1`, `recoveries_total{cause="empty",outcome="restored"} 1`, `recovery_lost_revisions 7`,
		`etcd_start_duration_seconds 2`,
		`etcd_stop_duration_seconds 3`,
		`etcd_drain_duration_seconds 1`,
		`data_version_readable{wanted="3.5"} 1`,
		`certificate_expiry_timestamp_seconds{certificate="etcd_server"} 4e+09`,
		`defragmentation_running 1`, `defragmentation_waiting 0`, `defragmentations_total{outcome="done"} 3`,
		`defragmentations_total{outcome="failed"} 2`, `defragmentation_last_duration_seconds 2.5`,
		`defragmentation_freed_bytes_total 12`, `nospace_disarmed_total 1`, `database_readers 1`,
		`backup_configured 1`, `backup_writer 1`, `backup_revision 90`, `backup_lag_revisions 5`, `backup_lag_seconds 2.5`,
		`backup_spool_bytes 7`, `backup_spool_limit_bytes 8`, `backup_uploaded_bytes_total 9`, `backup_stored_bytes 10`,
		`backup_window_start_timestamp_seconds 1e+09`, `backup_last_full_snapshot_timestamp_seconds 2e+09`, `backup_last_full_snapshot_bytes 11`,
		`backup_last_verification_timestamp_seconds 3e+09`, `backup_last_verification_passed 1`,
		`lease_renewed_timestamp_seconds{kind="member"} 5e+09`, `lease_problem{kind="member"} 0`, `lease_problem{kind="full_snapshot"} 1`,
		`cluster_info{cluster="c2",generation="0",owner="play/main"} 1`, `volume_free_bytes 1`, `volume_size_bytes 2`,
		`backup_problem 1`, `backup_next_retry_timestamp_seconds 4e+09`,
	} {
		require.Contains(t, text, "\netcd_wrapper_"+line)
	}
	require.NotContains(t, text, "\ngo_", "metrics of the global registry are not served")
	require.NotContains(t, text, `renewed_timestamp_seconds{kind="full_snapshot"}`, "the metric is absent for a lease that was never renewed")
}

// A metric about the backups must be absent if its value is unknown: a placeholder could trigger an alert or look
// healthy.
func TestUnknownValuesOfBackupsAreAbsent(t *testing.T) {
	scraped := func(b *facts.Backups) string {
		w := httptest.NewRecorder()
		newMetrics().Handler(func() status.Document { return status.Document{Standalone: true, Backup: b} }, nil).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		return w.Body.String()
	}
	without := scraped(nil)
	require.Contains(t, without, "\netcd_wrapper_backup_configured 0\n")
	require.NotContains(t, strings.ReplaceAll(without, "_backup_configured", ""), "_backup_", "without a store, there are no other backup metrics")
	sidecars := httptest.NewRecorder()
	newMetrics().Handler(func() status.Document { return status.Document{} }, nil).ServeHTTP(sidecars, httptest.NewRequest("GET", "/metrics", nil))
	require.NotContains(t, sidecars.Body.String(), "backup_configured", "the metric is absent if the sidecar makes the backups")
	text := scraped(&facts.Backups{Role: "waiting"})
	require.Contains(t, text, "etcd_wrapper_backup_problem 0")
	for _, unknown := range []string{"lag", "revision", "last_full_snapshot", "last_verification", "window", "next_retry", "stored"} {
		require.NotContains(t, text, "etcd_wrapper_backup_"+unknown)
	}
	text = scraped(&facts.Backups{Role: "standby", Revision: 90})
	require.Contains(t, text, "etcd_wrapper_backup_revision 90")
	require.NotContains(t, text, "etcd_wrapper_backup_lag", "only the writer knows the lag")
}
