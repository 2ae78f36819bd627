package endtoend_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/cmd/suites/harness"
)

// newPodWithStore returns a pod without a sidecar whose backups are stored in a directory.
func newPodWithStore(t *testing.T) *harness.Pod {
	t.Helper()
	p := harness.NewStandalonePod(t, nil)
	store := filepath.Join(p.Dir, "mount", "store")
	require.NoError(t, os.MkdirAll(store, 0o700))
	p.Flags = append(p.Flags, "--backup-store=file://"+store)
	return p
}

// shutdownStored stops a run and requires it to report that the store contains all writes.
func shutdownStored(run *harness.Run) {
	run.T.Helper()
	run.Shutdown()
	run.AwaitLine(harness.Line{"message": "backups: all acknowledged writes are in the store"})
}

// preserved returns the paths of the copies of the data directory that recovery has preserved.
func preserved(p *harness.Pod) []string {
	p.T.Helper()
	found, err := filepath.Glob(p.DataDir() + ".aside-*")
	require.NoError(p.T, err)
	return found
}

// A single member whose volume is lost or corrupt must be restored without losing a write. The test also checks the
// log, the metrics, the status and that existing watches end.
func TestRestore_singleMember(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		action  func(p *harness.Pod)
		message string
		cause   string
		copies  int // number of copies of the data that recovery preserves
	}{
		"lost volume": {func(p *harness.Pod) {
			require.NoError(p.T, os.RemoveAll(p.Volume))
			require.NoError(p.T, os.Mkdir(p.Volume, 0o700))
		}, "the volume is empty; the cluster is restored to revision", "empty", 0},
		"corrupt database": {func(p *harness.Pod) {
			harness.CorruptFile(p.T, p.DBPath(), 0, 16<<10)
		}, "the volume is damaged; the cluster is restored to revision", "corrupt", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPodWithStore(t)
			first := p.StartReady()
			p.Put("key", "value")
			before := p.Revision()
			shutdownStored(first)
			test.action(p)

			second := p.StartReady()
			second.AwaitLine(harness.Line{"message": test.message, "level": "warn"})
			second.AwaitLine(harness.Line{"message": "nothing is known to be lost", "level": "warn"})
			_, metrics := second.Request(http.MethodGet, "/metrics")
			assert.Contains(t, metrics, `etcd_wrapper_recoveries_total{cause="`+test.cause+`",outcome="restored"} 1`)
			assert.Contains(t, metrics, "\netcd_wrapper_recovery_lost_revisions 0\n")
			assert.Contains(t, metrics, `etcd_wrapper_recovery_state{state="Ready"} 1`)
			assert.Equal(t, "value", p.Get("key"))
			assert.Greater(t, p.Revision(), max(before, archive.Margin), "the restored cluster skips the revisions that the store has reserved, so that none is assigned twice")
			assert.Len(t, preserved(p), test.copies)
			out, _, _ := p.Begin("status", "-v").Wait()
			assert.Contains(t, harness.OneLine(out), "nothing is known to be lost")
			requireCompacted(p, before)
			second.Kill()

			third := p.StartReady()
			assert.Equal(t, "value", p.Get("key"))
			assert.Len(t, preserved(p), test.copies, "the next start preserves no further copy")
			third.Shutdown()
		})
	}
}

// requireCompacted requires that a watch from a revision before the restore ends with an error, so that its client
// lists the keys again.
func requireCompacted(p *harness.Pod, from int64) {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	response, open := <-p.Etcd().Watch(ctx, "key", clientv3.WithRev(from))
	require.True(p.T, open)
	require.ErrorIs(p.T, response.Err(), rpctypes.ErrCompacted)
}

