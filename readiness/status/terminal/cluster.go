package terminal

import (
	"fmt"
	"strings"
	"time"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/readiness/status"
)

// longestName is how much of a member's name a table shows, its end, which tells members apart.
const longestName = 14

// Cluster is a table with a row for each member, 80 columns wide at most, and below it why members have not answered or are not ready.
func Cluster(answers []status.Answer, now time.Time) string {
	rows := [][]string{{"MEMBER", "ROLE", "STATE", "VERSION", "REVISION", "DATABASE", "BACKUPS", "CERT"}}
	var below strings.Builder
	for _, a := range answers {
		name := a.Member
		if len(name) > longestName {
			name = "…" + name[len(name)-longestName+1:]
		}
		if a.Document == nil {
			rows = append(rows, []string{name, "?", "no answer", "", "", "", "", ""})
			below.WriteString(Wrapped(a.Member+": ", a.Error) + "\n")
			continue
		}
		d := *a.Document
		state := "ready"
		if !d.Ready {
			state = "not ready"
		}
		if d.Headline.Health != status.HealthOK {
			below.WriteString(Wrapped(a.Member+": ", d.Headline.Summary) + "\n")
		}
		rows = append(rows, []string{name, role(d), state, d.Versions.Wrapper, number(d.Revision), databaseSize(d), backups(d), firstEnd(d, now)})
	}
	return Table(rows...) + below.String()
}

func role(d status.Document) string {
	for _, peer := range d.Peers {
		switch {
		case peer.ID != d.MemberID:
		case peer.Learner:
			return "learner"
		case peer.Leader:
			return "leader"
		default:
			return "voter"
		}
	}
	return "?"
}

func number(revision int64) string {
	if revision == 0 {
		return "?"
	}
	return fmt.Sprint(revision)
}

func databaseSize(d status.Document) string {
	if d.DBSize == 0 {
		return "?"
	}
	return Size(d.DBSize)
}

// backups are one word, or how far the store is behind the member that makes them.
func backups(d status.Document) string {
	switch b := d.Backup; {
	case b == nil && d.Standalone:
		return "none"
	case b == nil:
		return "sidecar"
	case b.Problem != nil:
		return "trouble"
	case b.Role == facts.Writer && b.LagRevisions > 0:
		return Rounded(time.Duration(b.LagSeconds*float64(time.Second))).String() + " late"
	default:
		return string(b.Role)
	}
}

// firstEnd is how long the member's first certificate is still valid.
func firstEnd(d status.Document, now time.Time) string {
	if len(d.Certificates) == 0 {
		return "none"
	}
	first := d.Certificates[0].NotAfter
	for _, file := range d.Certificates {
		if file.NotAfter.Before(first) {
			first = file.NotAfter
		}
	}
	left := first.Sub(now)
	switch {
	case left <= 0:
		return "ended"
	case left < 48*time.Hour:
		return fmt.Sprintf("%dh", left/time.Hour)
	default:
		return fmt.Sprintf("%dd", left/(24*time.Hour))
	}
}
