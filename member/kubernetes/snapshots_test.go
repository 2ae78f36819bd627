package kubernetes

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// made contains the backup state of the writer.
type made struct{ atomic.Pointer[BackupLeases] }

func (m *made) facts() (BackupLeases, bool) {
	is := m.Load()
	if is == nil {
		return BackupLeases{}, false
	}
	return *is, true
}

var noon = time.Date(2026, 11, 22, 12, 0, 0, 123_456_789, time.UTC)

func TestLeases_snapshots(t *testing.T) {
	apiServer := newAPI("etcd-main-full-snap", "etcd-main-delta-snap")
	var backups made
	l, _ := over(t, apiServer, backups.facts)
	full := func() leaseSpec { l.once(t, OfFull); return apiServer.lease("etcd-main-full-snap").Spec }
	delta := func() leaseSpec { l.once(t, OfDelta); return apiServer.lease("etcd-main-delta-snap").Spec }

	assert.Zero(t, full(), "another member makes the backups")
	assert.Zero(t, delta())
	assert.Empty(t, apiServer.asked)
	assert.Empty(t, l.States())

	backups.Store(&BackupLeases{Full: 41, FullTime: noon, Stored: 57, UpTo: noon.Add(time.Minute)})
	assert.Equal(t, leaseSpec{"41", microTime{noon.Truncate(time.Microsecond)}}, full())
	assert.Equal(t, leaseSpec{"57", microTime{noon.Add(time.Minute).Truncate(time.Microsecond)}}, delta())
	asked := len(apiServer.asked)
	full()
	assert.Equal(t, []string{"GET etcd-main-full-snap"}, apiServer.asked[asked:], "what is said already is not written again")
	assert.Equal(t, "41", l.fact(t, OfFull).Holder)

	backups.Store(&BackupLeases{Full: 41, FullTime: noon.Add(time.Hour), Stored: 57, UpTo: noon.Add(time.Hour)})
	assert.Equal(t, leaseSpec{"41", microTime{noon.Add(time.Hour).Truncate(time.Microsecond)}}, full(), "a full of a cluster that nobody writes to")

	apiServer.set("etcd-main-full-snap", "100", noon)
	apiServer.set("etcd-main-delta-snap", "100", noon)
	assert.Equal(t, "100", full().HolderIdentity, "no revision goes back")
	assert.Equal(t, microTime{noon}, full().RenewTime, "and what names a later one is left alone")
	assert.Equal(t, leaseSpec{"100", microTime{noon.Add(time.Hour).Truncate(time.Microsecond)}}, delta())

	backups.Store(nil)
	full()
	assert.Empty(t, l.States()[1:], "what has become another member's business is not told of")
	l.once(t, OfDelta)
	assert.Empty(t, l.States())
}

func TestLeases_conflicts(t *testing.T) {
	apiServer := newAPI("etcd-main-full-snap")
	times := 0
	apiServer.before = func(name string) {
		if times++; times <= 2 {
			apiServer.set(name, map[int]string{1: "10", 2: "20"}[times], noon)
		}
	}
	var backups made
	backups.Store(&BackupLeases{Full: 15, FullTime: noon})
	l, _ := over(t, apiServer, backups.facts)
	l.once(t, OfFull)
	assert.Equal(t, "20", apiServer.lease("etcd-main-full-snap").Spec.HolderIdentity)
	assert.Nil(t, l.fact(t, OfFull).Problem)

	apiServer.before = func(name string) { apiServer.set(name, "1", noon) }
	apiServer.set("etcd-main-full-snap", "", time.Time{})
	l.once(t, OfFull)
	assert.Contains(t, l.fact(t, OfFull).Problem.Message, "other members keep updating the lease")
}
