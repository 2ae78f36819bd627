package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/readiness/status"
)

// ofAKind is how many happenings of one kind are kept, so that what comes and goes leaves room for the rest.
const ofAKind = 10

// note compares a document with the one before it, and returns what has changed.
func (h *History) note(is status.Document, now time.Time) []status.TimelineEvent {
	found := slices.Concat(begun(h.before, is), readiness(h.before, is, now), founded(h.before, is, now), leader(h.before, is, now), backups(h.before, is), defragmented(h.before, is),
		checks(h.before, is, now), troubles(h.before, is, now), recovered(h.before, is))
	if len(found) == 0 {
		return nil
	}
	all := append(slices.Clone(h.Happened()), found...) // those who read it keep what they have
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

// begun is the start of the process, with how the last one ended.
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

// founded is what a lost volume looks like where nothing brings its data back.
func founded(was, is status.Document, now time.Time) happenings {
	if was.NewCluster || !is.NewCluster {
		return nil
	}
	return one(now, "start", status.HealthOK, "a new cluster begins: the data directory was empty")
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

// leader notes another leader or term, of which an election that the same member won has changed the latter only.
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

// backups are full snapshots and restore tests that came since the process started, and trouble with them.
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

// same tells whether a full snapshot is another one. The store keeps the second only.
func same(a, b facts.FullSnapshot) bool {
	return a.Revision == b.Revision && a.At.Truncate(time.Second).Equal(b.At.Truncate(time.Second))
}

// inThisRun is true of what was made since the process started, of which the store keeps the second.
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

// checks are etcd's alarms, and what else is found wrong with a member that serves.
func checks(was, is status.Document, now time.Time) (found happenings) {
	if is.State != "Serving" || was.State != "Serving" || unwatched(is.Checks) { // they say no more than that etcd does not run
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

// badness orders what a check says. One that has not been made yet is well.
func badness(health string) int {
	return slices.Index([]string{status.HealthDegraded, status.HealthFailed}, health)
}

// unwatched tells whether all checks fail for one reason, as they do until the first look at an etcd that has just begun to serve.
func unwatched(checks []status.Check) bool {
	differs := func(c status.Check) bool {
		return c.Status != status.HealthFailed || c.Reason != checks[0].Reason
	}
	return len(checks) > 1 && !slices.ContainsFunc(checks, differs)
}

// trouble is what lasts until it is over.
type trouble struct {
	health, message string
	since           time.Time
}

// troubles are the lifecycle's, the backups' and the leases'. The message may change while one lasts.
func troubles(was, is status.Document, now time.Time) (found happenings) {
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

func lasting(d status.Document) map[string]trouble {
	all := map[string]trouble{}
	if e := d.LastError; e != nil && e.Ended.IsZero() {
		all[e.Class] = trouble{status.HealthFailed, e.Message, e.Since}
	}
	if d.Backup != nil && d.Backup.Problem != nil {
		all["backups"] = trouble{status.HealthDegraded, d.Backup.Problem.Message, d.Backup.Problem.Since}
	}
	for _, lease := range d.Leases {
		if lease.Problem != nil {
			all["lease "+lease.Name] = trouble{status.HealthDegraded, lease.Problem.Message, lease.Problem.Since}
		}
	}
	return all
}

// recovered is how a recovery ended.
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
