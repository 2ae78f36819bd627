package main_test

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// cluster starts members that know of each other and waits until all are ready.
func cluster(t *testing.T, size int) (places []*place, runs []*wrapper) {
	t.Helper()
	var members []string
	for i := range size {
		p := newPlace(t)
		p.config["name"] = fmt.Sprintf("etcd-main-%d", i)
		members = append(members, fmt.Sprintf("etcd-main-%d=http://127.0.0.1:%d", i, p.peer))
		places = append(places, p)
	}
	for _, p := range places {
		p.config["initial-cluster"] = strings.Join(members, ",")
		runs = append(runs, p.start())
	}
	for _, w := range runs {
		w.awaitReady()
	}
	return places, runs
}

func TestStopRightAfterTheOtherMemberIsLost(t *testing.T) {
	t.Parallel()
	places, runs := cluster(t, 2)
	places[0].put("key", "value")
	runs[1].kill()
	status, took := runs[0].stop(syscall.SIGTERM)
	t.Logf("took %s", took)
	assert.Equal(t, 0, status)
	assert.Less(t, took, stopBudget)
	assert.Equal(t, "terminated", places[0].record())
}

func TestMemberThatLosesItsQuorumIsUnreadyAndStillStops(t *testing.T) {
	t.Parallel()
	places, runs := cluster(t, 2)
	runs[1].kill()
	lost := time.Now()
	eventually(t, "it is unready", func() bool { return runs[0].readyz() == http.StatusServiceUnavailable })
	assert.Less(t, time.Since(lost), 5*time.Second)
	status, took := runs[0].stop(syscall.SIGTERM)
	t.Logf("took %s", took)
	assert.Equal(t, 0, status)
	assert.Less(t, took, stopBudget)
	assert.Equal(t, "terminated", places[0].record())
}

func TestMemberThatComesBackMakesTheClusterReadyAgain(t *testing.T) {
	t.Parallel()
	places, runs := cluster(t, 2)
	places[0].put("key", "value")
	runs[1].kill()
	eventually(t, "the other is unready", func() bool { return runs[0].readyz() == http.StatusServiceUnavailable })
	again := places[1].start()
	again.awaitReady()
	runs[0].awaitReady()
	assert.Equal(t, "value", places[1].get("key"))
	assert.Equal(t, []string{"full", "full"}, places[1].sidecar.modes())
	again.stopCleanly()
}

func TestAllMembersMayStopAtTheSameTime(t *testing.T) {
	t.Parallel()
	places, runs := cluster(t, 3)
	places[0].put("key", "value")
	began := time.Now()
	for _, w := range runs {
		w.signal(syscall.SIGTERM)
	}
	for i, w := range runs {
		require.Equal(t, 0, w.exit(soon), "member %d", i)
		t.Logf("member %d took %s", i, time.Since(began))
		assert.Less(t, time.Since(began), stopBudget)
		assert.Equal(t, "terminated", places[i].record())
	}
	for i, p := range places {
		runs[i] = p.start()
	}
	for i, p := range places {
		runs[i].awaitReady()
		assert.Equal(t, "value", p.get("key"))
		assert.Equal(t, []string{"full", "sanity"}, p.sidecar.modes())
	}
}
