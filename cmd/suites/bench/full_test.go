//go:build bench

package bench_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

var backupMB = flag.Int("backup-mb", 2048, "size of the database that a full backup is made of")

const (
	fullPairs = 5               // number of measurements, both with and without a full snapshot
	fullCalms = 40              // rounds of puts (16 s) after a compaction, because compactions slow down puts
	fullLimit = 5 * time.Minute // timeout for a full snapshot and its test restore

	fillValue = 8000 // value size in bytes; two rows fill four pages
	fillOnce  = 10   // values per transaction

	calm        = 130 * time.Second // longer than the 2 minutes between forced garbage collections
	calmAtLast  = 6 * time.Minute
	fallsEnough = 1.0 // MiB
)

// fullBackup fills a database and takes full snapshots of it, first without writers and then with many.
func fullBackup(t *testing.T) []row {
	p := harness.NewStandalonePod(t, nil)
	idle := series{filled(t, p)}
	r := backedUp.start(t, p)
	r.awaitProof(t, 1)
	r.calm()
	made := r.askForFull(t)
	peak := series{r.peak(t, made)}
	r.awaitProof(t, 2)
	clients := connect(p)
	drive(t, clients, put) // opens the connections
	var with, proving, without series
	for n := range fullPairs {
		compact(t, clients[0])
		for range fullCalms {
			drive(t, clients, put)
		}
		longest, rounds := longestPut(t, clients, r.askForFull(t), 0)
		with = append(with, longest)
		proven := func() bool { return len(r.held()) >= 3+n && r.proven() }
		longest, _ = longestPut(t, clients, proven, 0)
		proving = append(proving, longest)
		longest, _ = longestPut(t, clients, func() bool { return true }, rounds)
		without = append(without, longest)
	}
	size := fmt.Sprintf("%.1f GB", float64(*backupMB)/1024)
	return []row{
		row{what: "full of " + size + ": read transaction held, ms", wrapper: r.held()}.neverMoreThan(2000, "ms"),
		row{what: "longest put: without a full, and during one of " + size + ", ms", plain: without, wrapper: with}.timesAtMost(1.5, "without"),
		row{what: "longest put: without, and during its test restore, ms", plain: without, wrapper: proving}.timesAtMost(2, "without"),
		row{what: "anonymous memory, database of " + size + ": idle without backups, and most with a full, MiB", plain: idle, wrapper: peak}.costsAtMost(32, "MiB"),
	}
}

