//go:build bench

package bench_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store/storetest/servers"
	"etcd-wrapper/cmd/suites/harness"
)

var window = flag.Duration("window", 5*time.Minute, "how long the topics cost and footprint run; at least 1h is required to count hourly requests")

// S3 Standard prices in us-east-1, in dollars, and the number of hours in an average month.
const (
	writePrice = 0.005 / 1000
	readPrice  = 0.0004 / 1000
	month      = 730 * time.Hour
)

// payer is a cluster configuration for which the monthly cost of its requests to the store is estimated.
type payer struct {
	what    string // description in the table of results
	members int
	flags   []string
	busy    bool    // whether a client puts ten keys per second
	most    float64 // maximum cost in dollars per month, or 0 for no limit
}

var payers = []payer{
	{what: "one member, idle", members: 1, most: 0.6},
	{what: "three members, idle", members: 3},
	{what: "one member, busy, --backup-interval=1s", members: 1, flags: []string{"--backup-interval=1s"}, busy: true},
	{what: "three members, busy, --backup-interval=1s", members: 3, flags: []string{"--backup-interval=1s"}, busy: true},
	{what: "one member, busy, --backup-interval=5s", members: 1, flags: []string{"--backup-interval=5s"}, busy: true},
	{what: "one member, busy, --backup-interval=10s", members: 1, flags: []string{"--backup-interval=10s"}, busy: true},
	{what: "one member, busy, --backup-interval=60s", members: 1, flags: []string{"--backup-interval=60s"}, busy: true},
}

// requestCosts counts the requests that members send to an S3 server, and estimates their monthly cost. All
// configurations run at the same time, because the counts do not depend on speed.
func requestCosts(t *testing.T) (rows []row) {
	require.NoError(t, flag.Set("servers", "true"), "this topic requires an S3 server, which -servers enables")
	server, counted := servers.S3(t), make([]*counter, len(payers))
	for i, each := range payers {
		counted[i] = &counter{server: server}
		bucket := fmt.Sprint("payer-", i)
		servers.MakeS3Bucket(t, server, bucket)
		each.start(t, servers.S3URL(counted[i].serve(t), bucket, "main"))
	}
	before := make([][2]int64, len(payers))
	for i := range payers {
		before[i] = counted[i].requests()
	}
	time.Sleep(*window)
	for i, each := range payers {
		rows = append(rows, each.row(before[i], counted[i].requests()))
	}
	return rows
}

// A counter is a proxy that counts the requests to an S3 server by price class.
type counter struct {
	server *url.URL
	writes atomic.Int64 // puts, multipart upload parts, and listings
	reads  atomic.Int64
}

// serve starts the proxy and returns its endpoint.
func (c *counter) serve(t *testing.T) string {
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(c.server)
		r.Out.Host = r.In.Host // keep the host, because the signature covers it
	}}
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.count(r)
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(listener.Close)
	return listener.URL
}

// count counts a request in its S3 price class. Deletions are free.
func (c *counter) count(r *http.Request) {
	switch {
	case r.Method == http.MethodDelete:
	case r.Method == http.MethodPut, r.Method == http.MethodPost, r.URL.Query().Has("list-type"), r.URL.Query().Has("uploads"):
		c.writes.Add(1)
	default:
		c.reads.Add(1)
	}
}

// requests returns the number of writes and reads so far.
func (c *counter) requests() [2]int64 { return [2]int64{c.writes.Load(), c.reads.Load()} }

// start starts the members and waits until one of them reports that a full snapshot has passed its test restore,
// because the requests of that test must not be counted. It does not wait for all members: the backup writer reports
// the test immediately, but the other members only learn of it when they list the store an hour later.
func (p payer) start(t *testing.T, store string) {
	t.Helper()
	withStore := &side{
		command: func(pod *harness.Pod) *exec.Cmd {
			return exec.Command(harness.Program, pod.Arguments(append(p.flags, "--backup-store="+store)...)...)
		},
		healthy: wrapped.healthy,
	}
	pods := harness.StandaloneMembers(t, p.members)
	var runs []*process
	for _, pod := range pods {
		pod.Env = servers.S3Env()
		runs = append(runs, withStore.launch(t, pod))
	}
	for _, run := range runs {
		run.await(http.StatusOK)
	}
	verified := func(run *process) bool { return run.backup().LastVerification != nil }
	require.Eventually(t, func() bool { return slices.ContainsFunc(runs, verified) }, 3*harness.Patience, 100*time.Millisecond)
	if p.busy {
		go p.write(t.Context(), pods[0])
	}
}

// write puts a key ten times a second until the test ends.
func (p payer) write(ctx context.Context, pod *harness.Pod) {
	client := pod.Etcd()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
			_ = putKilobyte(ctx, client, n) // failed puts do not matter, because only store requests are counted
		}
	}
}

func (p payer) row(before, after [2]int64) row {
	months := float64(month) / float64(*window)
	writes, reads := float64(after[0]-before[0])*months, float64(after[1]-before[1])*months
	cost := row{
		what:    fmt.Sprintf("requests per month, %s: %.0f writes and listings, %.0f reads, $", p.what, writes, reads),
		wrapper: series{writes*writePrice + reads*readPrice},
	}
	if p.most > 0 {
		cost = cost.atMost(p.most, "$")
	}
	return cost
}
