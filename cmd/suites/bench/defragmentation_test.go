//go:build bench

package bench_test

import (
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

var (
	defragMB     = flag.Int("defrag-mb", 200, "megabytes in use of each member's database when it is defragmented")
	defragRounds = flag.Int("defrags", 3, "how often three members are defragmented one after the other, by each side")
)

// defragmentation compares the longest time that a writer waits while three members are defragmented one at a time,
// with the leader last. Plain etcd is defragmented by a client, and the wrapper by its own command.
func defragmentation(t *testing.T) []row {
	var gaps, refused [2]series
	for round := range *defragRounds {
		for i, s := range both {
			t.Run(fmt.Sprint("round ", round), func(t *testing.T) {
				members := launchThree(t, s, "--defrag-threshold=never")
				fragment(t, members[0])
				gap, failed := gapDuring(t, members, func() { defragmentAll(t, s, members) })
				gaps[i], refused[i] = append(gaps[i], gap), append(refused[i], failed)
			})
		}
	}
	what := fmt.Sprintf("three members with %d MB in use defragmented one after the other, leader last: ", *defragMB)
	return []row{
		row{what: what + "longest gap of 16 writers, ms", plain: gaps[0], wrapper: gaps[1]}.neverMoreThan(1500, "ms"),
		row{what: what + "writes that failed", plain: refused[0], wrapper: refused[1]}.neverMoreThan(0, "writes"),
	}
}

// fragment fills the database and then deletes half of its content.
func fragment(t *testing.T, r *process) {
	t.Helper()
	fill(r.pod, t, *defragMB)
	client, part := r.pod.Etcd(), strings.Repeat("x", 1e6)
	for n := range *defragMB {
		_, err := client.Put(t.Context(), fmt.Sprintf("garbage-%d", n), part)
		require.NoError(t, err)
	}
	_, err := client.Delete(t.Context(), "garbage-", clientv3.WithPrefix())
	require.NoError(t, err)
	compact(t, client)
}

func defragmentAll(t *testing.T, s *side, members []*process) {
	t.Helper()
	leader, _ := leads(t, members)
	inOrder := slices.Clone(members)
	inOrder[leader], inOrder[len(inOrder)-1] = inOrder[len(inOrder)-1], inOrder[leader]
	for _, r := range inOrder {
		if s == plain {
			_, err := r.pod.Etcd().Defragment(t.Context(), r.pod.Endpoint())
			require.NoError(t, err)
			continue
		}
		r.defragment()
	}
}

// defragment retries until it is this member's turn, and returns once the defragmentation has finished.
func (r *process) defragment() {
	r.t.Helper()
	own := strings.TrimSuffix(r.health, "/readyz")
	deadline := time.Now().Add(5 * time.Minute)
	for asked := false; ; <-time.After(lookEvery) {
		require.True(r.t, time.Now().Before(deadline), "the member is not defragmented")
		if !asked {
			response, err := r.client.Post(own+"/defrag", "", nil)
			require.NoError(r.t, err)
			_ = response.Body.Close()
			asked = response.StatusCode == http.StatusAccepted
		}
		maintenance := r.document().Maintenance
		if maintenance == nil {
			continue
		}
		if maintenance.LastDefragmentation != nil && maintenance.LastDefragmentation.Error == "" && !maintenance.Busy() {
			return
		}
		// The request may have timed out while queued.
		asked = asked && (maintenance.LastDefragmentation == nil || maintenance.LastDefragmentation.Error == "")
	}
}
