//go:build bench

package bench_test

import (
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

const (
	quorumRounds = 5
	memberStops  = 5
)

// lossOfQuorum suspends and resumes two of three members, and measures how soon the third member's /readyz reports
// that it is unready and then that it is ready again.
func lossOfQuorum(t *testing.T) []row {
	members := launchThree(t, wrapped)
	seen, others := members[0], members[1:]
	var lost, regained series
	for range quorumRounds {
		suspended := time.Now()
		signalAll(t, others, syscall.SIGSTOP)
		seen.await(http.StatusServiceUnavailable)
		lost = append(lost, milliseconds(time.Since(suspended)))
		resumed := time.Now()
		signalAll(t, others, syscall.SIGCONT)
		seen.await(http.StatusOK)
		regained = append(regained, seen.sinceElection(resumed))
	}
	return []row{
		row{what: "quorum lost → `/readyz` returns 503, ms", wrapper: lost}.neverMoreThan(1500, "ms"),
		row{what: "quorum regained → `/readyz` returns 200, excluding etcd's election, ms", wrapper: regained}.neverMoreThan(500, "ms"),
	}
}

// memberOfThree measures how long one of three members takes to stop. If it is the leader, this includes the
// leadership transfer.
func memberOfThree(t *testing.T) []row {
	var stop [2]series
	for range memberStops {
		for i, s := range both {
			t.Run("cluster", func(t *testing.T) { // the members are stopped at the end of this subtest
				stop[i] = append(stop[i], launchThree(t, s)[0].stop())
			})
		}
	}
	return []row{row{what: "SIGTERM → exit, one of three members, ms", plain: stop[0], wrapper: stop[1]}.costsAtMost(30, "ms")}
}

// launchThree starts three members and waits until they are ready. The flags are passed only to the wrapper.
func launchThree(t *testing.T, s *side, flags ...string) (members []*process) {
	t.Helper()
	for _, p := range harness.Members(t, 3) {
		p.Flags = append(p.Flags, flags...)
		members = append(members, s.launch(t, p))
	}
	for _, r := range members {
		r.await(http.StatusOK)
	}
	return members
}

func signalAll(t *testing.T, members []*process, s syscall.Signal) {
	t.Helper()
	for _, r := range members {
		require.NoError(t, r.cmd.Process.Signal(s))
	}
}

// sinceElection returns the milliseconds since the last election, or since the members were resumed if no election
// was needed.
func (r *process) sinceElection(resumed time.Time) float64 {
	r.t.Helper()
	now := time.Now()
	if elected := r.logged("elected leader"); elected.After(resumed) {
		return milliseconds(now.Sub(elected))
	}
	return milliseconds(now.Sub(resumed))
}
