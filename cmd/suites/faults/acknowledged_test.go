package faults_test

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/store/storetest"
	"etcd-wrapper/backup/store/storetest/servers"
	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/exitcode"
)

var losses = flag.Int("losses", 3, "number of times that a member with --backup-ack=stored loses its volume")

// newPodWithStore returns the pod of a single member that runs with --backup-ack=stored.
func newPodWithStore(t *testing.T, store string, env ...string) *harness.Pod {
	t.Helper()
	p := harness.NewStandalonePod(t, nil)
	p.Flags, p.Env = append(p.Flags, "--backup-store="+store, "--backup-ack=stored"), env
	return p
}

func folderStore(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "mount", "backups")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	return "file://" + dir
}

func TestStored_unreachableStoreIsLikeALostQuorum(t *testing.T) {
	t.Parallel()
	store := folderStore(t)
	p := newPodWithStore(t, store)
	run := p.StartReady()
	p.Put("stored", "value")
	mount := filepath.Dir(strings.TrimPrefix(store, "file://"))
	require.NoError(t, os.Rename(mount, mount+".away"))
	require.ErrorIs(t, p.TryPut("first", "value", time.Second), context.DeadlineExceeded)
	require.Less(t, run.AwaitReadyz(http.StatusServiceUnavailable), 3*time.Second)
	_, reply := run.Request(http.MethodGet, "/readyz")
	require.Contains(t, reply, "clients are waiting because the backup store is not confirming writes: cannot upload segment")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := p.Etcd().Get(ctx, "first", clientv3.WithSerializable())
	require.ErrorIs(t, err, context.DeadlineExceeded, "a write that is not in the store must not be readable")
	result := make(chan error, 1)
	go func() { result <- p.TryPut("second", "value", harness.Patience) }()

	require.NoError(t, os.Rename(mount+".away", mount))
	err, _ = harness.Receive(t, "the second write is acknowledged", result)
	require.NoError(t, err)
	run.AwaitReady()
	require.Equal(t, "value", p.Get("first"))
	run.Shutdown()
}

func TestStored_orderlyStopLeavesTheStoreToTheNextPod(t *testing.T) {
	t.Parallel()
	asReleased, err := harness.BuildAsReleased()
	require.NoError(t, err)
	p := newPodWithStore(t, folderStore(t))
	p.Program = asReleased
	p.StartAndStop("key", "value")
	require.NoError(t, os.RemoveAll(p.Volume))
	run := p.StartReady() // fails if the start waits 90 s for the previous pod, because harness.Patience is shorter
	require.Equal(t, "value", p.Get("key"))
	run.Shutdown()
}

func TestStored_severalMembersAreRefused(t *testing.T) {
	t.Parallel()
	p := newPodWithStore(t, folderStore(t))
	p.WithoutQuorum()
	p.WriteConfigFile()
	run := p.Start()
	require.EqualValues(t, exitcode.BadConfig, run.Exit(harness.Patience))
	require.NotEmpty(t, run.Log.FindText("--backup-ack=stored requires a single-member cluster, but initial-cluster has 3"))
}

// lossesOfStore is the number of volume losses after which a new store is used. Each restore adds a generation that
// all later restores must read, so they become slower.
const lossesOfStore = 4

func TestStored_nothingIsLostWithTheVolume(t *testing.T) {
	t.Parallel()
	none := func(*rand.Rand) {}
	for done := 0; done < *losses; done += lossesOfStore {
		emptyVolumes(t, newPodWithStore(t, folderStore(t)), none, none)
	}
}

// Without its volume, the member must be restored with all acknowledged writes, even if the store's server is slow,
// loses replies, returns errors and drops connections.
func TestStored_nothingIsLostWithTheVolumeOnAServerThatFails(t *testing.T) {
	for _, latency := range []time.Duration{20 * time.Millisecond, 200 * time.Millisecond} {
		t.Run(latency.String(), func(t *testing.T) {
			t.Parallel()
			server := servers.S3(t)
			for done := 0; done < *losses; done += lossesOfStore {
				bucket := fmt.Sprint("stored-", done)
				servers.MakeS3Bucket(t, server, bucket)
				emptyVolumesOn(t, server, bucket, latency)
			}
		})
	}
}

// storingOn is like newPodWithStore but stores the backups in a bucket behind a proxy that adds latency.
func storingOn(t *testing.T, server *url.URL, bucket string, latency time.Duration) (*harness.Pod, *storetest.Proxy) {
	t.Helper()
	proxy := storetest.NewProxy(t, server)
	proxy.Inject(storetest.Faults{Delay: latency})
	return newPodWithStore(t, servers.S3URL(proxy.Endpoint.String(), bucket, "main"), servers.S3Env()...), proxy
}

