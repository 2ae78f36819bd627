//go:build bench

package bench_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/readiness/status"
)

const (
	backupPairs = 8
	sampleEvery = 50 * time.Millisecond
	statusPoll  = 10 * time.Millisecond
)

// backedUp and notBackedUp run the wrapper without a sidecar. backedUp stores backups in a directory next to the
// member's volume, and notBackedUp makes no backups.
var (
	backedUp = standaloneSide(func(p *harness.Pod) []string {
		store := filepath.Join(p.Dir, "backups")
		require.NoError(p.T, os.MkdirAll(store, 0o700))
		return []string{"--backup-store=file://" + store}
	})
	notBackedUp = standaloneSide(func(*harness.Pod) []string { return nil })
)

func standaloneSide(flags func(p *harness.Pod) []string) *side {
	return &side{
		command: func(p *harness.Pod) *exec.Cmd { return exec.Command(harness.Program, p.Arguments(flags(p)...)...) },
		healthy: wrapped.healthy,
	}
}

// backupsUnderLoad loads plain etcd, the wrapper without backups, and the wrapper with backups, one after another. It
// also measures the time from a put's acknowledgement until the put is in the backup store.
func backupsUnderLoad(t *testing.T) []row {
	var puts, gets [3]cost
	var lag series
	for pair := range backupPairs {
		t.Run(fmt.Sprint("pair ", pair), func(t *testing.T) {
			runs, clients := startThree(t)
			for round := range loadRounds {
				order := measurementOrder(len(runs), pair, round)
				for _, i := range order {
					end := measureLag(t, runs[i], i == 2) // poll every process, because polling costs CPU time
					puts[i].measure(t, runs[i], clients[i], putKilobyte)
					lag = append(lag, end()...)
				}
				for _, i := range order {
					gets[i].measure(t, runs[i], clients[i], get)
				}
			}
		})
	}
	return []row{
		{what: "1 KB puts per second with backups, 100 clients", plain: puts[0].rate, wrapper: puts[2].rate},
		row{what: "1 KB puts per second: without and with backups", plain: puts[1].rate, wrapper: puts[2].rate}.shareAtLeast(0.97),
		row{what: "gets per second: without and with backups", plain: gets[1].rate, wrapper: gets[2].rate}.shareAtLeast(0.97),
		row{what: "put acknowledged → in the store, under the same load, p99, ms", wrapper: series{lag.rank(0.99)}}.atMost(1200, "ms"),
	}
}

// measurementOrder returns the order in which the sides are measured in a round. The order rotates with each round
// and is reversed for every other pair so that no side benefits from its position.
func measurementOrder(sides, pair, round int) []int {
	order := make([]int, sides)
	for turn := range order {
		order[turn] = (turn + round) % sides
	}
	if pair%2 == 1 {
		slices.Reverse(order)
	}
	return order
}

// startPlainAnd starts plain etcd and the given sides, each as a single-member cluster.
func startPlainAnd(t *testing.T, sides ...*side) (runs []*process) {
	t.Helper()
	for _, s := range append([]*side{plain}, sides...) {
		p := harness.NewStandalonePod(t, nil)
		p.Config["data-dir"] = p.DataDir() // plain etcd reads the setting from its configuration
		runs = append(runs, s.start(t, p))
	}
	return runs
}

func startThree(t *testing.T) (runs []*process, clients [][]*clientv3.Client) {
	t.Helper()
	runs = startPlainAnd(t, notBackedUp, backedUp)
	for _, run := range runs {
		connected := connect(run.pod)
		drive(t, connected, put) // open the connections and write the keys that are read later
		clients = append(clients, connected)
	}
	return runs, clients
}

// A sample is an acknowledged put.
type sample struct {
	revision int64
	at       time.Time
}

// measureLag repeatedly puts a key and polls the status until end is called. If hasBackups is set, end returns how
// long each put took to reach the backup store, in milliseconds.
func measureLag(t *testing.T, r *process, hasBackups bool) (end func() series) {
	t.Helper()
	client, stop, all := r.pod.Etcd(), make(chan struct{}), make(chan series)
	go func() {
		var samples []sample
		var took series
		for next, stopped := time.Now(), false; !stopped || len(samples) > 0; <-time.After(statusPoll) {
			select {
			case <-stop:
				stopped = true
			default:
			}
			if !stopped && time.Now().After(next) {
				next = time.Now().Add(sampleEvery)
				if reply, err := client.Put(t.Context(), "sample", ""); err == nil && hasBackups {
					samples = append(samples, sample{reply.Header.Revision, time.Now()})
				}
			}
			for stored := r.backup().Revision; len(samples) > 0 && samples[0].revision <= stored; samples = samples[1:] {
				took = append(took, milliseconds(time.Since(samples[0].at)))
			}
		}
		all <- took
	}()
	return func() series {
		close(stop)
		return <-all
	}
}

// backup returns the backup section of the process's status.
func (r *process) backup() (backups facts.Backups) {
	if document := r.document(); document.Backup != nil {
		return *document.Backup
	}
	return backups
}

// document returns the process's status document, or an empty one if it cannot be read.
func (r *process) document() (document status.Document) {
	response, err := r.client.Get(strings.TrimSuffix(r.health, "/readyz") + "/lifecycle")
	if err != nil {
		return document
	}
	defer response.Body.Close() // an error cannot affect the decoded document
	_ = json.NewDecoder(response.Body).Decode(&document)
	return document
}
