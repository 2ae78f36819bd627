package dataversion

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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/version"

	"etcd-wrapper/exitcode"
	"etcd-wrapper/member/state"
)

// fakeServer is a server whose facts are set by the test. Requests change the facts, unless err is set.
type fakeServer struct {
	mu       sync.Mutex
	now      facts
	err      error // result of all requests; nil if they succeed
	requests int
}

func (s *fakeServer) facts() facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *fakeServer) downgrade(_ context.Context, target Version) error {
	return s.ask(func() { s.now.cluster, s.now.storage, s.now.downgrade = target, target, target })
}

func (s *fakeServer) cancelDowngrade(context.Context) error {
	return s.ask(func() { s.now.downgrade = Version{} })
}

func (s *fakeServer) ask(change func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	if s.err == nil {
		change()
	}
	return s.err
}

func (s *fakeServer) change(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// run starts a Keeper that checks the server until the test ends. It must be called within synctest.Test.
func run(t *testing.T, wanted Version, s *fakeServer) (k *Keeper, log *bytes.Buffer) {
	t.Helper()
	log = &bytes.Buffer{}
	k = newKeeper(wanted, s, zerolog.New(log))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.Run(ctx)
	}()
	t.Cleanup(func() { stop(); <-done })
	synctest.Wait()
	return k, log
}

func TestKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{now: facts{cluster: Of3_6, storage: Of3_6, leader: true}}
		k, _ := run(t, Of3_5, s)
		require.Equal(t, Lowering, k.State().Phase)
		require.False(t, k.State().Readable)
		awaitCheck()
		require.Equal(t, Holding, k.State().Phase)
		require.False(t, k.State().Readable, "etcd may not have written its snapshot yet")
		awaitCheck()
		require.True(t, k.State().Readable)
		s.change(func() { s.now.newcomers = []string{"c (learner)"} })
		awaitCheck()
		require.Equal(t, LettingGo, k.State().Phase)
		require.Equal(t, Version{}, s.facts().downgrade)
		awaitCheck()
		require.Equal(t, Kept, k.State().Phase)
		require.Equal(t, 2, s.requests, "the downgrade is enabled once and canceled once")
	})
}

func TestKeeper_retries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{now: facts{cluster: Of3_6, storage: Of3_6, leader: true}, err: errors.New("no leader")}
		k, log := run(t, Of3_5, s)
		for range 5 {
			awaitCheck()
		}
		require.Equal(t, 6, s.requests)
		require.Equal(t, "the request to etcd failed: no leader", k.State().Reason)
		require.Equal(t, 1, strings.Count(log.String(), "the request to etcd failed"), "the failure is logged once")
		require.Contains(t, log.String(), `"level":"warn"`)
		s.change(func() { s.err = nil })
		awaitCheck()
		awaitCheck()
		awaitCheck()
		require.True(t, k.State().Readable)
	})
}

func TestKeeper_idle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{now: facts{announced: Of3_6, storage: Of3_5}}
		k, log := run(t, Of3_6, s)
		s.change(func() { s.now = facts{announced: Of3_6, cluster: Of3_6, storage: Of3_6, leader: true} })
		awaitCheck()
		require.Equal(t, Kept, k.State().Phase)
		require.Regexp(t, `^(\{"level":"debug".*\n){2}$`, log.String())
		s.change(func() { s.now.downgrade = Of3_5 })
		awaitCheck()
		require.Contains(t, log.String(), `"level":"info"`, "a change that requires a request is logged at info level")
	})
}

func TestKeeper_initialState(t *testing.T) {
	t.Parallel()
	k := newKeeper(Of3_5, &fakeServer{now: facts{announced: Of3_6}}, zerolog.Nop())
	require.Equal(t, state.DataVersion{Wanted: "3.5", Cluster: "unknown", Storage: "unknown", Phase: Waiting, Reason: notChecked}, k.State())
	k = newKeeper(Of3_5, &fakeServer{now: facts{announced: Of3_5}}, zerolog.Nop())
	require.True(t, k.State().Readable, "the cluster version cannot be higher than the version that this member announces")
	k = newKeeper(Of3_5, &fakeServer{now: facts{cluster: Of3_6, storage: Of3_5}}, zerolog.Nop())
	require.False(t, k.State().Readable)
	k = newKeeper(Of3_5, &fakeServer{now: facts{cluster: Of3_5, storage: Of3_5}}, zerolog.Nop())
	require.True(t, k.State().Readable, "neither version has to be lowered")
}

