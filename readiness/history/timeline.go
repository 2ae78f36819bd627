package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/readiness/status"
)

// ofAKind is the number of events of a kind that are kept, so that a flapping condition leaves room for others.
const ofAKind = 10

// note adds the events between the previous document and this one, and returns them.
func (h *History) note(is status.Document, now time.Time) []status.TimelineEvent {
	found := slices.Concat(begun(h.before, is), readiness(h.before, is, now), founded(h.before, is, now), leader(h.before, is, now), backups(h.before, is), defragmented(h.before, is),
		checks(h.before, is, now), problems(h.before, is, now), recovered(h.before, is))
	if len(found) == 0 {
		return nil
	}
	all := append(slices.Clone(h.Happened()), found...) // readers keep the old slice
	slices.SortStableFunc(all, func(a, b status.TimelineEvent) int { return a.At.Compare(b.At) })
	kept := map[string]int{}
	for i := len(all) - 1; i >= 0; i-- {
		if kept[all[i].Kind]++; kept[all[i].Kind] > ofAKind {
			all = slices.Delete(all, i, i+1)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.happened = all
	return found
}

type happenings = []status.TimelineEvent

func one(at time.Time, kind, health, what string) happenings {
	return happenings{{At: at, Kind: kind, Health: health, Message: what}}
}

// begun returns the start of the process, with the end of the last one.
func begun(was, is status.Document) happenings {
	if !was.Started.IsZero() {
		return nil
	}
	health, last := status.HealthOK, ""
	switch is.LastExit {
	case status.ExitCrash, status.ExitFailed, status.ExitKilled:
		health, last = status.HealthDegraded, "; the last run: "+is.LastExit
		if is.LastExitReason != "" {
			last += ": " + is.LastExitReason
		}
	}
	return one(is.Started, "start", health, "the process started"+last)
}

// founded returns the creation of a cluster. Without recovery, a lost volume looks like that.
func founded(was, is status.Document, now time.Time) happenings {
	if was.NewCluster || !is.NewCluster {
		return nil
	}
	return one(now, "start", status.HealthOK, "new cluster: the data directory was empty")
}

func readiness(was, is status.Document, now time.Time) happenings {
	switch at := cmp.Or(is.ReadySince, now); {
	case is.Ready == was.Ready:
		return nil
	case is.Ready:
		return one(at, "readiness", status.HealthOK, "ready")
	default:
		return one(at, "readiness", status.HealthFailed, is.Headline.Summary)
	}
}

// leader returns a change of the leader or the term. If the leader wins an election again, only the term changes.
func leader(was, is status.Document, now time.Time) happenings {
	if is.ClusterID == "" || is.Leader == was.Leader && is.Term == was.Term || is.Leader == "" && was.Leader == "" {
		return nil
	}
	if is.Leader == "" {
		return one(now, "leader", status.HealthFailed, "no leader is known")
	}
	return one(now, "leader", status.HealthOK, fmt.Sprintf("%s leads, term %d", called(is, is.Leader), is.Term))
}

func called(in status.Document, id string) string {
	for _, peer := range in.Peers {
		if peer.ID == id {
			return cmp.Or(peer.Name, id)
		}
	}
	return id
}

// backups returns the new full snapshots and restore tests of this run.
func backups(was, is status.Document) (found happenings) {
	if is.Backup == nil {
		return nil
	}
	before := was.Backup
	if full := is.Backup.LastFullSnapshot; full != nil && inThisRun(is, full.At) && (before == nil || before.LastFullSnapshot == nil || !same(*before.LastFullSnapshot, *full)) {
		found = append(found, one(later(is.Started, full.At), "full_snapshot", status.HealthOK, fmt.Sprintf("full snapshot of revision %d: %s", full.Revision, full.Reason))...)
	}
	test := is.Backup.LastVerification
	if test == nil || !inThisRun(is, test.At) || before != nil && before.LastVerification != nil && *before.LastVerification == *test {
		return found
	}
	at := later(is.Started, test.At)
	if !test.Passed {
		return append(found, one(at, "restore_test", status.HealthDegraded, fmt.Sprintf("restore test of revision %d FAILED: %s", test.Revision, test.Reason))...)
	}
	return append(found, one(at, "restore_test", status.HealthOK, fmt.Sprintf("restore test of revision %d passed", test.Revision))...)
}

// same reports whether two full snapshots are the same. The store keeps times in seconds.
func same(a, b facts.FullSnapshot) bool {
	return a.Revision == b.Revision && a.At.Truncate(time.Second).Equal(b.At.Truncate(time.Second))
}

// inThisRun reports whether a time, in seconds, is not before the start of the process.
func inThisRun(is status.Document, at time.Time) bool {
	return !at.Before(is.Started.Truncate(time.Second))
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func defragmented(was, is status.Document) happenings {
	if is.Maintenance == nil || is.Maintenance.LastDefragmentation == nil || was.Maintenance != nil && was.Maintenance.LastDefragmentation != nil && *was.Maintenance.LastDefragmentation == *is.Maintenance.LastDefragmentation {
		return nil
	}
	last := is.Maintenance.LastDefragmentation
	if last.Error != "" {
		return one(last.At, "defragmentation", status.HealthDegraded, "not defragmented, by "+last.Origin+": "+last.Error)
	}
	return one(last.At, "defragmentation", status.HealthOK, fmt.Sprintf("defragmented by %s in %.1f s", last.Origin, last.Seconds))
}

// checks returns alarms of etcd, and checks that failed or recovered while the member serves.
func checks(was, is status.Document, now time.Time) (found happenings) {
	if is.State != "Serving" || was.State != "Serving" || unwatched(is.Checks) { // they only say that etcd is not running
		return nil
	}
	before := map[string]string{}
	if !unwatched(was.Checks) {
		for _, check := range was.Checks {
			before[check.Name] = check.Status
		}
	}
	for _, check := range is.Checks {
		worse := badness(check.Status) - badness(before[check.Name])
		kind, name := "problem", check.Name
		if alarm := map[string]string{"no_corrupt_alarm": "alarm CORRUPT", "space": "alarm NOSPACE"}[check.Name]; alarm != "" {
			kind, name = "alarm", alarm
		}
		switch {
		case worse > 0:
			found = append(found, one(now, kind, check.Status, name+": "+check.Reason)...)
		case worse < 0 && check.Status == status.HealthOK:
			found = append(found, one(now, kind, status.HealthOK, name+": resolved")...)
		}
	}
	return found
}

// badness orders the statuses of checks. An unknown one counts as ok.
func badness(health string) int {
	return slices.Index([]string{status.HealthDegraded, status.HealthFailed}, health)
}

// unwatched reports whether all checks fail for the same reason, as they do until the first check of an etcd that has just started.
func unwatched(checks []status.Check) bool {
	differs := func(c status.Check) bool {
		return c.Status != status.HealthFailed || c.Reason != checks[0].Reason
	}
	return len(checks) > 1 && !slices.ContainsFunc(checks, differs)
}

// problem is an error that lasts.
type problem struct {
	health, message string
	since           time.Time
}

// problems returns the errors of the lifecycle, the backups and the leases that started or ended. The message may change meanwhile.
func problems(was, is status.Document, now time.Time) (found happenings) {
	before, after := lasting(was), lasting(is)
	for name, begun := range after {
		if _, lasts := before[name]; !lasts {
			found = append(found, one(begun.since, "problem", begun.health, name+": "+begun.message)...)
		}
	}
	for name := range before {
		if _, lasts := after[name]; !lasts {
			found = append(found, one(now, "problem", status.HealthOK, name+": resolved")...)
		}
	}
	slices.SortFunc(found, func(a, b status.TimelineEvent) int { return cmp.Compare(a.Message, b.Message) })
	return found
}

func lasting(d status.Document) map[string]problem {
	all := map[string]problem{}
	if e := d.LastError; e != nil && e.Ended.IsZero() {
		all[e.Class] = problem{status.HealthFailed, e.Message, e.Since}
	}
	if d.Backup != nil && d.Backup.Problem != nil {
		all["backups"] = problem{status.HealthDegraded, d.Backup.Problem.Message, d.Backup.Problem.Since}
	}
	for _, lease := range d.Leases {
		if lease.Problem != nil {
			all["lease "+lease.Name] = problem{status.HealthDegraded, lease.Problem.Message, lease.Problem.Since}
		}
	}
	return all
}

// recovered returns the end of a recovery.
func recovered(was, is status.Document) happenings {
	switch r := is.Recovery; {
	case r == nil || was.Recovery != nil && was.Recovery.State == r.State:
		return nil
	case r.State == "Ready" && r.Loss != "":
		return one(r.Since, "restore", status.HealthOK, r.Loss)
	case r.State == "Ready":
		return one(r.Since, "recovery", status.HealthOK, r.Reason)
	case r.State == "Refused":
		return one(r.Since, "recovery", status.HealthFailed, "refused: "+r.Reason)
	}
	return nil
}
