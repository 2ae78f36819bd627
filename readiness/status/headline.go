package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/facts"
)

// Headline is what everybody reads first: the status command, the page, the log and the termination message begin with it.
type Headline struct {
	Phase      string   `json:"phase"`                // the state, or how far recovery is while data come back
	Health     string   `json:"health"`               // ok, degraded or failed
	Conditions []string `json:"conditions,omitempty"` // what is wrong, in clauses; the first is the worst
	Summary    string   `json:"summary"`              // all of it as one line
}

// What Health is. A member that is not ready has failed, whatever it waits for.
const (
	HealthOK       = "ok"
	HealthDegraded = "degraded"
	HealthFailed   = "failed"
)

// HeadlineOf makes a document's headline. Only what has no concern at all is ok.
func HeadlineOf(d Document) Headline {
	h := Headline{Phase: phase(d), Conditions: concerns(d)}
	switch {
	case !d.Ready:
		h.Health, h.Summary = HealthFailed, h.Phase+", not ready"
		if why := cmp.Or(strings.Join(h.Conditions, "; "), standstill(d), trouble(d.LastError)); why != "" {
			h.Summary += ": " + why
		}
	case len(h.Conditions) > 0:
		h.Health, h.Summary = HealthDegraded, h.Phase+", ready, but: "+strings.Join(h.Conditions, "; ")
	default:
		h.Health, h.Summary = HealthOK, h.Phase+", ready"
	}
	return h
}

// Unreadiness says which checks fail, and why, in a clause. A reason that checks share is said once.
func Unreadiness(checks []Check) string { return strings.Join(found(checks, "failed"), "; ") }

// trouble is how the message of trouble begins that lasts; the cause follows in the reason of the state.
func trouble(is *Error) string {
	if is == nil || !is.Ended.IsZero() {
		return ""
	}
	return is.Message[:min(index(is.Message, ": "), index(is.Message, "; "))]
}

// standstill is why recovery does not go on by itself, without the way out, or what a start of etcd waits for.
func standstill(d Document) string {
	if r := d.Recovery; r != nil && phase(d) != d.State && (r.State == "AskPeers" || r.State == "AskStore" || r.State == "Refused") {
		return r.Reason[:index(r.Reason, "; ")]
	}
	if d.State == "StartEtcd" {
		_, doing, _ := strings.Cut(d.Reason, "; etcd ")
		return doing
	}
	return ""
}

// index is where a part of a text begins, or where the text ends.
func index(text, part string) int {
	if at := strings.Index(text, part); at >= 0 {
		return at
	}
	return len(text)
}

// RecoveryStep is a state of recovery that lasts, and what recovery does in it.
type RecoveryStep struct {
	State string `json:"state"`
	Doing string `json:"doing"`
}

// RecoverySteps are all of them, in the order in which they come, as far as they do.
var RecoverySteps = []RecoveryStep{
	{"Resume", "looking for a restore that was cut off"},
	{"Examine", "examining the volume"},
	{"Decide", "deciding where the data come from"},
	{"AskPeers", "asking the other members"},
	{"GiveWay", "letting another member go first"},
	{"Leave", "leaving the cluster"},
	{"Enter", "joining the cluster anew"},
	{"AskStore", "asking the store"},
	{"Adopt", "taking the store over"},
	{"Flush", "bringing the rest of the volume into the store"},
	{"MakeRoom", "making room"},
	{"Build", "restoring"},
	{"Prove", "checking what was restored"},
	{"Claim", "claiming the next generation"},
	{"SetAside", "moving the old data"},
	{"Install", "putting the data in place"},
}

// RecoveryDoes is what recovery does in a state; empty in one that does not last.
func RecoveryDoes(state string) string {
	for _, step := range RecoverySteps {
		if step.State == state {
			return step.Doing
		}
	}
	return ""
}

// BeforeResult are the lifecycle's states in which recovery works. They are lifecycle.BeforeResult, as a test of cmd/report says.
var BeforeResult = []string{"Query", "Trigger", "Wait"}

// phase is the lifecycle's state, unless that only waits for recovery.
func phase(d Document) string {
	r := d.Recovery
	if r == nil || !slices.Contains(BeforeResult, d.State) {
		return d.State
	}
	doing := RecoveryDoes(r.State)
	switch {
	case r.State == "Refused":
		return "Recovery: refused"
	case doing == "":
		return d.State
	case r.State == "Build" && r.TotalBytes > 0:
		return fmt.Sprintf("Recovery: %s, %s", doing, share(r.RestoredBytes, r.TotalBytes))
	default:
		return "Recovery: " + doing
	}
}

