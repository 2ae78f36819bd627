package backups_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

const (
	// lifetime is the number of cycles that share a volume and a store.
	lifetime = 50
	writers  = 4
	// maxLag is the age, as measured by a Watch, at which an acknowledged write must be in the store. It consists of
	// the backup interval and the time for two uploads.
	maxLag = 200*time.Millisecond + time.Second
)

// A killedMember is a member that is killed repeatedly. It records the writes that etcd has acknowledged.
type killedMember struct {
	*member
	dice   *rand.Rand
	faults []fault // faults that can be injected into the store

	mu    sync.Mutex
	acked []ack // writes that were acknowledged in the current run
	known state // last acknowledged value of each key; keys are missing if the outcome of the last write is unknown
	count int   // number of acknowledged writes
}

// An ack records when etcd acknowledged a write.
type ack struct {
	revision int64
	since    harness.Watch
}

// TestCrashLoop_losesNothing kills the program at random times. In some cycles, the store fails before the kill, and
// in half of these it is also repaired before the kill.
func TestCrashLoop_losesNothing(t *testing.T) {
	t.Parallel()
	killLoop(t, func(t *testing.T, _ int) *killedMember {
		m := newMember(t)
		m.asUnprivilegedUser()
		return newKilledMember(m, m.folderFaults())
	})
}

// TestServers_crashLoopLosesNothing is like TestCrashLoop_losesNothing but uses an S3 server.
func TestServers_crashLoopLosesNothing(t *testing.T) {
	t.Parallel()
	service := clouds["s3"].start(t)
	killLoop(t, func(t *testing.T, number int) *killedMember {
		proxied, bucket := service.withNewProxy(t), fmt.Sprintf("bucket-%d", number)
		proxied.make(t, bucket)
		return newKilledMember(proxied.member(t, bucket, "--recover=never"), proxyFaults(proxied.proxy))
	})
}

// killLoop runs all cycles in groups, each with its own volume and store.
func killLoop(t *testing.T, newMember func(t *testing.T, number int) *killedMember) {
	for done := 0; done < *cycles; done += lifetime {
		t.Run(fmt.Sprintf("from %d", done), func(t *testing.T) {
			t.Parallel()
			v := newMember(t, done/lifetime)
			for cycle := range min(lifetime, *cycles-done) {
				v.cycle(cycle)
			}
			v.stopAndVerify()
		})
	}
}

func newKilledMember(m *member, faults []fault) *killedMember {
	seed := rand.Uint64()
	m.T.Logf("seed %d", seed)
	return &killedMember{member: m, dice: rand.New(rand.NewPCG(seed, seed)), faults: faults, known: state{}}
}

// cycle runs the program once, kills it, and requires that the store contains the writes that must be in it.
func (v *killedMember) cycle(cycle int) {
	v.T.Helper()
	run := v.Start()
	if v.dice.IntN(5) == 0 {
		v.sleep(run, time.Second)
		run.Kill()
		return
	}
	run.AwaitReady()
	v.acked = nil
	stop := v.startWriting(cycle)
	v.sleep(run, time.Second)
	if v.dice.IntN(3) == 0 {
		v.Begin("backup", "now") // this command may be interrupted by the kill
	}
	v.sleep(run, time.Second)
	var required int64
	if v.dice.IntN(2) == 0 {
		required = v.breakStore(run)
	} else {
		required = v.requiredRevision()
		run.Kill()
	}
	stop()
	assert.GreaterOrEqual(v.T, v.head(v.T), required, "cycle %d: the store contains all writes acknowledged more than maxLag before the kill or the store's failure", cycle)
}

// breakStore makes the store fail, repairs it in half of the cycles, and then kills the program. It returns the
// revision that the store must then contain.
func (v *killedMember) breakStore(run *harness.Run) (required int64) {
	v.T.Helper()
	fault := v.faults[v.dice.IntN(len(v.faults))]
	required = v.requiredRevision()
	require.NoError(v.T, fault.begin())
	v.sleep(run, time.Second)
	repaired := v.dice.IntN(2) == 0
	if repaired {
		require.NoError(v.T, fault.end())
		v.sleep(run, time.Second)
	}
	if v.dice.IntN(3) == 0 {
		run.Signal(syscall.SIGTERM)
		v.sleep(run, 200*time.Millisecond)
	}
	run.Kill()
	if !repaired {
		require.NoError(v.T, fault.end())
	}
	return required
}

// requiredRevision returns the latest revision acknowledged more than maxLag ago, which must be in the store by now.
func (v *killedMember) requiredRevision() (revision int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, each := range v.acked {
		if each.since.Duration() > maxLag {
			revision = max(revision, each.revision)
		}
	}
	return revision
}

// startWriting starts clients that write until stop is called.
func (v *killedMember) startWriting(cycle int) (stop func()) {
	etcd := v.Etcd()
	ctx, cancel := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	for n := range writers {
		random := rand.New(rand.NewPCG(v.dice.Uint64(), 0))
		writing.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				v.change(ctx, etcd, random, fmt.Sprintf("%d/%d", n, random.IntN(500)), fmt.Sprintf("%d/%d", cycle, i))
			}
		})
	}
	return func() {
		cancel()
		writing.Wait()
		_ = etcd.Close() // the server was killed
	}
}

// change puts or deletes a key that no other client changes at the same time. If the request fails, its outcome is
// unknown, so the key is no longer checked.
func (v *killedMember) change(ctx context.Context, etcd *clientv3.Client, random *rand.Rand, key, value string) {
	v.mu.Lock()
	delete(v.known, key)
	v.mu.Unlock()
	do := clientv3.OpPut(key, value)
	if random.IntN(10) == 0 {
		do, value = clientv3.OpDelete(key), ""
	}
	reply, err := etcd.Txn(ctx).Then(do, clientv3.OpPut("copy/"+key, value)).Commit()
	if err != nil {
		return
	}
	if v.acknowledge(reply.Header.Revision, key, value) && random.IntN(100) == 0 {
		_, _ = etcd.Compact(ctx, reply.Header.Revision) // fails if another client has already compacted a later revision
	}
}

// acknowledge records an acknowledged write. It reports whether the first one of this run is so old that it must be in
// the store, because only then may a client compact.
func (v *killedMember) acknowledge(revision int64, key, value string) (mayCompact bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.known[key] = value
	v.count++
	v.acked = append(v.acked, ack{revision, harness.StartWatch()})
	return v.acked[0].since.Duration() > maxLag
}

// sleep waits for a random time, or until the process exits if that is sooner.
func (v *killedMember) sleep(run *harness.Run, most time.Duration) {
	select {
	case <-time.After(time.Duration(v.dice.Int64N(int64(most)))):
	case <-run.Ended:
	}
}

// stopAndVerify runs the program one last time, stops it gracefully, and requires that the store contains all
// acknowledged writes.
func (v *killedMember) stopAndVerify() {
	v.T.Helper()
	run := v.StartReady()
	v.write("the last", "write")
	run.Shutdown()
	inEtcd := ofSnapshot(v.T, v.DBPath())
	for key, value := range v.known {
		require.Equal(v.T, value, inEtcd[key], "etcd has the acknowledged write of %s", key)
	}
	require.Equal(v.T, inEtcd, v.keys(v.T, targetLatest), "the store and etcd have the same keys")
	chains := v.requireSound(v.T)
	v.T.Logf("%d acknowledged writes, none lost; %d chains, %d full snapshots", v.count, len(chains), len(v.generation(v.T).Fulls))
}
