package terminal

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/readiness/status"
)

// longestName is the maximum length of a member name in the table. Longer names are truncated at the beginning,
// because member names usually differ at the end.
const longestName = 14

// Cluster returns a table with a row for each member, at most 80 columns wide, followed by the members' problems.
func Cluster(answers []status.MemberStatus, now time.Time) string {
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
		rows = append(rows, []string{name, role(d), state, d.Versions.Wrapper, ifKnown(d.Revision, fmt.Sprint(d.Revision)), ifKnown(d.DBSize, Size(d.DBSize)), backups(d), certificateLifetime(d.Certificates, now)})
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

func ifKnown(value int64, text string) string {
	if value == 0 {
		return "?"
	}
	return text
}

// backups returns the member's backup role, or how far the store lags behind.
func backups(d status.Document) string {
	switch b := d.Backup; {
	case b == nil && d.Standalone:
		return "none"
	case b == nil:
		return "sidecar"
	case b.Problem != nil:
		return "failing"
	case b.Role == facts.Writer && b.LagRevisions > 0:
		return duration(b.LagSeconds).String() + " late"
	default:
		return string(b.Role)
	}
}

// certificateLifetime returns the remaining validity of the certificate that expires first.
func certificateLifetime(files []status.Certificate, now time.Time) string {
	if len(files) == 0 {
		return "none"
	}
	first := slices.MinFunc(files, func(a, b status.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	switch left := first.NotAfter.Sub(now); {
	case left <= 0:
		return "expired"
	case left < 48*time.Hour:
		return fmt.Sprintf("%dh", left/time.Hour)
	default:
		return fmt.Sprintf("%dd", left/(24*time.Hour))
	}
}
