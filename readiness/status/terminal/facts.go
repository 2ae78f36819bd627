package terminal

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/readiness/status"
)

// fact is something to know about a run, with its name. A name that is empty goes on with the fact before.
type fact struct{ name, is string }

// facts are what there is to know about a run, at now.
func facts(d status.Document, now time.Time) []fact {
	return slices.Concat(
		standing(d, now), trouble(d, now), validated(d), identity(d), recovered(d.Recovery), upkeep(d.Upkeep, now),
		backup(d.Backup, now), renewed(d.Leases, now), expiring(d.Certificates, now), configured(d.ConfigOddities), process(d, now),
	)
}

// standing says how long it has been as it is, and when that changes.
func standing(d status.Document, now time.Time) []fact {
	began := d.PhaseSince
	if began.IsZero() { // a wrapper of an older version
		began = d.Since
	}
	all := []fact{{"since", ago(began, now)}}
	if !d.ReadySince.IsZero() {
		all = append(all, fact{readyWord(d.Ready) + " since", ago(d.ReadySince, now)})
	}
	if d.Attempt > 1 {
		all = append(all, fact{"attempt", fmt.Sprint(d.Attempt)})
	}
	if !d.NextRetry.IsZero() {
		all = append(all, fact{"next step", "within " + Rounded(max(0, d.NextRetry.Sub(now))).String()})
	}
	return all
}

// validated says what was asked for, and what the sidecar said.
func validated(d status.Document) (all []fact) {
	if v := d.Validation; v != nil {
		all = append(all, fact{"validation", v.Mode + ": " + v.Reason})
	}
	if d.SidecarWord != "" {
		all = append(all, fact{"sidecar said", d.SidecarWord})
	}
	return all
}

func expiring(files []status.Certificate, now time.Time) (all []fact) {
	for _, file := range files {
		if file.ExpiresSoon(now) {
			all = append(all, fact{"certificate", fmt.Sprintf("%s %s: %s", file.Name, validity(file.Expires, now), file.Path)})
		}
	}
	return all
}

// configured is what is odd about etcd's configuration.
func configured(oddities []string) (all []fact) {
	for _, oddity := range oddities {
		all = append(all, fact{"configuration", oddity})
	}
	return all
}

// process is about this one, and how the one before it ended.
func process(d status.Document, now time.Time) []fact {
	lastExit := d.LastExit
	if d.LastExitReason != "" {
		lastExit += ": " + d.LastExitReason
	}
	return []fact{
		{"process started", ago(d.Started, now)},
		{"last exit", lastExit},
		{"versions", fmt.Sprintf("wrapper %s, etcd %s, %s", d.Versions.Wrapper, d.Versions.Etcd, d.Versions.Go)},
	}
}

// trouble says since when it lasts and how often it was met, or that it is over. What the reason of the state says already
// is not repeated.
func trouble(d status.Document, now time.Time) []fact {
	e := d.LastError
	if e == nil {
		return nil
	}
	name, is := "trouble", e.Class
	if !e.Ended.IsZero() {
		name = "last trouble"
	}
	if !strings.Contains(d.Reason, e.Message) {
		is += ": " + e.Message
	}
	met := ago(e.At, now)
	if e.Times > 1 {
		met = fmt.Sprintf("%d times since %s", e.Times, ago(e.Since, now))
	}
	if !e.Ended.IsZero() {
		met += ", over since " + ago(e.Ended, now)
	}
	return []fact{{name, is}, {"", met}}
}

func readyWord(ready bool) string {
	if ready {
		return "ready"
	}
	return "not ready"
}

// identity is who the member is, in which cluster, and how large its database is.
func identity(d status.Document) (all []fact) {
	add := func(name, is string) {
		if is != "" {
			all = append(all, fact{name, is})
		}
	}
	add("member", both(d.Name, d.MemberID))
	add("cluster", d.ClusterID)
	add("leader", leader(d))
	if d.DBSize > 0 {
		add("database", database(d.Member))
	}
	if v := d.DataVersion; v != nil {
		add("data version", fmt.Sprintf("%s wanted, %s: %s", v.Wanted, v.Phase, v.Reason))
	}
	for i, peer := range d.Peers {
		name := "peers"
		if i > 0 {
			name = ""
		}
		all = append(all, fact{name, peerLine(peer)})
	}
	return all
}

// both puts an ID behind the name that people know, if there is one.
func both(name, id string) string {
	if name == "" || id == "" {
		return name + id
	}
	return name + " (" + id + ")"
}

func leader(d status.Document) string {
	if d.Leader == "" && d.ClusterID != "" {
		return fmt.Sprintf("none is known, term %d", d.Term)
	}
	for _, peer := range d.Peers {
		if peer.Leader {
			return fmt.Sprintf("%s, term %d", both(peer.Name, peer.ID), d.Term)
		}
	}
	return d.Leader
}

func peerLine(p status.Peer) string {
	state := "missing"
	if p.Active {
		state = "active "
	}
	line := fmt.Sprintf("%s  %s", state, both(cmp.Or(p.Name, strings.Join(p.URLs, ",")), p.ID))
	if p.Leader {
		line += ", leader"
	}
	if p.Learner {
		line += ", learner"
	}
	return line
}

func database(m status.Member) string {
	text := fmt.Sprintf("%s, of it %s in use", size(m.DBSize), size(m.DBInUse))
	if m.Quota > 0 {
		text += fmt.Sprintf(", %d%% of its quota of %s", 100*m.DBSize/m.Quota, size(m.Quota))
	}
	return text
}

func size(count int64) string {
	switch {
	case count < 1<<20:
		return fmt.Sprintf("%d KiB", count>>10)
	case count < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(count)/(1<<20))
	default:
		return fmt.Sprintf("%.1f GiB", float64(count)/(1<<30))
	}
}

func validity(expires, now time.Time) string {
	if now.After(expires) {
		return "has expired, " + ago(expires, now)
	}
	return fmt.Sprintf("expires in %v, %s", Rounded(expires.Sub(now)), moment(expires))
}

// ago is a moment in the reader's zone, with its age.
func ago(at, now time.Time) string {
	return fmt.Sprintf("%s, %v ago", moment(at), Rounded(now.Sub(at)))
}

func moment(at time.Time) string { return at.Local().Format("2006-01-02 15:04:05 MST") }
