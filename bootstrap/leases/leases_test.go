package leases

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/logtest"
)

// inMemory lets a handler answer without a network, so that a test can have a clock of its own. A request ends with its
// context, as over a network.
type inMemory struct{ http.Handler }

func (m inMemory) RoundTrip(r *http.Request) (*http.Response, error) {
	answered := make(chan *http.Response, 1)
	go func() {
		recorder := httptest.NewRecorder()
		m.ServeHTTP(recorder, r)
		answered <- recorder.Result()
	}()
	select {
	case response := <-answered:
		return response, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// within are leases of a member that asks a server in this process.
func within(t *testing.T, handler http.Handler, backups func() (Backups, bool)) (*Leases, *logtest.Lines) {
	t.Helper()
	l, log := over(t, handler, backups)
	l.server.client = &http.Client{Transport: inMemory{handler}}
	return l, log
}

// tick is how often a test looks, in its own time.
const tick = 100 * time.Millisecond

// gaps are how long after the one before each request came, in seconds.
func (a *api) gaps() (all []float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := 1; i < len(a.at); i++ {
		all = append(all, a.at[i].Sub(a.at[i-1]).Seconds())
	}
	return all
}

func TestAMembersLeaseIsRenewedEveryTenSeconds(t *testing.T) {
	there := newAPI("etcd-main-0")
	l, log := within(t, there, nil)
	synctest.Test(t, func(t *testing.T) {
		l.Begin()
		<-time.After(45 * time.Second)
		l.End()
		assert.Equal(t, []float64{10, 10, 10, 10}, there.gaps())
		<-time.After(time.Minute)
		assert.Len(t, there.asked, 5, "and no more after the end")
	})
	assert.Equal(t, 1, strings.Count(log.String(), "\n"), "it is said once")
}

func TestAnAPIServerThatFailsIsAskedLessAndLessOftenAndItIsSaidOnce(t *testing.T) {
	there := newAPI("etcd-main-0")
	there.trouble = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusInternalServerError)
		return true
	}
	l, log := within(t, there, nil)
	synctest.Test(t, func(t *testing.T) {
		l.Begin()
		<-time.After(5 * time.Minute)
		gaps := there.gaps()
		assert.Less(t, gaps[0], 1.4)
		for _, gap := range gaps {
			assert.LessOrEqual(t, gap, longestPause.Seconds(), "the operator takes a member for lost after a minute")
		}
		assert.Greater(t, gaps[len(gaps)-1], 13.0)
		assert.Equal(t, 1, strings.Count(log.String(), "not renewed"))
		trouble := l.fact(t, OfMember).Trouble
		assert.Equal(t, len(there.asked), trouble.Times)
		assert.WithinRange(t, trouble.NextTry, time.Now(), time.Now().Add(longestPause))

		there.becomes(nil)
		<-time.After(longestPause)
		assert.Nil(t, l.fact(t, OfMember).Trouble)
		assert.Contains(t, log.String(), "renewed again")

		there.becomes(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusForbidden); return true })
		for trouble = nil; trouble == nil; trouble = l.fact(t, OfMember).Trouble {
			<-time.After(tick)
		}
		assert.Equal(t, 1, trouble.Times)
		assert.Less(t, trouble.NextTry.Sub(trouble.Since), 1400*time.Millisecond, "it begins anew")
		l.End()
	})
}

func TestAnAPIServerThatAsksForQuietGetsIt(t *testing.T) {
	there := newAPI("etcd-main-0")
	after := "7"
	there.trouble = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Retry-After", after)
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	}
	l, _ := over(t, there, nil)
	assert.Equal(t, 7*time.Second, l.once(t, OfMember))
	after = "86400"
	assert.Equal(t, longestPause, l.once(t, OfMember), "but not for as long as it likes")
}

func TestAnAPIServerThatHangsIsGivenUpAndHoldsNobodyUp(t *testing.T) {
	there := newAPI("etcd-main-0")
	there.trouble = func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }
	l, log := within(t, there, nil)
	synctest.Test(t, func(t *testing.T) {
		l.Begin()
		<-time.After(answerWithin + time.Millisecond)
		assert.Contains(t, l.fact(t, OfMember).Trouble.Message, "not answered within 5s")
		<-time.After(2 * time.Second)
		began := time.Now()
		l.End()
		assert.Zero(t, time.Since(began), "the end does not wait for it")
		select {
		case <-l.over:
		default:
			assert.Fail(t, "but for the one that asks")
		}
	})
	assert.Equal(t, 1, strings.Count(log.String(), "not renewed"))
}

func TestALeaseGoesStaleWhileItsMemberKnowsNoLeader(t *testing.T) {
	there := newAPI("etcd-main-0")
	l, _ := over(t, there, nil)
	l.options.Member = func() (Member, bool) { return Member{Name: "etcd-main-0"}, false }
	l.once(t, OfMember)
	assert.Empty(t, there.asked)
	assert.Equal(t, "this member knows no leader", l.fact(t, OfMember).Trouble.Message)
}