// awaitCheck waits until the Keeper has performed another check.
func awaitCheck() {
	synctest.Wait()
	<-time.After(interval)
	synctest.Wait()
}

func TestEvaluate(t *testing.T) {
	t.Parallel()
	newcomer := []string{"member 8e9e05c52164694d (not started)"}
	for _, c := range []struct {
		name   string
		wanted Version
		facts  facts
		action action
		phase  string
		reason string
	}{
		{"the cluster has no version yet", Of3_5, facts{leader: true}, nothing, Waiting, "not been determined yet"},
		{"cluster below the wanted version", Of3_5, facts{cluster: Version{3, 4}, storage: Of3_5, leader: true}, nothing, Kept, "is at version 3.4"},
		{"cluster at the wanted version", Of3_5, facts{cluster: Of3_5, storage: Of3_5, leader: true}, nothing, Kept, "is at version 3.5"},
		{"cluster at the wanted version with a joining member", Of3_5, facts{cluster: Of3_5, storage: Of3_5, newcomers: newcomer, leader: true}, nothing, Kept, "is at version 3.5"},
		{"leader enables the downgrade", Of3_5, facts{cluster: Of3_6, storage: Of3_6, leader: true}, enable, Lowering, "must be able to read"},
		{"follower waits for the leader to enable the downgrade", Of3_5, facts{cluster: Of3_6, storage: Of3_6}, nothing, Waiting, "leader to request"},
		{"no downgrade while a member joins", Of3_5, facts{cluster: Of3_6, storage: Of3_6, leader: true, newcomers: newcomer}, nothing, Waiting, "8e9e05c52164694d"},
		{"downgrade already enabled", Of3_5, facts{cluster: Of3_6, storage: Of3_6, downgrade: Of3_5, leader: true}, nothing, Lowering, "was requested"},
		{"downgrade enabled and storage not converted yet", Of3_5, facts{cluster: Of3_5, storage: Of3_6, downgrade: Of3_5, leader: true}, nothing, Lowering, "convert"},
		{"downgrade completed but still enabled", Of3_5, facts{cluster: Of3_5, storage: Of3_5, downgrade: Of3_5, leader: true}, nothing, Holding, "the downgrade remains enabled"},
		{"leader cancels the downgrade for a joining member", Of3_5, facts{cluster: Of3_5, storage: Of3_5, downgrade: Of3_5, leader: true, newcomers: newcomer}, cancelDowngrade, LettingGo, "8e9e05c52164694d"},
		{"follower cancels the downgrade for a joining member", Of3_5, facts{cluster: Of3_5, storage: Of3_5, downgrade: Of3_5, newcomers: newcomer}, cancelDowngrade, LettingGo, "no new member"},
		{"downgrade canceled for a joining member before it has completed", Of3_5, facts{cluster: Of3_6, storage: Of3_6, downgrade: Of3_5, newcomers: newcomer}, cancelDowngrade, LettingGo, "no new member"},
		{"downgrade canceled for a joining member although 3.6 is wanted", Of3_6, facts{cluster: Of3_5, storage: Of3_5, downgrade: Of3_5, newcomers: newcomer}, cancelDowngrade, LettingGo, "no new member"},
		{"user's downgrade canceled for a joining member", Of3_5, facts{cluster: Of3_5, storage: Of3_5, downgrade: Version{3, 4}, newcomers: newcomer}, cancelDowngrade, LettingGo, "no new member"},
		{"user's downgrade to 3.4 is not changed", Of3_5, facts{cluster: Of3_5, storage: Of3_5, downgrade: Version{3, 4}, leader: true}, nothing, Foreign, "3.4"},
		{"3.6 is wanted and the leader cancels the downgrade", Of3_6, facts{cluster: Of3_5, storage: Of3_5, downgrade: Of3_5, leader: true}, cancelDowngrade, Rising, "3.6 is wanted"},
		{"3.6 is wanted and a follower waits for the leader to cancel the downgrade", Of3_6, facts{cluster: Of3_5, storage: Of3_5, downgrade: Of3_5}, nothing, Waiting, "leader to cancel"},
		{"3.6 is wanted and the cluster is about to be upgraded", Of3_6, facts{cluster: Of3_5, storage: Of3_5, leader: true}, nothing, Waiting, "once every member"},
		{"3.6 is wanted and the cluster has been upgraded", Of3_6, facts{cluster: Of3_6, storage: Of3_6, leader: true}, nothing, Kept, "is at version 3.6"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := evaluate(c.wanted, c.facts)
			require.Equal(t, c.action, d.action)
			require.Equal(t, c.phase, d.phase)
			require.Contains(t, d.reason, c.reason)
		})
	}
}

