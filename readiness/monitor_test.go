package readiness

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// newTestMonitor runs a Monitor on a target until the test ends. It must be called in a synctest bubble.
func newTestMonitor(t *testing.T, m *fakeTarget, log *bytes.Buffer) *Monitor {
	t.Helper()
	monitor := NewMonitor(zerolog.New(log))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); monitor.Run(ctx, m) }()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
	return monitor
}

func ready(m *Monitor) bool { return m.Report().Ready(time.Now()) }

// timeUntil advances the fake clock until the Monitor reports the expected readiness, and returns the elapsed time.
func timeUntil(t *testing.T, m *Monitor, want bool) time.Duration {
	t.Helper()
	start := time.Now()
	for ready(m) != want {
		require.Less(t, time.Since(start), time.Minute, "readiness never becomes %v", want)
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
	}
	return time.Since(start)
}

func quorumCheck(m *Monitor) Check { return m.Report().Checks(time.Now())[quorum] }

func pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestNothingIsReadyBeforeRun(t *testing.T) {
	m := NewMonitor(zerolog.Nop())
	require.False(t, ready(m))
	require.False(t, new(Report).Ready(time.Now()), "zero report")
	for _, c := range m.Report().Checks(time.Now()) {
		require.Equal(t, Check{Name: c.Name, Status: Failed, Reason: "etcd is not running"}, c)
	}
}

func TestReadsImmediatelyThenPeriodicallyOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		m := newTestMonitor(t, target, new(bytes.Buffer))
		require.True(t, ready(m), "the first read starts immediately")
		for range 100 {
			pass(100 * time.Millisecond)
			require.True(t, ready(m))
		}
		target.set(func(target *fakeTarget) {
			require.InDelta(t, 34, target.reads, 1)
			require.Equal(t, 1, target.mostInFlight)
		})
	})
}

// stalled is a Target that blocks the Monitor's goroutine, in IsLearner, once it has become a learner.
type stalled struct {
	*fakeTarget
	gate chan struct{}
}

func (s stalled) IsLearner() bool {
	if s.fakeTarget.IsLearner() {
		<-s.gate
	}
	return false
}

func TestStalledMonitorCannotStayReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := stalled{newTarget(), make(chan struct{})}
		m := NewMonitor(zerolog.Nop())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); m.Run(ctx, target) }()
		synctest.Wait()
		target.set(func(m *fakeTarget) { m.learner = true })

		pass(maxReadAge)
		require.True(t, ready(m), "3 s after the start of the last read")
		pass(time.Millisecond)
		require.False(t, ready(m))
		require.Equal(t, "the last successful linearizable read started 3.001s ago (limit 3s)", quorumCheck(m).Reason)
		cancel()
		close(target.gate)
		<-done
	})
}

func TestAgeCountsFromTheStartOfTheRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		target.read = func(context.Context) error { time.Sleep(900 * time.Millisecond); return nil }
		start := time.Now()
		m := newTestMonitor(t, target, new(bytes.Buffer))
		require.Equal(t, 900*time.Millisecond, timeUntil(t, m, true))
		require.Equal(t, start, m.Report().LastRead)
	})
}

