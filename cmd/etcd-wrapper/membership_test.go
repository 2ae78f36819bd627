package main_test

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
)

func TestFaultMemberRemovedFromItsCluster(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"serving", "down"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			trial(t, state, "removed from the cluster")
			places, runs := cluster(t, 3)
			gone, w := places[2], runs[2]
			require.NoError(t, os.WriteFile(gone.termination(), nil, 0o600))
			if state == "down" {
				w.stopCleanly()
			}
			places[0].removeMember(places[2])
			if state == "down" {
				w = gone.start()
			}
			// Beside the news of its removal, etcd may trip over its own absence from the list of members, which is fatal.
			says := map[int]string{70: "removed from its cluster", 2: "failed to find local ID in cluster members"}
			status := w.exit(soon)
			require.Contains(t, says, status)
			gone.assertExplained(w, says[status])
			assert.False(t, gone.clean())
		})
	}
}

// The volumes of two clusters whose members have the same names and addresses are mixed up.
func TestFaultDataOfAnotherClusterAreNamedAsTheReason(t *testing.T) {
	t.Parallel()
	trial(t, "opening", "data of another cluster")
	places, runs := cluster(t, 2)
	for _, w := range runs {
		w.stopCleanly()
	}
	old := filepath.Join(places[1].dir, "old")
	require.NoError(t, os.Rename(places[1].data(), old))
	require.NoError(t, os.RemoveAll(places[0].data()))
	for i, p := range places {
		p.config["initial-cluster-token"] = "another"
		runs[i] = p.start()
	}
	for _, w := range runs {
		w.awaitReady()
	}
	runs[1].stopCleanly()
	places[1].takeData(old)
	w := places[1].start()
	eventually(t, "the reason is told", func() bool {
		_, body := w.request(http.MethodGet, "/lifecycle")
		return strings.Contains(body, "is ignored by a peer whose cluster has another ID")
	})
	assert.Equal(t, http.StatusServiceUnavailable, w.readyz())
	status, took := w.stop(syscall.SIGTERM)
	assert.Less(t, took, stopBudget)
	w.assertTruth(status)
}

// removeMember has this place's etcd remove the other's, once it agrees that the cluster is healthy.
func (p *place) removeMember(other *place) {
	p.t.Helper()
	client, id := p.etcd(), p.memberID(other)
	eventually(p.t, "the member is removed", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := client.MemberRemove(ctx, id)
		return err == nil || errors.Is(err, rpctypes.ErrMemberNotFound)
	})
}

// memberID is what this place's etcd calls the other's.
func (p *place) memberID(other *place) uint64 {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	list, err := p.etcd().MemberList(ctx)
	require.NoError(p.t, err)
	for _, member := range list.Members {
		if member.Name == other.config["name"] {
			return member.ID
		}
	}
	require.FailNow(p.t, "no such member")
	return 0
}