func emptyVolumesOn(t *testing.T, server *url.URL, bucket string, latency time.Duration) {
	p, proxy := storingOn(t, server, bucket, latency)
	end := func(*rand.Rand) { proxy.Inject(storetest.Faults{Delay: latency}) }
	emptyVolumes(t, p, func(dice *rand.Rand) {
		faults := []storetest.Faults{
			{LostReplies: 1 + dice.IntN(3)}, {Status: http.StatusServiceUnavailable}, {Status: http.StatusInternalServerError}, {UploadLimit: 200},
		}[dice.IntN(4)]
		faults.Delay = latency
		proxy.Inject(faults)
		<-time.After(time.Duration(dice.IntN(700)) * time.Millisecond)
		if dice.IntN(2) > 0 {
			end(dice)
		}
	}, end)
}

// emptyVolumes repeatedly kills or stops the member, and in most cases deletes its volume, while clients read, write
// and watch. The history of all clients' operations must be linearizable. breakStore is called before the member is
// killed, and repairStore after the restart.
func emptyVolumes(t *testing.T, p *harness.Pod, breakStore, repairStore func(dice *rand.Rand)) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, seed))
	run := p.StartReady()
	tr, end := loadHistory(t, []*harness.Pod{p})
	seen := watchTraffic(t, p, tr)
	for range min(*losses, lossesOfStore) {
		before := tr.acknowledged()
		harness.Eventually(t, "clients have written 40 more values", func() bool { return tr.acknowledged() >= before+40 })
		<-time.After(time.Duration(dice.IntN(1000)) * time.Millisecond)
		if dice.IntN(4) > 0 {
			breakStore(dice)
			run.Kill()
		} else {
			run.Shutdown()
		}
		if dice.IntN(4) > 0 {
			require.NoError(t, os.RemoveAll(p.Volume))
		}
		run = p.Start()
		repairStore(dice)
		awaitRestored(run)
	}
	<-time.After(time.Second)
	end()
	for key := range trafficKeys {
		tr.do(p.Etcd(), access{key: fmt.Sprint(key)}, trafficClients)
	}
	seen.apply(t, tr)
	tr.assertLinearizable(t)
	run.Shutdown()
}

// awaitRestored is like Run.AwaitReady, but with a longer timeout, because a restore sends about a hundred requests
// one after the other.
func awaitRestored(run *harness.Run) {
	run.T.Helper()
	require.Eventually(run.T, func() bool { return run.HasEnded() || run.Readyz() == http.StatusOK }, 10*time.Minute, 10*time.Millisecond)
	run.AwaitReady()
}

// acknowledged returns the number of acknowledged writes.
func (tr *traffic) acknowledged() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.writes
}

// A sightings records when a watch first returned each value.
type sightings struct {
	mu   sync.Mutex
	at   map[string]int64 // in nanoseconds since the start of the traffic
	done func()
}

// watchTraffic watches all keys until apply is called. After an error, it starts a new watch and misses the events in
// between, as clients do.
func watchTraffic(t *testing.T, p *harness.Pod, tr *traffic) *sightings {
	t.Helper()
	client, seen := p.Etcd(), &sightings{at: map[string]int64{}}
	ctx, stop := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			for reply := range client.Watch(ctx, "", clientv3.WithPrefix()) {
				seen.mu.Lock()
				for _, event := range reply.Events {
					if _, known := seen.at[string(event.Kv.Value)]; !known {
						seen.at[string(event.Kv.Value)] = time.Since(tr.start).Nanoseconds()
					}
				}
				seen.mu.Unlock()
			}
		}
	})
	seen.done = func() { stop(); watching.Wait() }
	t.Cleanup(seen.done)
	return seen
}

// apply completes the history: a write took effect at the latest when a watch returned its value, even if its client
// got no response. Writes that got no response and that no client has seen are removed, because the checker would have
// to try every possible position for each of them.
func (s *sightings) apply(t *testing.T, tr *traffic) {
	t.Helper()
	s.done()
	require.Greater(t, len(s.at), 20)
	for i := range tr.history {
		asked := tr.history[i].Input.(access)
		if at, shown := s.at[asked.value]; asked.write && shown {
			tr.history[i].Return = min(tr.history[i].Return, at)
		}
	}
	read := map[any]bool{}
	for _, op := range tr.history {
		read[op.Output] = true
	}
	tr.history = slices.DeleteFunc(tr.history, func(op porcupine.Operation) bool {
		return op.Return == math.MaxInt64 && !read[op.Input.(access).value]
	})
}
