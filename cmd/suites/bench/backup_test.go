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
	lookEvery   = 10 * time.Millisecond
)

// backedUp and apart run the wrapper without a sidecar: backedUp stores backups in a directory next to its volume,
// and apart makes no backups.
var (
	backedUp = standaloneSide(func(p *harness.Pod) []string {
		store := filepath.Join(p.Dir, "backups")
		require.NoError(p.T, os.MkdirAll(store, 0o700))
		return []string{"--backup-store=file://" + store}
	})
	apart = standaloneSide(func(*harness.Pod) []string { return nil })
)

func standaloneSide(flags func(p *harness.Pod) []string) *side {
	return &side{
		command: func(p *harness.Pod) *exec.Cmd { return exec.Command(harness.Program, p.Arguments(flags(p)...)...) },
		healthy: wrapped.healthy,
	}
}

// backupsUnderLoad measures plain etcd, the wrapper, and the wrapper with backups, one after another under load, and
// also measures how far the store lags behind.
func backupsUnderLoad(t *testing.T) []row {
	var puts, gets [3]cost
	var behind series
	for pair := range backupPairs {
		t.Run(fmt.Sprint("pair ", pair), func(t *testing.T) {
			runs, clients := startThree(t)
			for round := range loadRounds {
				order := turns(len(runs), pair, round)
				for _, i := range order {
					end := watchStore(t, runs[i], i == 2) // poll every side, so that all bear the CPU cost of polling
					puts[i].measure(t, runs[i], clients[i], putKilobyte)
					behind = append(behind, end()...)
				}
				for _, i := range order {
					gets[i].measure(t, runs[i], clients[i], get)
				}
			}
		})
	}
	return []row{
		{what: "put of 1 KB with backups, 100 clients, a second", plain: puts[0].rate, wrapper: puts[2].rate},
		row{what: "put of 1 KB: without backups, and with them, a second", plain: puts[1].rate, wrapper: puts[2].rate}.shareAtLeast(0.97),
		row{what: "get: without backups, and with them, a second", plain: gets[1].rate, wrapper: gets[2].rate}.shareAtLeast(0.97),
		row{what: "put acknowledged → in the store under that load, p99, ms", wrapper: series{behind.rank(0.99)}}.atMost(1200, "ms"),
	}
}

// turns returns the order in which the sides are measured in a round. The order rotates with each round and is
// reversed for every other pair so that no side benefits from its position.
func turns(sides, pair, round int) []int {
	order := make([]int, sides)
	for turn := range order {
		order[turn] = (turn + round) % sides
	}
	if pair%2 == 1 {
		slices.Reverse(order)
	}
	return order
}

// startPlainAnd starts plain etcd and the other sides as single members.
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
	runs = startPlainAnd(t, apart, backedUp)
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

// watchStore puts a key and polls the status repeatedly until end is called. If has is set, end returns the
// milliseconds that each put took to reach the store.
func watchStore(t *testing.T, r *process, has bool) (end func() series) {
	t.Helper()
	client, stop, all := r.pod.Etcd(), make(chan struct{}), make(chan series)
	go func() {
		var samples []sample
		var took series
		for next, stopped := time.Now(), false; !stopped || len(samples) > 0; <-time.After(lookEvery) {
			select {
			case <-stop:
				stopped = true
			default:
			}
			if !stopped && time.Now().After(next) {
				next = time.Now().Add(sampleEvery)
				if reply, err := client.Put(t.Context(), "sample", ""); err == nil && has {
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
func (r *process) backup() (told facts.Backups) {
	if document := r.document(); document.Backup != nil {
		return *document.Backup
	}
	return told
}

// document returns the process's status document, or an empty one if it cannot be read.
func (r *process) document() (document status.Document) {
	response, err := r.client.Get(strings.TrimSuffix(r.health, "/readyz") + "/lifecycle")
	if err != nil {
		return document
	}
	defer response.Body.Close() // read completely
	_ = json.NewDecoder(response.Body).Decode(&document)
	return document
}