// share is a part of a number of bytes, in the unit of the whole.
func share(part, whole int64) string {
	unit, name := int64(1<<20), "MiB"
	if whole < unit {
		unit, name = 1<<10, "KiB"
	}
	return fmt.Sprintf("%d of %d %s", part/unit, whole/unit, name)
}

// concerns are the failed checks of a member that serves, then everything that is degraded.
func concerns(d Document) (all []string) {
	if d.State == "Serving" {
		all = append(found(d.Checks, "failed"), found(d.Checks, "degraded")...)
	}
	if d.State == "StartEtcd" { // in Serving there is a check of them
		all = append(all, invalid(d.Certificates, time.Now())...)
	}
	if d.State == "Serving" && nearlyFull(d.Member) && !slices.ContainsFunc(all, aboutSpace) {
		all = append(all, fmt.Sprintf("database: %d%% of its quota is used; at 100%% writes are refused (compact, delete or raise quota-backend-bytes)", 100*d.DBSize/d.Quota))
	}
	for _, oddity := range d.ConfigWarnings {
		if strings.Contains(oddity, "did you mean") { // others are meant for somebody else than etcd, as a rule
			all = append(all, "configuration: "+oddity)
		}
	}
	if d.State == "Terminating" && d.Backup != nil && d.Backup.RunningFullSnapshot != nil {
		all = append(all, "waits for a full snapshot"+sent(d.Backup.RunningFullSnapshot))
	}
	if d.State == "Terminated" && d.Backup != nil && d.Backup.Revision > 0 { // how much that is nobody knows before it is there
		all = append(all, "the stop waits until the store has everything that etcd took on")
	}
	if about := backups(d.Backup); about != "" {
		all = append(all, "backups: "+about)
	}
	for _, lease := range d.Leases {
		if lease.Problem != nil {
			all = append(all, fmt.Sprintf("lease %s: %s", lease.Name, lease.Problem.Message))
			break // the others fail for the same reason, as a rule
		}
	}
	return all
}

// invalid are the certificates that are not valid at now.
func invalid(files []Certificate, now time.Time) (all []string) {
	for _, file := range files {
		switch {
		case !file.NotAfter.After(now):
			all = append(all, fmt.Sprintf("certificate %s %s has expired: renew it in its Secret, and restart this member", file.Name, file.Path))
		case file.NotBefore.After(now):
			all = append(all, fmt.Sprintf("certificate %s %s is not valid yet: set this machine's clock, or have it issued again", file.Name, file.Path))
		}
	}
	return all
}

// found are the checks with a status, each with its reason.
func found(checks []Check, status string) (all []string) {
	said := map[string]bool{}
	for _, check := range checks {
		if check.Status == status && !said[check.Reason] {
			said[check.Reason] = true
			all = append(all, label(check.Name)+": "+check.Reason)
		}
	}
	return all
}

// label is what people call a check that is not ok.
func label(check string) string {
	if check == "space" {
		return "no space"
	}
	return check
}

func aboutSpace(concern string) bool { return strings.HasPrefix(concern, label("space")+": ") }

// nearlyFull reports whether a database has so much of its quota that somebody should act before writes are refused.
func nearlyFull(m Member) bool { return m.Quota > 0 && m.DBSize >= m.Quota/5*4 }

// behindTooLong is how far backups are behind before that is a concern without any other trouble; the alert waits as long.
const behindTooLong = 5 * time.Minute

// backups says what is wrong with them, in a clause; empty if nothing is.
func backups(b *facts.Backups) string {
	if b == nil {
		return ""
	}
	behind := time.Duration(b.LagSeconds * float64(time.Second))
	switch {
	case b.LastVerification != nil && !b.LastVerification.Passed:
		return "the last restore test failed: " + b.LastVerification.Reason
	case b.Problem != nil && behind < time.Second:
		return b.Problem.Message
	case b.Problem != nil:
		return lag(behind) + " behind: " + b.Problem.Message
	case behind > behindTooLong:
		return lag(behind) + " behind"
	default:
		return ""
	}
}

// lag is a duration in its largest unit.
func lag(d time.Duration) string {
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
	return ", " + share(run.SentBytes, run.TotalBytes)
}
