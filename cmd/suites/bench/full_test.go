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

var backupMB = flag.Int("backup-mb", 2048, "size of the database, in MiB, for the topics backup full and restore")

const (
	fullPairs = 5               // number of measurements, both with and without a full snapshot
	fullCalms = 40              // rounds of puts (16 s) before a measurement, because a compaction slows down puts
	fullLimit = 5 * time.Minute // timeout for a full snapshot and its test restore

	fillValue = 8000 // value size in bytes; two rows fill four pages of the database
	fillOnce  = 10   // values per transaction

	stableTime    = 130 * time.Second // without a decrease, the memory is stable; Go collects garbage every 2 minutes
	stableTimeout = 6 * time.Minute   // after this time, the memory is measured even if it is not stable
	stableChange  = 1.0               // in MiB; smaller decreases are ignored
)

// fullBackup fills a database and takes full snapshots of it. It measures the process's memory without writers, and
// then the duration of puts by many clients.
func fullBackup(t *testing.T) []row {
	p := harness.NewStandalonePod(t, nil)
	idle := series{filled(t, p)}
	r := backedUp.start(t, p)
	r.awaitVerified(t, 1)
	r.stableMemory()
	finished := r.requestFull(t)
	peak := series{r.peak(t, finished)}
	r.awaitVerified(t, 2)
	clients := connect(p)
	drive(t, clients, put) // open the connections
	var with, verifying, without series
	for n := range fullPairs {
		compact(t, clients[0])
		for range fullCalms {
			drive(t, clients, put)
		}
		longest, rounds := longestPut(t, clients, r.requestFull(t), 0)
		with = append(with, longest)
		verified := func() bool { return len(r.readTimes()) >= 3+n && r.isVerified() }
		longest, _ = longestPut(t, clients, verified, 0)
		verifying = append(verifying, longest)
		longest, _ = longestPut(t, clients, func() bool { return true }, rounds)
		without = append(without, longest)
	}
	size := fmt.Sprintf("%.1f GB", float64(*backupMB)/1024)
	return []row{
		row{what: "full snapshot of " + size + ": duration of the read transaction, ms", wrapper: r.readTimes()}.neverMoreThan(2000, "ms"),
		row{what: "longest put: without and during a full snapshot of " + size + ", ms", plain: without, wrapper: with}.timesAtMost(1.5, "without"),
		row{what: "longest put: without and during the snapshot's test restore, ms", plain: without, wrapper: verifying}.timesAtMost(2, "without"),
		row{what: "anonymous memory, database of " + size + ": idle without backups, and maximum during a full snapshot, MiB", plain: idle, wrapper: peak}.costsAtMost(32, "MiB"),
	}
}

// compact frees the space used by previous puts, so that the database always has the same size.
func compact(t *testing.T, client *clientv3.Client) {
	t.Helper()
	reply, err := client.Get(t.Context(), "any")
	require.NoError(t, err)
	_, err = client.Compact(t.Context(), reply.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
}

// filled fills a pod's database with random content, and returns the anonymous memory, in MiB, of an idle process that
// serves the database without backups.
func filled(t *testing.T, p *harness.Pod) float64 {
	t.Helper()
	// Keep the raft log short, because etcd would otherwise hold the latest values in memory twice.
	p.Config["snapshot-count"], p.Config["snapshot-catchup-entries"] = 50, 10
	r := notBackedUp.start(t, p)
	fillRows(t, connect(p), *backupMB<<20)
	r.stop()
	delete(p.Config, "snapshot-count")
	delete(p.Config, "snapshot-catchup-entries")
	r = notBackedUp.start(t, p)
	defer r.stop()
	return r.stableMemory()
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

// stableMemory waits until the process has stopped returning memory to the system, and then returns its anonymous
// memory in MiB.
func (r *process) stableMemory() float64 {
	least, since := r.memory("RssAnon"), time.Now()
	for start := time.Now(); time.Since(since) < stableTime && time.Since(start) < stableTimeout; <-time.After(time.Second) {
		if now := r.memory("RssAnon"); now < least-stableChange {
			least, since = now, time.Now()
		}
	}
	return least
}

// peak samples the process's anonymous memory until finished returns true, and returns the maximum in MiB.
func (r *process) peak(t *testing.T, finished func() bool) (most float64) {
	t.Helper()
	for deadline := time.Now().Add(fullLimit); !finished(); <-time.After(statusPoll) {
		most = max(most, r.memory("RssAnon"))
		require.True(t, time.Now().Before(deadline), "no full snapshot was created")
	}
	return most
}

// awaitVerified waits until the given number of full snapshots exist and the latest one has passed its test restore.
// Afterwards, no snapshot and no test restore is running.
func (r *process) awaitVerified(t *testing.T, fulls int) {
	t.Helper()
	for deadline := time.Now().Add(fullLimit); len(r.readTimes()) < fulls || !r.isVerified(); <-time.After(statusPoll) {
		require.True(t, time.Now().Before(deadline), "no full snapshot passed its test restore")
	}
}

// isVerified reports whether the latest full snapshot has passed its test restore.
func (r *process) isVerified() bool {
	backup := r.backup()
	full, verification := backup.LastFullSnapshot, backup.LastVerification
	return full != nil && verification != nil && verification.Revision == full.Revision && verification.At.After(full.At)
}

// longestPut runs rounds of puts until finished returns true, but at least minRounds, and returns the duration of the
// slowest put in milliseconds.
func longestPut(t *testing.T, clients []*clientv3.Client, finished func() bool, minRounds int) (milliseconds float64, rounds int) {
	t.Helper()
	var longest atomic.Int64
	for ; rounds < minRounds || !finished(); rounds++ {
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

// requestFull requests a full snapshot and returns a function that reports whether the snapshot has been stored.
func (r *process) requestFull(t *testing.T) (finished func() bool) {
	t.Helper()
	var done atomic.Bool
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		defer done.Store(true)
		assert.NoError(t, r.makeFull())
	}()
	t.Cleanup(func() { <-returned })
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
			return fmt.Errorf("full snapshot failed: %s %w", last.Error, err)
		}
	}
	return nil
}

// readTimes returns, in milliseconds, how long each full snapshot's read transaction was open according to the log.
func (r *process) readTimes() (all series) {
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
	require.NotContains(r.t, all, 0.0, "each log line contains the duration of the read transaction")
	return all
}