func TestEachCheck(t *testing.T) {
	failedChecks := map[int]bool{}
	for name, c := range map[string]struct {
		change func(*fakeTarget)
		check  int    // index of the only check that does not pass
		want   string // expected status of that check
		ready  bool
	}{
		"no leader":                  {func(m *fakeTarget) { m.noLeader = true }, quorum, Failed, false},
		"learner":                    {func(m *fakeTarget) { m.learner = true }, learner, Failed, false},
		"corrupt data":               {func(m *fakeTarget) { m.corrupt = true }, corrupt, Failed, false},
		"listener failed":            {func(m *fakeTarget) { m.listener = errors.New("address gone") }, listener, Failed, false},
		"no space":                   {func(m *fakeTarget) { m.noSpace = true }, space, Degraded, true},
		"lost data":                  {func(m *fakeTarget) { m.lostData = errors.New("the log was removed") }, volume, Failed, false},
		"little space on the volume": {func(m *fakeTarget) { m.lowSpace = "1 MiB of 1 GiB free" }, volume, Degraded, true},
		"data too new":               {func(m *fakeTarget) { m.unreadable = "the cluster is at version 3.6" }, dataVersion, Degraded, true},
		"defragmentation":            {func(m *fakeTarget) { m.redirect = "the database is being defragmented" }, maintenance, Failed, false},
		"unconfirmed writes":         {func(m *fakeTarget) { m.unconfirmed = "the store does not confirm" }, quorum, Failed, false},
		"certificate expires soon":   {func(m *fakeTarget) { m.soon = "etcd_peer expires" }, validity, Degraded, true},
		"certificate has expired":    {func(m *fakeTarget) { m.ended, m.soon = "expired", "expires soon" }, validity, Failed, false},
	} {
		failedChecks[c.check] = true
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				target := newTarget()
				m := newTestMonitor(t, target, new(bytes.Buffer))
				target.set(c.change)
				pass(factsInterval)
				require.Equal(t, c.ready, ready(m))
				for i, found := range m.Report().Checks(time.Now()) {
					if i != c.check {
						require.Equal(t, passed(i), found)
						continue
					}
					require.Equal(t, c.want, found.Status)
					require.NotEmpty(t, found.Reason)
				}
			})
		})
	}
	for i, name := range names {
		require.True(t, failedChecks[i], "add a row in which only the check %q does not pass", name)
	}
}

func TestOnlyChangesAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target, log := newTarget(), new(bytes.Buffer)
		newTestMonitor(t, target, log)
		pass(10 * time.Second)
		log.Reset()
		target.set(func(m *fakeTarget) { m.noSpace = true })
		pass(10 * time.Second)
		require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
		for _, field := range []string{`"level":"warn"`, `"check":"space"`, `"from":"ok"`, `"to":"degraded"`, `"message":"readiness check space degraded: writes are rejected: compact`} {
			require.Contains(t, log.String(), field)
		}
	})
}

func TestNothingIsReadyAfterRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target, log := newTarget(), new(bytes.Buffer)
		release := make(chan struct{})
		target.read = func(context.Context) error { <-release; return nil }
		m := NewMonitor(zerolog.New(log))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); m.Run(ctx, target) }()
		synctest.Wait()

		cancel()
		synctest.Wait()
		require.Equal(t, emptyReport().checks, m.Report().checks, "the report is replaced before the read has returned")
		start := time.Now()
		<-done
		require.Equal(t, readTimeout, time.Since(start))
		require.Contains(t, log.String(), "did not return after it was canceled")
		close(release)
		synctest.Wait()
		require.False(t, ready(m))
	})
}

func TestRunCanBeRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMonitor(zerolog.Nop())
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			time.AfterFunc(500*time.Millisecond, func() { require.True(t, ready(m)) })
			m.Run(ctx, newTarget())
			cancel()
			require.False(t, ready(m))
		}
	})
}

func TestReadySinceLastChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		target := newTarget()
		target.noLeader = true
		m := newTestMonitor(t, target, new(bytes.Buffer))
		since := func() time.Duration { return m.Report().ReadySince(time.Now()).Sub(start) }
		pass(10 * time.Second)
		require.Zero(t, since(), "not ready from the start")

		target.elect()
		timeUntil(t, m, true)
		readyAfter := since()
		require.InDelta(t, 10*time.Second, readyAfter, float64(factsInterval))
		target.set(func(m *fakeTarget) { m.noSpace = true })
		pass(time.Minute)
		require.Equal(t, readyAfter, since(), "a degraded check does not change readiness")

		target.set(func(m *fakeTarget) { m.noLeader = true })
		timeUntil(t, m, false)
		lost := since()
		require.InDelta(t, time.Since(start), lost, float64(factsInterval))
		pass(time.Minute)
		require.Equal(t, lost, since())
	})
}

func TestReadySinceOfOutdatedReport(t *testing.T) {
	read := time.Now()
	r := monitorWith(func(r *Report) { r.LastRead, r.since = read, read.Add(-time.Hour) }).Report()
	require.Equal(t, read.Add(-time.Hour), r.ReadySince(read.Add(time.Second)))
	require.Equal(t, read.Add(maxReadAge), r.ReadySince(read.Add(time.Minute)))
	next := emptyReport()
	next.setSince(r, read.Add(time.Minute))
	require.Equal(t, read.Add(maxReadAge), next.since, "the member has not been ready since the read became too old")
}

