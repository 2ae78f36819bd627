package faults_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"etcd-wrapper/cmd/suites/harness"
)

func TestFaultRemovedMember(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"serving", "down"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			trial(t, state, "removed from the cluster")
			pods, runs := harness.Cluster(t, 3)
			removed, run := pods[2], runs[2]
			removed.ExpectTerminationMessage()
			if state == "down" {
				run.Shutdown()
			}
			removeMember(pods[0], pods[2])
			if state == "down" {
				run = removed.Start()
			}
			// etcd notices its removal either through a notification, or because it is missing from the member list.
			reasons := map[int]string{70: "removed from the cluster", 2: "failed to find local ID in cluster members"}
			status := run.Exit(harness.Patience)
			require.Contains(t, reasons, status)
			assertExplained(removed, run, reasons[status])
			assert.False(t, clean(removed))
		})
	}
}

// A member must not start with the volume of a member that has the same name and address but belongs to another
// cluster.
func TestFaultDataOfAnotherCluster(t *testing.T) {
	t.Parallel()
	trial(t, "opening", "data of another cluster")
	pods, runs := harness.Cluster(t, 2)
	for _, run := range runs {
		run.Shutdown()
	}
	old := filepath.Join(pods[1].Dir, "old")
	require.NoError(t, os.Rename(pods[1].DataDir(), old))
	require.NoError(t, os.RemoveAll(pods[0].DataDir()))
	for _, p := range pods {
		p.Config["initial-cluster-token"] = "another"
	}
	runs = harness.StartAll(pods)
	runs[1].Shutdown()
	takeData(pods[1], old)
	run := pods[1].Start()
	harness.Eventually(t, "the status contains the reason", func() bool {
		_, body := run.Request(http.MethodGet, "/lifecycle")
		return strings.Contains(body, "waiting for a peer that ignores this member (cluster ID mismatch)")
	})
	assert.Equal(t, http.StatusServiceUnavailable, run.Readyz())
	status, took := run.Stop(syscall.SIGTERM)
	assert.Less(t, took, harness.StopBudget)
	assertRecord(run, status, nil)
}

// removeMember removes other's member through p's etcd. It retries, because etcd rejects the removal until it
// considers the cluster healthy.
func removeMember(p *harness.Pod, other *harness.Pod) {
	p.T.Helper()
	client, id := p.Etcd(), memberID(p, other)
	harness.Eventually(p.T, "the member is removed", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := client.MemberRemove(ctx, id)
		return err == nil || errors.Is(err, rpctypes.ErrMemberNotFound)
	})
}

// memberID returns the member ID of other, as reported by p's etcd.
func memberID(p *harness.Pod, other *harness.Pod) uint64 {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	list, err := p.Etcd().MemberList(ctx)
	require.NoError(p.T, err)
	for _, member := range list.Members {
		if member.Name == other.Config["name"] {
			return member.ID
		}
	}
	require.FailNow(p.T, "the member list does not contain the member")
	return 0
}
