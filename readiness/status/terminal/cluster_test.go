package terminal

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness/status"
)

func TestClusterIsATableOf80Columns(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	peers := []state.Peer{{ID: "a", Leader: true}, {ID: "b"}, {ID: "c", Learner: true}}
	documentOf := func(id string, b *facts.Backups) *status.Document {
		return &status.Document{
			Ready: true, MemberID: id, Headline: status.Headline{Health: status.HealthOK}, Standalone: true, Versions: status.Versions{Wrapper: "v1.10.0"}, Backup: b,
			Member:       state.Member{Peers: peers, DBSize: 8 << 30, Revision: 123456789},
			Certificates: []status.Certificate{{NotAfter: now.Add(900 * 24 * time.Hour)}, {NotAfter: now.Add(89*24*time.Hour + time.Minute)}},
		}
	}
	behind := documentOf("c", nil)
	behind.Ready, behind.Headline, behind.Certificates = false, status.Headline{Health: status.HealthFailed, Summary: "catching up with the leader"}, nil
	shown := Cluster([]status.MemberStatus{
		{Member: "etcd-main-0", Document: documentOf("a", &facts.Backups{Role: facts.Writer, LagRevisions: 3, LagSeconds: 12.4})},
		{Member: "a-long-name-of-a-release-1", Document: documentOf("b", &facts.Backups{Role: facts.Standby})},
		{Member: "etcd-main-2", Document: behind},
		{Member: "etcd-main-3", Error: "no answer: connection refused"},
	}, now)
	assert.Equal(t, strings.TrimPrefix(`
MEMBER          ROLE     STATE      VERSION  REVISION   DATABASE  BACKUPS   CERT
etcd-main-0     leader   ready      v1.10.0  123456789  8.0 GiB   12s late  89d
…f-a-release-1  voter    ready      v1.10.0  123456789  8.0 GiB   standby   89d
etcd-main-2     learner  not ready  v1.10.0  123456789  8.0 GiB   none      none
etcd-main-3     ?        no answer
etcd-main-2: catching up with the leader
etcd-main-3: no answer: connection refused
`, "\n"), shown)
	for line := range strings.Lines(shown) {
		assert.LessOrEqual(t, width(strings.TrimSuffix(line, "\n")), 80, line)
	}
}

func TestExpiryOfTheFirstCertificate(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for want, left := range map[string]time.Duration{"expired": 0, "0h": time.Minute, "47h": 48*time.Hour - 1, "2d": 48 * time.Hour} {
		assert.Equal(t, want, certificateLifetime([]status.Certificate{{NotAfter: now.Add(left)}}, now))
	}
}