func TestRestore_toATimeOnlyOnce(t *testing.T) {
	t.Parallel()
	p := newPodWithStore(t)
	first := p.StartReady()
	p.Put("key", "good")
	to := p.Revision()
	shutdownStored(first)
	moment := time.Now().UTC().Truncate(time.Second).Add(time.Second) // the first whole second after the last write
	harness.Eventually(t, "the time has passed", func() bool { return time.Now().After(moment) })
	at := moment.Format(time.RFC3339)
	second := p.StartReady()
	p.Put("key", "a mistake")
	second.Kill() // so that the store may lack the last write

	for id, target := range map[string]string{"by-time": "time:" + at, "by-revision": fmt.Sprintf("revision:%d", to)} {
		flags := []string{"--restore-to=" + target, "--restore-id=" + id}
		third := p.StartReady(flags...)
		assert.Equal(t, "good", p.Get("key"))
		p.Put("key", "later")
		shutdownStored(third)
		fourth := p.StartReady(flags...)
		assert.Equal(t, "later", p.Get("key"), "a restore ID that was already used has no effect")
		fourth.Shutdown()
	}
	assert.Len(t, preserved(p), 2)
}

func TestRestore_impossible(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		action  func(p *harness.Pod)
		flags   []string
		status  int
		message []string
	}{
		"a target that is not in the store": {func(*harness.Pod) {}, []string{"--restore-to=revision:4711", "--restore-id=x"}, 78, []string{
			"refusing to start etcd on this data directory: nothing was moved because the requested target cannot be restored: revision 4711 is not available", "restore points: revisions ", "backup list",
		}},
		"--recover=never": {func(p *harness.Pod) { harness.CorruptFile(p.T, p.DBPath(), 0, 16<<10) }, []string{"--recover=never"}, 70, []string{
			"the data could be restored", "has revision 2", "start with --recover=auto",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPodWithStore(t)
			first := p.StartReady()
			p.Put("key", "value")
			shutdownStored(first)
			test.action(p)
			p.ExpectTerminationMessage()

			second := p.Start(test.flags...)
			assert.Equal(t, test.status, second.Exit(harness.Patience))
			for _, part := range test.message {
				assert.Contains(t, terminationMessage(p), part)
			}
			assert.Empty(t, preserved(p), "the data is not moved")
		})
	}
}

// Authentication tokens issued before a restore must be rejected. Otherwise, etcd would delay requests with such a
// token until its log reaches the index at which the token was issued.
func TestRestore_oldTokensAreRejected(t *testing.T) {
	t.Parallel()
	p := newPodWithStore(t)
	p.Config["bcrypt-cost"] = 4 // with the default cost, hashing a password takes a minute on a busy machine
	p.WriteConfigFile()
	run := p.StartReady()
	enableAuthentication(t, p.Etcd(), "root")
	oldClient := harness.NewClient(t, clientv3.Config{Endpoints: []string{p.Endpoint()}, Username: "root", Password: "secret"})
	for range 2 { // in the second round, the tokens are those of a restored cluster
		requireOldTokensRejected(p, oldClient, run)
		run = p.StartReady()
	}
}

func requireOldTokensRejected(p *harness.Pod, oldClient *clientv3.Client, run *harness.Run) {
	t := p.T
	t.Helper()
	for range 50 {
		_, err := oldClient.Put(t.Context(), "key", "value")
		require.NoError(t, err)
	}
	old, err := oldClient.Authenticate(t.Context(), "root", "secret")
	require.NoError(t, err)
	before, err := oldClient.AuthStatus(t.Context())
	require.NoError(t, err)
	shutdownStored(run)
	emptyVolume(p)

	run = p.StartReady()
	newClient := p.Etcd()
	for _, client := range []*clientv3.Client{newClient, oldClient} {
		_, err := client.Authenticate(t.Context(), "root", "secret") // authentication itself requires no token
		require.NoError(t, err, "the client has reconnected")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*harness.Patience)
	defer cancel()
	_, err = etcdserverpb.NewKVClient(newClient.ActiveConnection()).Range(
		metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, old.Token), &etcdserverpb.RangeRequest{Key: []byte("key")})
	require.ErrorContains(t, err, "invalid auth token")
	got, err := oldClient.Get(ctx, "key")
	require.NoError(t, err, "a client that connected before the restore authenticates again")
	assert.Equal(t, "value", string(got.Kvs[0].Value))
	status, err := oldClient.AuthStatus(ctx)
	require.NoError(t, err)
	assert.Greater(t, status.AuthRevision, before.AuthRevision+1000, "the auth revision is higher than that of any token issued before the restore")
	run.Kill()
}
