//go:build bench

package bench_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/readiness/status"
)

var backupMB = flag.Int("backup-mb", 2048, "size of the database that a full backup is made of")

const (
	backupPairs = 8
	fulls       = 5 // that puts are made during, and the same without
	sampleEvery = 50 * time.Millisecond
	lookEvery   = 10 * time.Millisecond
)

// backedUp is the wrapper without a sidecar, which makes backups into a folder beside its volume, and apart the same without.
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

var kilobyte = strings.Repeat("v", 1<<10)

func putKilobyte(ctx context.Context, client *clientv3.Client, n int) error {
	_, err := client.Put(ctx, fmt.Sprintf("key-%d", n%1000), kilobyte)
	return err
}

// backupsUnderLoad drives plain etcd, the wrapper and the wrapper with backups in turns, and tells how far behind the store is.
func backupsUnderLoad(t *testing.T) []row {
	var puts, gets [3]cost
	var behind series
	for pair := range backupPairs {
		t.Run(fmt.Sprint("pair ", pair), func(t *testing.T) {
			runs, clients := startThree(t)
			for round := range loadRounds {
				order := turns(len(runs), pair, round)
				for _, i := range order {
					end := watchStore(t, runs[i], i == 2) // each, because looking costs something, too
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

// turns is in which order so many are measured: each is first as often as the others, and follows each of them as often.
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

func startThree(t *testing.T) (runs [3]*process, clients [3][]*clientv3.Client) {
	t.Helper()
	for i, s := range []*side{plain, apart, backedUp} {
		p := harness.NewStandalonePod(t, nil)
		p.Config["data-dir"] = p.DataDir() // which plain etcd is told of in its configuration
		runs[i] = s.start(t, p)
		clients[i] = connect(p)
		drive(t, clients[i], put) // connects, and leaves something to get
	}
	return runs, clients
}

// sample is a put that was acknowledged.
type sample struct {
	revision int64
	at       time.Time
}

// watchStore puts a key now and then and asks for the document, until the returned function is called, which returns after
// how many milliseconds each was in the store, if there is one.
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

// backup is what the process tells of its backups.
func (r *process) backup() (told status.Backup) {
	if document := r.document(); document.Backup != nil {
		return *document.Backup
	}
	return told
}

// document is what the process tells of itself; what could not be read is as if nothing was told.
func (r *process) document() (document status.Document) {
	response, err := r.client.Get(strings.TrimSuffix(r.health, "/readyz") + "/lifecycle")
	if err != nil {
		return document
	}
	defer response.Body.Close() // read to its end
	_ = json.NewDecoder(response.Body).Decode(&document)
	return document
}

// fullBackup fills a database, and has it backed up while nobody writes and while everybody does.
func fullBackup(t *testing.T) []row {
	p := harness.NewStandalonePod(t, nil)
	// Otherwise etcd keeps all of them in memory a second time, as entries of its log, and garbage collection hides the rest.
	p.Config["snapshot-count"], p.Config["snapshot-catchup-entries"] = 50, 10
	r := apart.start(t, p)
	fill(p, t, *backupMB)
	r.stop()
	r = apart.start(t, p)
	<-time.After(settled)
	idle := series{r.memory("RssAnon")}
	r.stop()
	r = backedUp.start(t, p)
	peak := r.peak(t, func() bool { told := r.backup(); return told.LastFull != nil && told.BehindRevisions == 0 })
	clients := connect(p)
	drive(t, clients, putKilobyte) // connects
	var with, without series
	for range fulls {
		longest, rounds := duringFull(t, r, clients)
		with = append(with, longest)
		longest, _ = longestPut(t, clients, func(round int) bool { return round >= rounds }) // of as many, the longest
		without = append(without, longest)
	}
	held := r.held()
	size := fmt.Sprintf("%.1f GB", float64(*backupMB)/1024)
	return []row{
		row{what: "full of " + size + ": read transaction held, ms", wrapper: held}.neverMoreThan(2000, "ms"),
		row{what: "longest put: without a full, and during one of " + size + ", ms", plain: without, wrapper: with}.timesAtMost(2, "without"),
		row{what: "anonymous memory, database of " + size + ": idle without backups, and most with a full, MiB", plain: idle, wrapper: series{peak}}.costsAtMost(32, "MiB"),
	}
}

// duringFull is the slowest put of those that are made until a full is in the store, in milliseconds, and in how many rounds.
func duringFull(t *testing.T, r *process, clients []*clientv3.Client) (milliseconds float64, rounds int) {
	t.Helper()
	var made atomic.Bool
	var asked sync.WaitGroup
	defer asked.Wait()
	asked.Go(func() {
		defer made.Store(true)
		assert.NoError(t, askForFull(r))
	})
	return longestPut(t, clients, func(int) bool { return made.Load() })
}

// peak is the most anonymous memory that is seen until done, in MiB.
func (r *process) peak(t *testing.T, done func() bool) (most float64) {
	t.Helper()
	deadline := time.After(5 * time.Minute)
	for !done() {
		most = max(most, r.memory("RssAnon"))
		select {
		case <-time.After(lookEvery):
		case <-deadline:
			require.FailNow(t, "no full is made")
		}
	}
	return most
}

// longestPut is the slowest of a few rounds of puts, in milliseconds, and of more of them until it is over.
func longestPut(t *testing.T, clients []*clientv3.Client, over func(round int) bool) (milliseconds float64, rounds int) {
	t.Helper()
	var longest atomic.Int64
	for ; rounds < loadRounds || !over(rounds); rounds++ {
		drive(t, clients, func(ctx context.Context, client *clientv3.Client, n int) error {
			began := time.Now()
			err := putKilobyte(ctx, client, n)
			for took, most := int64(time.Since(began)), longest.Load(); took > most && !longest.CompareAndSwap(most, took); most = longest.Load() {
			}
			return err
		})
	}
	return float64(longest.Load()) / float64(time.Millisecond), rounds
}

// askForFull has the process make a full and waits for it.
func askForFull(r *process) error {
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

// held is how long the read transactions of fulls were open, in milliseconds, as the log says.
func (r *process) held() (all series) {
	r.t.Helper()
	text, err := os.ReadFile(r.log)
	require.NoError(r.t, err)
	for raw := range strings.Lines(string(text)) {
		var line struct {
			Message string
			Held    float64
		}
		if json.Unmarshal([]byte(raw), &line) == nil && strings.Contains(line.Message, "a full is in the store") {
			all = append(all, line.Held)
		}
	}
	require.NotEmpty(r.t, all)
	return all
}