// compact frees the space used by previous puts to keep the database at the same size.
func compact(t *testing.T, client *clientv3.Client) {
	t.Helper()
	reply, err := client.Get(t.Context(), "any")
	require.NoError(t, err)
	_, err = client.Compact(t.Context(), reply.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
}

// filled fills a pod's database with random content and returns the anonymous memory, in MiB, of an idle process that
// serves it.
func filled(t *testing.T, p *harness.Pod) float64 {
	t.Helper()
	// Keep the raft log short, because etcd would otherwise hold the latest values in memory twice.
	p.Config["snapshot-count"], p.Config["snapshot-catchup-entries"] = 50, 10
	r := apart.start(t, p)
	fillRows(t, connect(p), *backupMB<<20)
	r.stop()
	delete(p.Config, "snapshot-count")
	delete(p.Config, "snapshot-catchup-entries")
	r = apart.start(t, p)
	defer r.stop()
	return r.calm()
}

func fillRows(t *testing.T, clients []*clientv3.Client, bytes int) {
	t.Helper()
	var writers sync.WaitGroup
	defer writers.Wait()
	for i, client := range clients {
		writers.Go(func() {
			for n := range bytes / len(clients) / (fillValue * fillOnce) {
				if _, err := client.Txn(context.Background()).Then(randomPuts(i, n)...).Commit(); !assert.NoError(t, err) {
					return
				}
			}
		})
	}
}

func randomPuts(writer, n int) []clientv3.Op {
	puts := make([]clientv3.Op, fillOnce)
	for i := range puts {
		content := make([]byte, fillValue)
		_, _ = rand.Read(content) // never fails
		puts[i] = clientv3.OpPut(fmt.Sprintf("big-%d-%d-%d", writer, n, i), string(content))
	}
	return puts
}

// calm waits until the process has stopped returning memory to the system, and then returns its anonymous memory in
// MiB.
func (r *process) calm() float64 {
	least, since := r.memory("RssAnon"), time.Now()
	for began := time.Now(); time.Since(since) < calm && time.Since(began) < calmAtLast; <-time.After(time.Second) {
		if now := r.memory("RssAnon"); now < least-fallsEnough {
			least, since = now, time.Now()
		}
	}
	return least
}

// peak samples the anonymous memory until over returns true, and returns the maximum in MiB.
func (r *process) peak(t *testing.T, over func() bool) (most float64) {
	t.Helper()
	for deadline := time.Now().Add(fullLimit); !over(); <-time.After(lookEvery) {
		most = max(most, r.memory("RssAnon"))
		require.True(t, time.Now().Before(deadline), "no full snapshot was created")
	}
	return most
}

// awaitProof waits until the given number of full snapshots exist and the latest one has passed its restore test, so
// that nothing but puts is running.
func (r *process) awaitProof(t *testing.T, fulls int) {
	t.Helper()
	for deadline := time.Now().Add(fullLimit); len(r.held()) < fulls || !r.proven(); <-time.After(lookEvery) {
		require.True(t, time.Now().Before(deadline), "no full snapshot passed its test restore")
	}
}

func (r *process) proven() bool {
	backup := r.backup()
	full, proof := backup.LastFullSnapshot, backup.LastVerification
	return full != nil && proof != nil && proof.Revision == full.Revision && proof.At.After(full.At)
}

// longestPut runs rounds of puts until over returns true, but at least the given number, and returns the duration of
// the slowest put in milliseconds.
func longestPut(t *testing.T, clients []*clientv3.Client, over func() bool, least int) (milliseconds float64, rounds int) {
	t.Helper()
	var longest atomic.Int64
	for ; rounds < least || !over(); rounds++ {
		drive(t, clients, func(ctx context.Context, client *clientv3.Client, n int) error {
			start := time.Now()
			err := put(ctx, client, n)
			for took, most := int64(time.Since(start)), longest.Load(); took > most && !longest.CompareAndSwap(most, took); most = longest.Load() {
			}
			return err
		})
	}
	return float64(longest.Load()) / float64(time.Millisecond), rounds
}

// askForFull requests a full snapshot and returns a function that reports whether it has finished.
func (r *process) askForFull(t *testing.T) (made func() bool) {
	t.Helper()
	var done atomic.Bool
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		defer done.Store(true)
		assert.NoError(t, r.makeFull())
	}()
	t.Cleanup(func() { <-finished })
	return done.Load
}

func (r *process) makeFull() error {
	request, err := http.NewRequest(http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d/backup", r.pod.Port), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var last struct{ Error string }
	for lines := json.NewDecoder(response.Body); lines.More(); {
		if err := lines.Decode(&last); err != nil || last.Error != "" {
			return fmt.Errorf("no full was made: %s %w", last.Error, err)
		}
	}
	return nil
}

// held returns, in milliseconds, how long each full snapshot's read transaction was open according to the log.
func (r *process) held() (all series) {
	r.t.Helper()
	text, err := os.ReadFile(r.log)
	require.NoError(r.t, err)
	for raw := range strings.Lines(string(text)) {
		var line struct {
			Message string
			Held    float64 `json:"paused_ms"`
		}
		if json.Unmarshal([]byte(raw), &line) == nil && strings.Contains(line.Message, "full snapshot stored") {
			all = append(all, line.Held)
		}
	}
	require.NotContains(r.t, all, 0.0, "each line says how long the transaction was open")
	return all
}
