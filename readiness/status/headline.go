package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/member/state"
)

// A Headline summarizes a document. It is the first line of the status command's output, the page and the termination
// message.
type Headline struct {
	Phase      string      `json:"phase"`                // state, or step of the recovery in progress
	Health     string      `json:"health"`               // ok, degraded or failed
	Conditions []Condition `json:"conditions,omitempty"` // worst first
	Summary    string      `json:"summary"`              // phase, health and conditions in one line
}

// A Condition is a current problem.
type Condition struct {
	Subject string `json:"subject"` // name of a check, "backups", "database" and so on
	Health  string `json:"health"`  // degraded, or failed if clients or data are affected
	Message string `json:"message"` // description of the problem, without the subject
	Runbook string `json:"runbook"` // documentation page and heading
	Command string `json:"command"` // command to run first
}

// Health values, from best to worst. A member that is not ready counts as failed, even if it is only waiting.
const (
	HealthOK       = "ok"
	HealthDegraded = "degraded"
	HealthFailed   = "failed"
)

// HeadlineOf returns the headline for a document. Health is ok only if there are no conditions.
func HeadlineOf(d Document) Headline {
	h := Headline{Phase: phase(d), Conditions: conditions(d)}
	problems := make([]string, len(h.Conditions))
	for i, c := range h.Conditions {
		problems[i] = c.String()
	}
	reason := strings.Join(problems, "; ")
	switch {
	case !d.Ready:
		h.Health, h.Summary = HealthFailed, h.Phase+", not ready"
		reason = cmp.Or(reason, pending(d), currentError(d.LastError))
	case reason != "":
		h.Health, h.Summary = HealthDegraded, h.Phase+", degraded"
	default:
		h.Health, h.Summary = HealthOK, h.Phase+", ready"
	}
	if reason != "" {
		h.Summary += ": " + reason
	}
	return h
}

// String returns the subject and the message.
func (c Condition) String() string { return c.Subject + ": " + c.Message }

// NotReadyReason returns the failed checks with their reasons. Checks that fail for the same reason are grouped.
func NotReadyReason(checks []Check) string {
	var failed []string
	for _, c := range conditionsOf(checks, HealthFailed) {
		failed = append(failed, c.String())
	}
	return strings.Join(failed, "; ")
}

// currentError returns the first part of an unresolved error's message. It omits the cause, which is part of the
// reason for the state.
func currentError(e *Error) string {
	if e == nil || !e.Ended.IsZero() {
		return ""
	}
	message, _, _ := strings.Cut(e.Message, ": ")
	message, _, _ = strings.Cut(message, "; ")
	return message
}

// pending returns what recovery or the start of etcd is waiting for.
func pending(d Document) string {
	if r := d.Recovery; r != nil && phase(d) != d.State && slices.Contains([]string{"AskPeers", "AskStore", "Refused"}, r.State) {
		reason, _, _ := strings.Cut(r.Reason, "; ")
		return reason
	}
	if d.State == "StartEtcd" {
		_, progress, _ := strings.Cut(d.Reason, "; etcd is ")
		return progress
	}
	return ""
}

// A RecoveryStep is a recovery state in which a recovery can stay for a while.
type RecoveryStep struct {
	State string `json:"state"`
	Doing string `json:"doing"` // description for users
}

// RecoverySteps lists all steps in order. A recovery may skip some.
var RecoverySteps = []RecoveryStep{
	{"Resume", "checking for an interrupted restore"},
	{"Examine", "examining the volume"},
	{"Decide", "choosing the source of the data"},
	{"AskPeers", "querying the other members"},
	{"GiveWay", "preserving data before the other members replace it"},
	{"Leave", "leaving the cluster"},
	{"Enter", "joining the cluster"},
	{"AskStore", "reading the store"},
	{"Adopt", "adopting the store"},
	{"Flush", "uploading the remaining data on the volume"},
	{"MakeRoom", "freeing space on the volume"},
	{"Build", "restoring"},
	{"Prove", "verifying the restored data"},
	{"Claim", "claiming the next generation"},
	{"Preserve", "preserving the old data"},
	{"Install", "installing the data"},
}

