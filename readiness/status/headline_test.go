package status_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness/status"
	"etcd-wrapper/recovery"
)

func TestHeadlineNamesEveryCondition(t *testing.T) {
	noSpace := status.Check{Name: "space", Status: "degraded", Reason: "writes are rejected: compact, delete keys or raise quota-backend-bytes"}
	noLeader := status.Check{Name: "quorum", Status: "failed", Reason: "the cluster has no leader"}
	behind := &facts.Backups{LagSeconds: 730, Problem: &facts.Problem{Message: "connection refused"}}
	for _, c := range []struct {
		d       status.Document
		summary string
	}{
		{status.Document{State: "Serving", Ready: true}, "Serving, ready"},
		{
			status.Document{State: "Serving", Ready: true, Checks: []status.Check{noSpace}, Backup: behind},
			"Serving, degraded: no space: writes are rejected: compact, delete keys or raise quota-backend-bytes; backups: 12 min behind: connection refused",
		},
		{
			status.Document{State: "Serving", Checks: []status.Check{noSpace, noLeader}},
			"Serving, not ready: quorum: the cluster has no leader; no space: writes are rejected: compact, delete keys or raise quota-backend-bytes",
		},
		{status.Document{State: "Wait", Checks: []status.Check{noLeader}}, "Wait, not ready"},
		{
			status.Document{State: "Wait", LastError: &status.Error{Message: "no usable response from the sidecar: connection refused; check that it is running"}},
			"Wait, not ready: no usable response from the sidecar",
		},
		{
			status.Document{State: "Wait", LastError: &status.Error{Message: "the initialization failed and is being retried; check the log of the backup-restore container"}},
			"Wait, not ready: the initialization failed and is being retried",
		},
		{
			status.Document{State: "StartEtcd", Certificates: []status.Certificate{
				{Name: "etcd_peer_ca", Path: "/ca.crt", NotAfter: time.Now().Add(-time.Hour)}, {Name: "etcd_peer", NotAfter: time.Now().Add(time.Hour)},
			}},
			"StartEtcd, not ready: certificate etcd_peer_ca: /ca.crt has expired: renew it in its Secret and restart this member",
		},
		{
			status.Document{State: "StartEtcd", Reason: "starting etcd; etcd is waiting for a leader; no connection to m1: check that it is running"},
			"StartEtcd, not ready: waiting for a leader; no connection to m1: check that it is running",
		},
		{status.Document{State: "StartEtcd", Reason: "starting etcd"}, "StartEtcd, not ready"},
		{
			status.Document{State: "StartEtcd", Certificates: []status.Certificate{
				{Name: "etcd_peer", Path: "/tls.crt", NotBefore: time.Now().Add(time.Minute), NotAfter: time.Now().Add(time.Hour)},
			}},
			"StartEtcd, not ready: certificate etcd_peer: /tls.crt is not valid yet: correct this machine's clock or reissue the certificate",
		},
		{
			status.Document{State: "Serving", Ready: true, ConfigWarnings: []string{
				"ignoring unknown key member-name-prefix", "ignoring unknown key quota-backend-byte (did you mean quota-backend-bytes?)",
			}},
			"Serving, degraded: configuration: ignoring unknown key quota-backend-byte (did you mean quota-backend-bytes?)",
		},
		{status.Document{State: "FetchConfig", LastError: &status.Error{Message: "no usable response", Ended: time.Now()}}, "FetchConfig, not ready"},
		{status.Document{State: "Serving", Ready: true, Backup: &facts.Backups{LagSeconds: 200}}, "Serving, ready"},
		{status.Document{State: "Serving", Ready: true, Backup: &facts.Backups{LagSeconds: 301}}, "Serving, degraded: backups: 5 min behind"},
		{
			status.Document{State: "Serving", Ready: true, Backup: &facts.Backups{Problem: &facts.Problem{Message: "expired backups cannot be deleted"}}},
			"Serving, degraded: backups: expired backups cannot be deleted",
		},
		{
			status.Document{State: "Serving", Ready: true, Backup: &facts.Backups{LastVerification: &facts.Verification{Reason: "the hash differs"}}},
			"Serving, degraded: backups: the last restore test failed: the hash differs",
		},
		{status.Document{State: "Serving", Ready: true, Member: state.Member{DBSize: 79, Quota: 100}}, "Serving, ready"},
		{
			status.Document{State: "Serving", Ready: true, Member: state.Member{DBSize: 80, Quota: 100}},
			"Serving, degraded: database: 80% of the quota is used; writes are rejected at 100%: compact, delete keys or raise quota-backend-bytes",
		},
		{
			status.Document{State: "Serving", Ready: true, Member: state.Member{DBSize: 135, Quota: 100}},
			"Serving, degraded: database: 135% of the quota is used; writes are rejected: compact, delete keys or raise quota-backend-bytes",
		},
		{
			status.Document{State: "Serving", Ready: true, Member: state.Member{DBSize: 100, Quota: 100}, Checks: []status.Check{noSpace}},
			"Serving, degraded: no space: writes are rejected: compact, delete keys or raise quota-backend-bytes",
		},
		{
			status.Document{State: "Serving", Ready: true, Leases: []state.Lease{{Name: "etcd-main-0", Problem: &state.LeaseProblem{Message: "forbidden"}}}},
			"Serving, degraded: lease etcd-main-0: forbidden",
		},
		{
			status.Document{State: "Terminating", Backup: &facts.Backups{RunningFullSnapshot: &facts.SnapshotProgress{SentBytes: 30 << 20, TotalBytes: 60 << 20}}},
			"Terminating, not ready: stop: waiting for a full snapshot, 30 of 60 MiB",
		},
		{
			status.Document{State: "Terminated", Backup: &facts.Backups{Revision: 3, LagSeconds: 2, Problem: &facts.Problem{Message: "connection refused"}}},
			"Terminated, not ready: stop: waiting for all acknowledged writes to be stored; backups: 2 s behind: connection refused",
		},
		{
			status.Document{State: "Wait", Recovery: &status.Recovery{State: "Build", RestoredBytes: 39 << 20, TotalBytes: 669 << 20}},
			"Recovery: restoring, 39 of 669 MiB, not ready",
		},
		{
			status.Document{State: "Wait", Recovery: &status.Recovery{State: "AskPeers", Reason: "waiting for a quorum: of 3 voting members, only m0 is running; start the others"}},
			"Recovery: querying the other members, not ready: waiting for a quorum: of 3 voting members, only m0 is running",
		},
		{
			status.Document{State: "Wait", Recovery: &status.Recovery{State: "Refused", Reason: "the data belongs to another cluster; check the store"}},
			"Recovery: refused, not ready: the data belongs to another cluster",
		},
		{status.Document{State: "Query", Recovery: &status.Recovery{State: "AskStore"}}, "Recovery: reading the store, not ready"},
		{status.Document{State: "Serving", Ready: true, Recovery: &status.Recovery{State: "Ready"}}, "Serving, ready"},
	} {
		health := status.HealthOK
		switch {
		case strings.Contains(c.summary, ", not ready"):
			health = status.HealthFailed
		case strings.Contains(c.summary, ", degraded: "):
			health = status.HealthDegraded
		}
		h := status.HeadlineOf(c.d)
		assert.Equal(t, c.summary, h.Summary)
		assert.Equal(t, health, h.Health, c.summary)
	}
}

