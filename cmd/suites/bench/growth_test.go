//go:build bench

package bench_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

const growthPairs = 3

// databaseGrowth compares the startup time of plain etcd and of the wrapper on databases of increasing size. The two
// take turns starting with the same database.
func databaseGrowth(t *testing.T) (rows []row) {
	if !*growth {
		return nil
	}
	for _, megabytes := range []int{100, 1000, 4000} {
		p := harness.NewPod(t)
		filled := plain.start(t, p)
		fill(p, t, megabytes)
		filled.stop()
		var start, outside [2]series
		for range growthPairs {
			for i, s := range both {
				r := s.start(t, p)
				start[i] = append(start[i], milliseconds(r.ready.Sub(r.started)))
				outside[i] = append(outside[i], r.outsideEtcd())
				r.stop()
			}
		}
		what := fmt.Sprintf("start → ready, database of %.1f GB", float64(megabytes)/1000)
		rows = append(rows,
			row{what: what + ", ms", plain: start[0], wrapper: start[1]},
			row{what: what + ", excluding etcd's own start, ms", plain: outside[0], wrapper: outside[1]}.costsAtMost(50, "ms"))
	}
	return rows
}

func fill(p *harness.Pod, t *testing.T, megabytes int) {
	t.Helper()
	client, content := p.Etcd(), make([]byte, 1e6)
	for n := range megabytes {
		_, err := rand.Read(content)
		require.NoError(t, err)
		_, err = client.Put(context.Background(), fmt.Sprintf("big-%d", n), string(content))
		require.NoError(t, err)
	}
}