// DescribeRecovery returns a description of a recovery state, or "" if the state takes no time.
func DescribeRecovery(state string) string {
	for _, step := range RecoverySteps {
		if step.State == state {
			return step.Doing
		}
	}
	return ""
}

// BeforeResult lists the lifecycle states during which recovery runs. A test in cmd/report compares BeforeResult with
// lifecycle.BeforeResult.
var BeforeResult = []string{"Query", "Trigger", "Wait"}

// phase returns the lifecycle state, or the recovery step if the lifecycle is waiting for recovery.
func phase(d Document) string {
	r := d.Recovery
	if r == nil || !slices.Contains(BeforeResult, d.State) {
		return d.State
	}
	doing := DescribeRecovery(r.State)
	switch {
	case r.State == "Refused":
		return "Recovery: refused"
	case doing == "":
		return d.State
	case r.State == "Build" && r.TotalBytes > 0:
		return fmt.Sprintf("Recovery: %s, %s", doing, formatProgress(r.RestoredBytes, r.TotalBytes))
	default:
		return "Recovery: " + doing
	}
}

// formatProgress formats part and total, both in bytes, in the unit that suits total.
func formatProgress(part, total int64) string {
	unit, name := int64(1<<20), "MiB"
	if total < unit {
		unit, name = 1<<10, "KiB"
	}
	return fmt.Sprintf("%d of %d %s", part/unit, total/unit, name)
}

// conditions returns all conditions, worst first.
func conditions(d Document) (all []Condition) {
	add := func(c ...Condition) { all = append(all, c...) }
	if d.State == "Serving" {
		add(conditionsOf(d.Checks, HealthFailed)...)
		add(conditionsOf(d.Checks, HealthDegraded)...)
		if aboutSpace := func(c Condition) bool { return c.Subject == noSpace }; isNearQuota(d.Member) && !slices.ContainsFunc(all, aboutSpace) {
			add(newCondition("database", HealthDegraded, quotaUsed(d.Member)))
		}
	}
	if d.State == "StartEtcd" { // while etcd is serving, a readiness check reports invalid certificates
		add(invalidCertificates(d.Certificates, time.Now())...)
	}
	for _, warning := range d.ConfigWarnings {
		if strings.Contains(warning, "did you mean") { // other unknown keys are usually meant for other programs
			add(newCondition("configuration", HealthDegraded, warning))
		}
	}
	if d.State == "Terminating" && d.Backup != nil && d.Backup.RunningFullSnapshot != nil {
		add(newCondition("stop", HealthDegraded, "waiting for a full snapshot"+sent(d.Backup.RunningFullSnapshot)))
	}
	if d.State == "Terminated" && d.Backup != nil && d.Backup.Revision > 0 { // the remaining writes are uploaded after the lifecycle has ended
		add(newCondition("stop", HealthDegraded, "waiting for all acknowledged writes to be stored"))
	}
	add(backupConditions(d.Backup)...)
	for _, lease := range d.Leases {
		if lease.Problem != nil {
			add(newCondition("lease "+lease.Name, HealthDegraded, lease.Problem.Message))
			break // other leases usually fail for the same reason
		}
	}
	return all
}

// invalidCertificates returns a condition for each certificate that is not valid at the time now.
func invalidCertificates(files []Certificate, now time.Time) (all []Condition) {
	for _, file := range files {
		subject := "certificate " + file.Name
		switch {
		case !file.NotAfter.After(now):
			all = append(all, newCondition(subject, HealthFailed, file.Path+" has expired: renew it in its Secret and restart this member"))
		case file.NotBefore.After(now):
			all = append(all, newCondition(subject, HealthFailed, file.Path+" is not valid yet: correct this machine's clock or reissue the certificate"))
		}
	}
	return all
}

// noSpace is the subject of the space check's condition.
const noSpace = "no space"