func TestEveryStepOfRecoveryIsDescribed(t *testing.T) {
	for _, row := range recovery.Table {
		if row.To == recovery.Ready {
			continue
		}
		headline := status.HeadlineOf(status.Document{State: "Wait", Recovery: &status.Recovery{State: string(row.To)}})
		assert.Regexp(t, "^Recovery: ", headline.Phase, "add %s to RecoverySteps", row.To)
	}
}

func TestConditionsLinkToExistingHeadings(t *testing.T) {
	d := status.Document{
		State: "Serving", ConfigWarnings: []string{"x (did you mean y?)"}, Member: state.Member{DBSize: 9, Quota: 10},
		Leases: []state.Lease{{Problem: &state.LeaseProblem{}}}, Backup: &facts.Backups{Problem: &facts.Problem{Message: "a"}},
	}
	for _, check := range []string{"quorum", "not_learner", "no_corrupt_alarm", "client_listener", "volume", "data_version", "defragmentation", "certificates"} {
		d.Checks = append(d.Checks, status.Check{Name: check, Status: "failed", Reason: check})
	}
	conditions := status.HeadlineOf(d).Conditions
	d.Checks, d.State, d.Certificates = []status.Check{{Name: "space", Status: "degraded"}}, "StartEtcd", []status.Certificate{{}}
	conditions = append(conditions, status.HeadlineOf(d).Conditions...)
	d.State = "Serving"
	conditions = append(conditions, status.HeadlineOf(d).Conditions...)
	assert.Greater(t, len(conditions), 12)
	for _, c := range conditions {
		file, heading, _ := strings.Cut(c.Runbook, "#")
		text, err := os.ReadFile("../../" + file)
		require.NoError(t, err, c)
		var headings []string
		for _, line := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
			headings = append(headings, strings.ReplaceAll(regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(line[1]), ""), " ", "-"))
		}
		assert.Contains(t, headings, heading, "%s does not contain this heading", file)
		assert.Regexp(t, "^etcd-wrapper ", c.Command)
	}
}

func TestRejectedWritesAreAFailedCondition(t *testing.T) {
	for health, d := range map[string]status.Document{
		"failed":   {State: "Serving", Ready: true, Checks: []status.Check{{Name: "space", Status: "degraded"}}},
		"degraded": {State: "Serving", Ready: true, Checks: []status.Check{{Name: "volume", Status: "degraded"}}},
	} {
		h := status.HeadlineOf(d)
		assert.Equal(t, "degraded", h.Health, "a ready member is at most degraded")
		assert.Equal(t, health, h.Conditions[0].Health)
	}
}
