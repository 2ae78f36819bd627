// Package rules tests the alert rules in deploy with the Prometheus parser and engine. The tests check that each
// alert fires when it should, and only then.
package rules

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const folder = "../../deploy/chart/files/"

// pod is the beginning of a selector that contains a member's labels.
const pod = `{namespace="a", etcd="etcd-main", pod="etcd-main-0"`

// series contains the input series for each alert in promtool's notation, with one sample per minute. The rules are
// evaluated after ten days.
var series = map[string]struct{ fires, firesToo, quiet string }{
	"EtcdNoQuorum": {
		fires: `etcd_wrapper_readiness_check` + pod + `,check="quorum"} 0`,
		firesToo: `up` + pod + `,endpoint="wrapper"} 0
			up` + pod + `,endpoint="client"} 0`,
		quiet: `up` + pod + `,endpoint="wrapper"} 1
			up{namespace="a", etcd="etcd-main", pod="etcd-main-1", endpoint="wrapper"} 0
			etcd_wrapper_readiness_check` + pod + `,check="quorum"} 1
			etcd_wrapper_readiness_check{namespace="a", etcd="etcd-main", pod="etcd-main-1", check="quorum"} 0`,
	},
	"EtcdMemberNotReady": {
		fires: `etcd_wrapper_ready` + pod + `} 0`,
		firesToo: `up` + pod + `,endpoint="wrapper"} 0
			etcd_wrapper_ready{namespace="a", etcd="etcd-main", pod="etcd-main-1"} 1`,
		quiet: `etcd_wrapper_ready` + pod + `} 1
			up` + pod + `,endpoint="wrapper"} 1
			up` + pod + `,endpoint="client"} 0`,
	},
	"EtcdMemberMissing": {
		fires: `etcd_wrapper_voters` + pod + `} 3
			etcd_wrapper_voters_connected` + pod + `} 2`,
		quiet: `etcd_wrapper_voters` + pod + `} 3
			etcd_wrapper_voters_connected` + pod + `} 3`,
	},
	"EtcdCorrupt": {
		fires: `etcd_wrapper_readiness_check` + pod + `,check="no_corrupt_alarm"} 0
			etcd_wrapper_readiness_check{namespace="a", etcd="etcd-main", pod="etcd-main-1", check="no_corrupt_alarm"} 1`,
		quiet: `etcd_wrapper_readiness_check` + pod + `,check="no_corrupt_alarm"} 1
			etcd_wrapper_readiness_check` + pod + `,check="quorum"} 0`,
	},
	"EtcdRestored": {
		fires: `etcd_wrapper_recoveries_total` + pod + `,cause="empty",outcome="restored"} 1
			etcd_wrapper_state_seconds_total` + pod + `,state="Serving"} 600`,
		quiet: `etcd_wrapper_recoveries_total` + pod + `,cause="empty",outcome="restored"} 1
			etcd_wrapper_recoveries_total{namespace="a", etcd="etcd-main", pod="etcd-main-1", cause="valid", outcome="refused"} 1
			etcd_wrapper_state_seconds_total{namespace="a", etcd="etcd-main", pod="etcd-main-1", state="Serving"} 600
			etcd_wrapper_state_seconds_total` + pod + `,state="Serving"} 90000`,
	},
	"EtcdBackupNotConfigured": {
		fires: `etcd_wrapper_backup_configured` + pod + `} 0`,
		quiet: `etcd_wrapper_backup_configured` + pod + `} 1`,
	},
	"EtcdSpaceRunsOut": {
		fires: `etcd_mvcc_db_total_size_in_bytes` + pod + `} 95
			etcd_server_quota_backend_bytes` + pod + `} 100`,
		quiet: `etcd_mvcc_db_total_size_in_bytes` + pod + `} 80
			etcd_server_quota_backend_bytes` + pod + `} 100`,
	},
	"EtcdVolumeRunsOut": {
		fires: `etcd_wrapper_volume_free_bytes` + pod + `} 9
			etcd_wrapper_volume_size_bytes` + pod + `} 100`,
		quiet: `etcd_wrapper_volume_free_bytes` + pod + `} 11
			etcd_wrapper_volume_size_bytes` + pod + `} 100`,
	},
	"EtcdCertificateEnds": {
		fires: `etcd_wrapper_certificate_expiry_timestamp_seconds` + pod + `,certificate="etcd_server"} 1200000`,
		quiet: `etcd_wrapper_certificate_expiry_timestamp_seconds` + pod + `,certificate="etcd_server"} 9000000`,
	},
	"EtcdCertificateRefused": {
		fires: `etcd_wrapper_readiness_check_degraded` + pod + `,check="certificates"} 1`,
		quiet: `etcd_wrapper_readiness_check_degraded` + pod + `,check="certificates"} 0
			etcd_wrapper_readiness_check_degraded` + pod + `,check="space"} 1`,
	},
	"EtcdRestartedWithFull": {
		fires: `etcd_wrapper_initializations_total` + pod + `,mode="full",verdict="Successful"} 1
			etcd_wrapper_state_seconds_total` + pod + `,state="Serving"} 600
			etcd_wrapper_last_exit` + pod + `,class="killed"} 1`,
		quiet: `etcd_wrapper_initializations_total` + pod + `,mode="full",verdict="Successful"} 1
			etcd_wrapper_state_seconds_total` + pod + `,state="Serving"} 600
			etcd_wrapper_last_exit` + pod + `,class="none"} 1`,
	},
	"EtcdDataNotReadable": {
		fires: `etcd_wrapper_data_version_readable` + pod + `,wanted="3.5"} 0`,
		quiet: `etcd_wrapper_data_version_readable` + pod + `,wanted="3.5"} 1`,
	},
	"EtcdRevisionsLost": {
		fires: `etcd_wrapper_recovery_lost_revisions` + pod + `} 3`,
		quiet: `etcd_wrapper_recovery_lost_revisions` + pod + `} 0`,
	},
	"EtcdBackupBehind": {
		fires: `etcd_wrapper_backup_lag_seconds` + pod + `} 400
			etcd_wrapper_backup_problem{namespace="a", etcd="etcd-main", pod="etcd-main-1"} 0`,
		firesToo: `etcd_wrapper_backup_problem` + pod + `} 1
			etcd_wrapper_backup_problem{namespace="a", etcd="etcd-main", pod="etcd-main-1"} 0`,
		quiet: `etcd_wrapper_backup_lag_seconds` + pod + `} 400
			etcd_wrapper_backup_lag_seconds{namespace="a", etcd="etcd-main", pod="etcd-main-1"} 1
			etcd_wrapper_backup_problem` + pod + `} 1`,
	},
	"EtcdBackupTrouble": {
		fires: `etcd_wrapper_backup_problem` + pod + `} 0
			etcd_wrapper_backup_problem{namespace="a", etcd="etcd-main", pod="etcd-main-1"} 1`,
		quiet: `etcd_wrapper_backup_problem` + pod + `} 0`,
	},
	"EtcdBackupTooOld": {
		fires: `etcd_wrapper_backup_last_full_snapshot_timestamp_seconds` + pod + `} 700000`,
		quiet: `etcd_wrapper_backup_last_full_snapshot_timestamp_seconds` + pod + `} 860000`,
	},
	"EtcdBackupCopyFailed": {
		fires: `kube_cronjob_status_last_schedule_time{namespace="a", cronjob="etcd-main-copy"} 2000
			kube_cronjob_status_last_successful_time{namespace="a", cronjob="etcd-main-copy"} 1000
			kube_cronjob_status_active{namespace="a", cronjob="etcd-main-copy"} 0
			etcd_wrapper_backup_configured` + pod + `} 1`,
		firesToo: `kube_cronjob_status_last_schedule_time{namespace="a", cronjob="etcd-main-copy"} 2000
			etcd_wrapper_backup_configured` + pod + `} 1`,
		quiet: `kube_cronjob_status_last_schedule_time{namespace="a", cronjob="etcd-main-copy"} 2000
			kube_cronjob_status_last_successful_time{namespace="a", cronjob="etcd-main-copy"} 2100
			kube_cronjob_status_last_schedule_time{namespace="a", cronjob="photos-copy"} 2000
			kube_cronjob_status_last_schedule_time{namespace="b", cronjob="etcd-main-copy"} 2000
			etcd_wrapper_backup_configured` + pod + `} 1`,
	},
	"EtcdBackupNotVerified": {
		fires: `etcd_wrapper_backup_last_full_snapshot_timestamp_seconds` + pod + `} 860000`,
		firesToo: `etcd_wrapper_backup_last_full_snapshot_timestamp_seconds` + pod + `} 860000
			etcd_wrapper_backup_last_verification_timestamp_seconds` + pod + `} 600000`,
		quiet: `etcd_wrapper_backup_last_full_snapshot_timestamp_seconds` + pod + `} 860000
			etcd_wrapper_backup_last_verification_timestamp_seconds` + pod + `} 800000`,
	},
	"EtcdBackupBroken": {
		fires: `etcd_wrapper_backup_last_verification_passed` + pod + `} 0`,
		quiet: `etcd_wrapper_backup_last_verification_passed` + pod + `} 1`,
	},
	"EtcdBackupSpoolFills": {
		fires: `etcd_wrapper_backup_spool_bytes` + pod + `} 90
			etcd_wrapper_backup_spool_limit_bytes` + pod + `} 100`,
		quiet: `etcd_wrapper_backup_spool_bytes` + pod + `} 10
			etcd_wrapper_backup_spool_limit_bytes` + pod + `} 100`,
	},
}