// conditionsOf returns a condition for each check that has the given status. If several checks have the same reason,
// only the first one gets a condition.
func conditionsOf(checks []Check, status string) (all []Condition) {
	listed := map[string]bool{}
	for _, check := range checks {
		if check.Status != status || listed[check.Reason] {
			continue
		}
		listed[check.Reason] = true
		subject, health := check.Name, status
		if check.Name == "space" {
			subject, health = noSpace, HealthFailed
		}
		all = append(all, newCondition(subject, health, check.Reason))
	}
	return all
}

// isNearQuota reports whether the database has reached 80% of its quota.
func isNearQuota(m state.Member) bool { return m.Quota > 0 && m.DBSize >= m.Quota/5*4 }

// quotaUsed describes how much of the quota has been used. Even at 100%, etcd does not raise the NOSPACE alarm until
// the next write.
func quotaUsed(m state.Member) string {
	consequence := "writes are rejected at 100%"
	if m.DBSize >= m.Quota {
		consequence = "writes are rejected"
	}
	return fmt.Sprintf("%d%% of the quota is used; %s: compact, delete keys or raise quota-backend-bytes", 100*m.DBSize/m.Quota, consequence)
}

// maxLag is the backup lag above which the backups are degraded even without an error. The alert uses the same limit.
const maxLag = 5 * time.Minute

// backupConditions returns the condition for the backups, if any: a failed restore test, an error or a long lag.
func backupConditions(b *facts.Backups) []Condition {
	if b == nil {
		return nil
	}
	lag := time.Duration(b.LagSeconds * float64(time.Second))
	switch {
	case b.LastVerification != nil && !b.LastVerification.Passed:
		return []Condition{newCondition("backups", HealthFailed, "the last restore test failed: "+b.LastVerification.Reason)}
	case b.Problem != nil && lag < time.Second:
		return []Condition{newCondition("backups", HealthDegraded, b.Problem.Message)}
	case b.Problem != nil:
		return []Condition{newCondition("backups", HealthDegraded, formatDuration(lag)+" behind: "+b.Problem.Message)}
	case lag > maxLag:
		return []Condition{newCondition("backups", HealthDegraded, formatDuration(lag)+" behind")}
	default:
		return nil
	}
}

// formatDuration formats a duration in seconds, minutes or hours.
func formatDuration(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	default:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
}

func sent(run *facts.SnapshotProgress) string {
	if run.TotalBytes == 0 {
		return ""
	}
	return ", " + formatProgress(run.SentBytes, run.TotalBytes)
}

// guides maps the first word of a condition's subject to a documentation section and a command.
var guides = map[string]struct{ runbook, command string }{
	"quorum":           {"docs/runbook.md#replace-a-member", "etcd-wrapper status --cluster"},
	"not_learner":      {"docs/maintenance.md#cluster-membership", "etcd-wrapper status --cluster"},
	"no_corrupt_alarm": {"docs/runbook.md#replace-a-member", "etcd-wrapper etcdctl endpoint hashkv --cluster"},
	"no":               {"docs/maintenance.md#the-nospace-alarm", "etcd-wrapper defrag"},
	"database":         {"docs/maintenance.md#the-nospace-alarm", "etcd-wrapper defrag"},
	"backups":          {"docs/backup-problems.md#backup-problems", "etcd-wrapper backup list"},
	"lease":            {"docs/operations.md#leases", "etcd-wrapper status"},
	"certificate":      {"docs/runbook.md#alerts", "etcd-wrapper status"},
	"certificates":     {"docs/runbook.md#alerts", "etcd-wrapper status"},
}

// newCondition returns a condition with the guide for its subject.
func newCondition(subject, health, message string) Condition {
	topic, _, _ := strings.Cut(subject, " ")
	guide := guides[topic]
	return Condition{subject, health, message, cmp.Or(guide.runbook, "docs/runbook.md#alerts"), cmp.Or(guide.command, "etcd-wrapper status")}
}