func TestVersion_parseAndLess(t *testing.T) {
	t.Parallel()
	require.Equal(t, Of3_5, Parse("3.5.0"))
	require.Equal(t, Of3_6, Parse("3.6"))
	require.Equal(t, Version{}, Parse("not_decided"))
	require.Equal(t, Version{}, Parse(""))
	require.True(t, Of3_5.Less(Of3_6))
	require.False(t, Of3_5.Less(Of3_5))
	require.True(t, Version{3, 9}.Less(Version{3, 10}))
	require.True(t, Version{}.Less(Version{3, 0}))
	require.True(t, Version{3, 7}.Less(Version{4, 0}))
}

// The test is not parallel because the announced version is global.
func TestAnnounce(t *testing.T) {
	t.Cleanup(func() { version.Version = Embedded })
	require.Equal(t, "3.5.27+"+Embedded, Announce(Of3_5, Version{}), "a new cluster")
	require.Equal(t, version.Version, "3.5.27+"+Embedded)
	require.Equal(t, Embedded, Announce(Of3_5, Of3_6), "etcd would crash on data newer than the announced version")
	require.Equal(t, version.Version, Embedded)
	require.Equal(t, "3.5.27+"+Embedded, Announce(Of3_5, Of3_5))
	require.Equal(t, "3.5.27+"+Embedded, Announce(Of3_5, Version{3, 4}))
	require.Equal(t, Embedded, Announce(Of3_6, Of3_5))
}

func TestActualVersion(t *testing.T) {
	t.Cleanup(func() { version.Version = Embedded })
	require.Equal(t, Embedded, ActualVersion(Announce(Of3_5, Of3_5)))
	require.Equal(t, Embedded, ActualVersion(Announce(Of3_6, Of3_6)))
	require.Equal(t, "3.5.27", ActualVersion("3.5.27"))
	require.Equal(t, "3.5.27+vendor", ActualVersion("3.5.27+vendor"))
	require.Empty(t, ActualVersion(""))
}

func TestCheckUpgrade(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		recorded string
		others   bool
		message  string // part of the error; empty if the data may be opened
	}{
		{"", true, ""},
		{"3.0.0", true, ""}, // a new cluster has this cluster version until all members have started
		{"3.1.0", true, "upgrade all members to etcd 3.5.26"},
		{"3.4.0", true, "upgrade all members to etcd 3.5.26"},
		{"3.4.0", false, ""},
		{"3.5.0", true, ""},
		{"3.6.0", true, ""},
		{"3.7.0", true, "an etcd-wrapper release that runs etcd 3.7"},
		{"3.7.0", false, "an etcd-wrapper release that runs etcd 3.7"},
		{"3.8.0", true, "an etcd-wrapper release that runs etcd 3.8"},
		{"4.0.0", true, "an etcd-wrapper release that runs etcd 4.0"},
	} {
		err := CheckUpgrade(Parse(c.recorded), c.others)
		if c.message == "" {
			assert.NoError(t, err, "%+v", c)
			continue
		}
		require.Equal(t, exitcode.BadConfig, exitcode.StatusOf(err, exitcode.EtcdFailed), "%+v", c)
		assert.ErrorContains(t, err, c.message)
	}
}
