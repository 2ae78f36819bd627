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
	defragMB     = flag.Int("defrag-mb", 200, "size of the data in each member's database, in MB, when it is defragmented")
	defragRounds = flag.Int("defrags", 3, "number of defragmentations of three members, for plain etcd and for the wrapper")
)

// defragmentation measures the longest gap between a client's writes while three members are defragmented one at a
// time, with the leader last. A client defragments plain etcd, and each wrapper defragments its own etcd on request.
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
	what := fmt.Sprintf("defragmentation of three members with %d MB in use, leader last: ", *defragMB)
	return []row{
		row{what: what + "longest write gap of 16 clients, ms", plain: gaps[0], wrapper: gaps[1]}.neverMoreThan(1500, "ms"),
		row{what: what + "failed writes", plain: refused[0], wrapper: refused[1]}.neverMoreThan(0, "writes"),
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
	leader, _ := findLeader(t, members)
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

// defragment requests a defragmentation, which waits while another member is being defragmented, and returns once it
// has finished.
func (r *process) defragment() {
	r.t.Helper()
	own := strings.TrimSuffix(r.health, "/readyz")
	deadline := time.Now().Add(5 * time.Minute)
	for requested := false; ; <-time.After(statusPoll) {
		require.True(r.t, time.Now().Before(deadline), "the defragmentation did not finish")
		if !requested {
			response, err := r.client.Post(own+"/defrag", "", nil)
			require.NoError(r.t, err)
			_ = response.Body.Close()
			requested = response.StatusCode == http.StatusAccepted
		}
		maintenance := r.document().Maintenance
		if maintenance == nil {
			continue
		}
		if maintenance.LastDefragmentation != nil && maintenance.LastDefragmentation.Error == "" && !maintenance.Busy() {
			return
		}
		// Repeat the request if it timed out while it was waiting for another member.
		requested = requested && (maintenance.LastDefragmentation == nil || maintenance.LastDefragmentation.Error == "")
	}
}