func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestHangingReadMeansNoQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		m := newTestMonitor(t, target, new(bytes.Buffer))
		target.set(func(m *fakeTarget) { m.read = hang })
		require.LessOrEqual(t, timeUntil(t, m, false), 1400*time.Millisecond, "readiness is lost when the next read times out")
		require.Equal(t, "a linearizable read did not complete within 1s", quorumCheck(m).Reason)

		target.set(func(m *fakeTarget) { m.read = func(context.Context) error { return nil } })
		target.elect()
		require.LessOrEqual(t, timeUntil(t, m, true), 500*time.Millisecond)
	})
}

func TestFailingReadIsRetriedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		target.read = func(context.Context) error { return errors.New("not ready") }
		m := newTestMonitor(t, target, new(bytes.Buffer))
		require.Equal(t, "a linearizable read failed: not ready", quorumCheck(m).Reason)
		pass(777 * time.Millisecond)
		target.set(func(m *fakeTarget) { m.read = func(context.Context) error { return nil } })
		require.LessOrEqual(t, timeUntil(t, m, true), 2*retryInterval)
	})
}

func TestLostLeaderIsNoticedWhileReadHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		m := newTestMonitor(t, target, new(bytes.Buffer))
		target.set(func(m *fakeTarget) { m.read = hang })
		pass(readInterval + 50*time.Millisecond)
		require.True(t, ready(m), "the hanging read has not timed out yet")

		target.set(func(m *fakeTarget) { m.noLeader = true })
		require.LessOrEqual(t, timeUntil(t, m, false), factsInterval)
		require.Equal(t, "the cluster has no leader", quorumCheck(m).Reason)

		before := target.reads
		pass(time.Minute)
		require.Equal(t, before, target.reads, "no reads are started without a leader")
		target.set(func(m *fakeTarget) { m.read = func(context.Context) error { return nil } })
		target.elect()
		synctest.Wait()
		require.True(t, ready(m), "a read starts as soon as there is a leader")
	})
}

func TestRegainedLeaderIsNoticedWithoutNotification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		target.noLeader = true
		m := newTestMonitor(t, target, new(bytes.Buffer))
		pass(250 * time.Millisecond)
		target.set(func(m *fakeTarget) { m.noLeader = false })
		require.LessOrEqual(t, timeUntil(t, m, true), factsInterval)
	})
}

func TestNewLeaderMustConfirm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		answer := make(chan struct{})
		m := newTestMonitor(t, target, new(bytes.Buffer))
		target.set(func(m *fakeTarget) { m.read = func(context.Context) error { <-answer; return nil } })
		pass(readInterval)
		target.set(func(m *fakeTarget) { m.noLeader = true; m.read = hang })
		pass(factsInterval)
		target.elect()
		close(answer) // a late response from the previous leader
		synctest.Wait()
		require.False(t, ready(m))
		require.Equal(t, "no linearizable read has succeeded since the member found a leader", quorumCheck(m).Reason)
		require.Equal(t, 3, target.reads)
	})
}

func TestLeaderTransferKeepsReadyAndReadsImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		m := newTestMonitor(t, target, new(bytes.Buffer))
		for range 20 {
			before := target.reads
			target.elect()
			synctest.Wait()
			require.Equal(t, before+1, target.reads)
			require.True(t, ready(m))
		}
	})
}

func TestLeaderChangeReplacesHangingRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		target.read = hang
		m := newTestMonitor(t, target, new(bytes.Buffer))
		pass(50 * time.Millisecond)
		target.set(func(m *fakeTarget) { m.read = func(context.Context) error { return nil } })
		target.elect()
		synctest.Wait()
		require.True(t, ready(m), "the new read does not wait for the timeout of the old one")
		require.Equal(t, 1, target.mostInFlight)
	})
}

func TestReadThatIgnoresItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		release := make(chan struct{})
		m := newTestMonitor(t, target, new(bytes.Buffer))
		target.set(func(m *fakeTarget) { m.read = func(context.Context) error { <-release; return nil } })
		require.LessOrEqual(t, timeUntil(t, m, false), readInterval+readTimeout)
		pass(time.Minute)
		require.False(t, ready(m))
		require.Equal(t, 1, target.mostInFlight)
		close(release)
		require.LessOrEqual(t, timeUntil(t, m, true), 2*retryInterval, "the result of the late read is too old, but the next read succeeds")
	})
}

func TestLostQuorumNamesMissingMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		m := newTestMonitor(t, target, new(bytes.Buffer))
		target.set(func(m *fakeTarget) { m.missing = []string{"etcd-main-1"} })
		pass(factsInterval)
		require.Empty(t, quorumCheck(m).Reason, "a missing member is tolerated at first")
		pass(maxAbsence)
		require.Equal(t, Check{Name: "quorum", Status: Degraded, Reason: "no connection to etcd-main-1 for more than 1m0s: check that each is running and reachable; etcd-wrapper status shows what it is waiting for"}, quorumCheck(m))
		require.True(t, ready(m))
		target.set(func(m *fakeTarget) { m.missing = nil })
		pass(factsInterval)
		require.Equal(t, OK, quorumCheck(m).Status)
		target.set(func(m *fakeTarget) { m.noLeader, m.missing = true, []string{"etcd-main-1", "etcd-main-2"} })
		pass(factsInterval)
		require.Equal(t, "the cluster has no leader; no connection to etcd-main-1, etcd-main-2: check that each is running and reachable; etcd-wrapper status shows what it is waiting for", quorumCheck(m).Reason)
	})
}

// A fakeTarget is a Target whose results are set by the test. By default, there are no problems.
type fakeTarget struct {
	mu          sync.Mutex
	noLeader    bool
	learner     bool
	corrupt     bool
	noSpace     bool
	listener    error
	unreadable  string
	missing     []string
	redirect    string
	unconfirmed string
	ended       string
	soon        string
	lowSpace    string
	lostData    error
	read        func(context.Context) error // implements LinearizableRead
	changed     chan struct{}               // closed at the next leader change

	reads, inFlight, mostInFlight int // number of reads so far, at present, and at most at the same time
}

func newTarget() *fakeTarget {
	return &fakeTarget{changed: make(chan struct{}), read: func(context.Context) error { return nil }}
}

// set changes the target while holding its lock.
func (m *fakeTarget) set(change func(*fakeTarget)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

// elect simulates the election of a new leader.
func (m *fakeTarget) elect() {
	m.set(func(m *fakeTarget) {
		m.noLeader = false
		close(m.changed)
		m.changed = make(chan struct{})
	})
}

// get calls value while holding the target's lock and returns the result.
func get[T any](m *fakeTarget, value func() T) T {
	m.mu.Lock()
	defer m.mu.Unlock()
	return value()
}

func (m *fakeTarget) LinearizableRead(ctx context.Context) error {
	var read func(context.Context) error
	m.set(func(m *fakeTarget) {
		read = m.read
		m.reads++
		m.inFlight++
		m.mostInFlight = max(m.mostInFlight, m.inFlight)
	})
	defer m.set(func(m *fakeTarget) { m.inFlight-- })
	return read(ctx)
}

func (m *fakeTarget) LeaderChanged() <-chan struct{} {
	return get(m, func() <-chan struct{} { return m.changed })
}

func (m *fakeTarget) HasLeader() bool { return get(m, func() bool { return !m.noLeader }) }

func (m *fakeTarget) IsLearner() bool { return get(m, func() bool { return m.learner }) }

func (m *fakeTarget) Alarms() (corrupt, noSpace bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.corrupt, m.noSpace
}

func (m *fakeTarget) ListenerError() error { return get(m, func() error { return m.listener }) }

func (m *fakeTarget) Unreadable() string { return get(m, func() string { return m.unreadable }) }

func (m *fakeTarget) RedirectReason() string { return get(m, func() string { return m.redirect }) }

func (m *fakeTarget) Unconfirmed() string { return get(m, func() string { return m.unconfirmed }) }

func (m *fakeTarget) Missing() []string { return get(m, func() []string { return m.missing }) }

func (m *fakeTarget) LostData() error { return get(m, func() error { return m.lostData }) }

func (m *fakeTarget) LowSpace() string { return get(m, func() string { return m.lowSpace }) }

func (m *fakeTarget) Certificates(time.Time) (ended, soon string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ended, m.soon
}