func rules(t *testing.T) (all []rulefmt.Rule) {
	t.Helper()
	content, err := os.ReadFile(folder + "rules.yaml")
	require.NoError(t, err)
	groups, errs := rulefmt.Parse(content, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	require.Empty(t, errs)
	for _, group := range groups.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

func TestRules_fireOnlyWhenTheyShould(t *testing.T) {
	found := rules(t)
	require.Len(t, found, len(series))
	for _, rule := range found {
		t.Run(rule.Alert, func(t *testing.T) {
			test, ok := series[rule.Alert]
			require.True(t, ok)
			assert.NotEmpty(t, answer(t, test.fires, rule.Expr))
			assert.NotEmpty(t, answer(t, cmp.Or(test.firesToo, test.fires), rule.Expr))
			assert.Empty(t, answer(t, test.quiet, rule.Expr))
			assert.Empty(t, answer(t, "up{namespace=\"a\"} 1", rule.Expr), "an alert must not fire without its input series")
			assert.NotEmpty(t, rule.Annotations["summary"])
			assert.NotEmpty(t, rule.Annotations["description"])
			assert.Equal(t, "RUNBOOK", rule.Annotations["runbook_url"], "the chart must replace RUNBOOK with the runbook's URL")
			assert.Contains(t, []string{"critical", "warning"}, rule.Labels["severity"])
		})
	}
}

// answer evaluates an expression ten days after the Unix epoch. All series have constant values.
func answer(t *testing.T, load, expression string) []string {
	t.Helper()
	const days10 = 864000
	text := "load 1m\n"
	for _, line := range regexp.MustCompile(`\n\s*`).Split(load, -1) {
		text += "  " + line[:len(line)-len(last(line))] + last(line) + "x14400\n"
	}
	storage := promqltest.LoadedStorage(t, text)
	defer storage.Close()
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	query, err := engine.NewInstantQuery(t.Context(), storage, nil, expression, time.Unix(days10, 0))
	require.NoError(t, err)
	defer query.Close()
	vector, err := query.Exec(t.Context()).Vector()
	require.NoError(t, err)
	var found []string
	for _, sample := range vector {
		found = append(found, sample.Metric.String())
	}
	return found
}

func last(line string) string { return regexp.MustCompile(`\d+$`).FindString(line) }

// As Grafana does, the test replaces variables with values, because Prometheus cannot parse variables.
func TestDashboard_expressions(t *testing.T) {
	content, err := os.ReadFile(folder + "dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Annotations struct {
			List []struct{ Name, Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(content, &dashboard))
	require.NotEmpty(t, dashboard.Panels)
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			_, err := parser.NewParser(parser.Options{}).ParseExpr(target.Expr)
			assert.NoError(t, err, panel.Title)
		}
	}
	require.NotEmpty(t, dashboard.Annotations.List)
	for _, mark := range dashboard.Annotations.List {
		_, err := parser.NewParser(parser.Options{}).ParseExpr(mark.Expr)
		assert.NoError(t, err, mark.Name)
	}
}