// made is a member that makes the backups.
type made struct{ atomic.Pointer[Backups] }

func (m *made) facts() (Backups, bool) {
	is := m.Load()
	if is == nil {
		return Backups{}, false
	}
	return *is, true
}

var noon = time.Date(2026, 11, 22, 12, 0, 0, 123_456_789, time.UTC)

func TestTheSnapshotLeasesSayHowFarBackupsAre(t *testing.T) {
	there := newAPI("etcd-main-full-snap", "etcd-main-delta-snap")
	var backups made
	l, _ := over(t, there, backups.facts)
	full := func() spec { l.once(t, OfFull); return there.lease("etcd-main-full-snap").Spec }
	delta := func() spec { l.once(t, OfDelta); return there.lease("etcd-main-delta-snap").Spec }

	assert.Zero(t, full(), "another member makes the backups")
	assert.Zero(t, delta())
	assert.Empty(t, there.asked)
	assert.Empty(t, l.Facts())

	backups.Store(&Backups{Full: 41, FullTime: noon, Stored: 57, UpTo: noon.Add(time.Minute)})
	assert.Equal(t, spec{"41", microTime{noon.Truncate(time.Microsecond)}}, full())
	assert.Equal(t, spec{"57", microTime{noon.Add(time.Minute).Truncate(time.Microsecond)}}, delta())
	asked := len(there.asked)
	full()
	assert.Equal(t, []string{"GET etcd-main-full-snap"}, there.asked[asked:], "what is said already is not written again")
	assert.Equal(t, "41", l.fact(t, OfFull).Holder)

	backups.Store(&Backups{Full: 41, FullTime: noon.Add(time.Hour), Stored: 57, UpTo: noon.Add(time.Hour)})
	assert.Equal(t, spec{"41", microTime{noon.Add(time.Hour).Truncate(time.Microsecond)}}, full(), "a full of a cluster that nobody writes to")

	there.set("etcd-main-full-snap", "100", noon)
	there.set("etcd-main-delta-snap", "100", noon)
	assert.Equal(t, "100", full().HolderIdentity, "no revision goes back")
	assert.Equal(t, microTime{noon}, full().RenewTime, "and what names a later one is left alone")
	assert.Equal(t, spec{"100", microTime{noon.Add(time.Hour).Truncate(time.Microsecond)}}, delta())

	backups.Store(nil)
	full()
	assert.Empty(t, l.Facts()[1:], "what has become another member's business is not told of")
	l.once(t, OfDelta)
	assert.Empty(t, l.Facts())
}

func TestTwoMembersThatBothMakeBackupsForAMomentLeaveTheLaterRevision(t *testing.T) {
	there := newAPI("etcd-main-full-snap")
	times := 0
	there.before = func(name string) {
		if times++; times <= 2 {
			there.set(name, map[int]string{1: "10", 2: "20"}[times], noon)
		}
	}
	var backups made
	backups.Store(&Backups{Full: 15, FullTime: noon})
	l, _ := over(t, there, backups.facts)
	l.once(t, OfFull)
	assert.Equal(t, "20", there.lease("etcd-main-full-snap").Spec.HolderIdentity)
	assert.Nil(t, l.fact(t, OfFull).Trouble)

	there.before = func(name string) { there.set(name, "1", noon) }
	there.set("etcd-main-full-snap", "", time.Time{})
	l.once(t, OfFull)
	assert.Contains(t, l.fact(t, OfFull).Trouble.Message, "others write it all the time")
}

func TestALeaseThatSomebodyElseUsesIsLeftAlone(t *testing.T) {
	there := newAPI("etcd-main-delta-snap")
	there.set("etcd-main-delta-snap", "somebody", noon)
	var backups made
	backups.Store(&Backups{Stored: 5, UpTo: noon})
	l, _ := over(t, there, backups.facts)
	l.once(t, OfDelta)
	assert.Equal(t, "somebody", there.lease("etcd-main-delta-snap").Spec.HolderIdentity)
	assert.Contains(t, l.fact(t, OfDelta).Trouble.Message, "is no revision")
}

func TestOneLeaseThatCannotBeRenewedLeavesTheOthersAlone(t *testing.T) {
	there := newAPI("etcd-main-0", "etcd-main-delta-snap")
	var backups made
	backups.Store(&Backups{Full: 3, FullTime: noon, Stored: 5, UpTo: noon})
	l, _ := within(t, there, backups.facts)
	l.options.Log = zerolog.Nop()
	synctest.Test(t, func(*testing.T) {
		l.Begin()
		<-time.After(time.Minute)
		l.End()
	})
	facts := l.Facts()
	require.Len(t, facts, 3)
	for _, fact := range facts {
		assert.Equal(t, fact.Kind == OfFull, fact.Trouble != nil, fact.Kind)
	}
	assert.Equal(t, "5", there.lease("etcd-main-delta-snap").Spec.HolderIdentity)
}
