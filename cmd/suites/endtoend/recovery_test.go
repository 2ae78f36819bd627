package endtoend_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/cmd/suites/harness"
)

// newBackedUpPod has a folder for its backups.
func newBackedUpPod(t *testing.T) (p *harness.Pod, store string) {
	t.Helper()
	p = harness.NewStandalonePod(t, nil)
	store = filepath.Join(p.Dir, "mount", "store")
	require.NoError(t, os.MkdirAll(store, 0o700))
	p.Flags = append(p.Flags, "--backup-store=file://"+store)
	return p, store
}

// stopBackedUp stops a run and sees that the store has everything.
func stopBackedUp(run *harness.Run) {
	run.T.Helper()
	run.StopCleanly()
	run.AwaitLine(harness.Line{"message": "backups: everything that etcd took on is in the store"})
}

// asides are the data directories that were set aside.
func asides(p *harness.Pod) []string {
	p.T.Helper()
	found, err := filepath.Glob(p.DataDir() + ".aside-*")
	require.NoError(p.T, err)
	return found
}

// revision is etcd's.
func revision(p *harness.Pod) int64 {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	reply, err := p.Etcd().Get(ctx, "key")
	require.NoError(p.T, err)
	return reply.Header.Revision
}

func TestAMemberAloneComesBackFromItsStore(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		happens func(p *harness.Pod)
		says    string
		asides  int
	}{
		"when its volume was lost": {func(p *harness.Pod) {
			require.NoError(p.T, os.RemoveAll(p.Volume))
			require.NoError(p.T, os.Mkdir(p.Volume, 0o700))
		}, "the volume is empty; the cluster comes back with revision", 0},
		"when its volume is broken": {func(p *harness.Pod) {
			harness.FlipBits(p.T, p.Database(), 0, 16<<10)
		}, "the volume is broken; the cluster comes back with revision", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := newBackedUpPod(t)
			first := p.StartReady()
			p.Put("key", "value")
			before := revision(p)
			stopBackedUp(first)
			of.happens(p)

			second := p.StartReady()
			second.AwaitLine(harness.Line{"message": of.says, "level": "warn"})
			assert.Equal(t, "value", p.Get("key"))
			assert.Greater(t, revision(p), max(before, archive.Margin), "no revision is handed out twice: the store has so many reserved")
			assert.Len(t, asides(p), of.asides)
			out, _, _ := p.Begin("status").Wait()
			assert.Contains(t, out, "Ready: the restored data are in their place")
			requireCompacted(p, before)
			second.Kill()

			third := p.StartReady()
			assert.Equal(t, "value", p.Get("key"))
			assert.Len(t, asides(p), of.asides, "once is enough")
			third.StopCleanly()
		})
	}
}

// requireCompacted holds that a client which watched before is told to list again.
func requireCompacted(p *harness.Pod, from int64) {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	answer, open := <-p.Etcd().Watch(ctx, "key", clientv3.WithRev(from))
	require.True(p.T, open)
	require.ErrorIs(p.T, answer.Err(), rpctypes.ErrCompacted)
}

func TestAVolumeThatWasPutBackIsBroughtForward(t *testing.T) {
	t.Parallel()
	p, _ := newBackedUpPod(t)
	first := p.StartReady()
	p.Put("key", "old")
	stopBackedUp(first)
	old := filepath.Join(p.Dir, "old")
	require.NoError(t, os.CopyFS(old, os.DirFS(p.Volume)))
	second := p.StartReady()
	p.Put("key", "new")
	stopBackedUp(second)
	require.NoError(t, os.RemoveAll(p.Volume))
	require.NoError(t, os.CopyFS(p.Volume, os.DirFS(old)))

	third := p.StartReady()
	assert.Equal(t, "new", p.Get("key"))
	assert.Len(t, asides(p), 1)
	third.StopCleanly()
}

// What waited for a store that was away is beside the database, and need not be broken with it.
func TestWhatWaitedForTheStoreComesBackWithABrokenVolume(t *testing.T) {
	t.Parallel()
	p, store := newBackedUpPod(t)
	first := p.StartReady()
	p.Put("key", "stored")
	harness.Eventually(t, "it is stored", func() bool { return first.Status().Backup.Revision == revision(p) })
	require.NoError(t, os.Rename(filepath.Dir(store), filepath.Dir(store)+".away"))
	p.Put("key", "waits")
	harness.Eventually(t, "it waits on the volume", func() bool {
		return first.Status().Backup.SpoolBytes > 0
	})
	first.Kill()
	harness.FlipBits(t, p.Database(), 0, 16<<10)
	require.NoError(t, os.Rename(filepath.Dir(store)+".away", filepath.Dir(store)))

	second := p.StartReady()
	assert.Equal(t, "waits", p.Get("key"))
	second.StopCleanly()
}

func TestGoingBackToAMomentHappensOnce(t *testing.T) {
	t.Parallel()
	p, _ := newBackedUpPod(t)
	first := p.StartReady()
	p.Put("key", "good")
	to := revision(p)
	stopBackedUp(first)
	moment := time.Now().UTC().Truncate(time.Second).Add(time.Second) // a full is kept as of the end of its second
	harness.Eventually(t, "that moment has come", func() bool { return time.Now().After(moment) })
	at := moment.Format(time.RFC3339)
	second := p.StartReady()
	p.Put("key", "a mistake")
	second.Kill() // the last write may be on the volume alone

	for id, target := range map[string]string{"by-time": "time:" + at, "by-revision": fmt.Sprintf("revision:%d", to)} {
		flags := []string{"--restore-to=" + target, "--restore-id=" + id}
		third := p.StartReady(flags...)
		assert.Equal(t, "good", p.Get("key"))
		p.Put("key", "later")
		stopBackedUp(third)
		fourth := p.StartReady(flags...)
		assert.Equal(t, "later", p.Get("key"), "the id was used")
		fourth.StopCleanly()
	}
	assert.Len(t, asides(p), 2)
}

func TestWhatCannotComeBackEndsInOneSentence(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		happens func(p *harness.Pod, store string)
		flags   []string
		status  int
		says    []string
	}{
		"a target that is not kept": {func(*harness.Pod, string) {}, []string{"--restore-to=revision:4711", "--restore-id=x"}, 78, []string{
			"revision 4711 is not kept", "which has revisions ", "nothing was moved",
		}},
		"--recover=never": {func(p *harness.Pod, _ string) { harness.FlipBits(p.T, p.Database(), 0, 16<<10) }, []string{"--recover=never"}, 70, []string{
			"it could be brought back", "has revision 2", "start with --recover=auto",
		}},
		"a store that is away": {func(p *harness.Pod, store string) {
			harness.FlipBits(p.T, p.Database(), 0, 16<<10)
			require.NoError(p.T, os.Rename(filepath.Dir(store), filepath.Dir(store)+".away"))
		}, nil, 70, []string{"without the store nothing can be brought back", "see that the store can be reached"}},
		"another cluster's store": {func(p *harness.Pod, _ string) {
			p.Flags = append(p.Flags, keepDatabase(p))
		}, nil, 70, []string{"another cluster's backups are never restored here", "is cluster c1's"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, store := newBackedUpPod(t)
			first := p.StartReady()
			p.Put("key", "value")
			stopBackedUp(first)
			of.happens(p, store)
			p.ExpectTerminationMessage()

			second := p.Start(of.flags...)
			assert.Equal(t, of.status, second.Exit(harness.Patience))
			message, err := os.ReadFile(p.TerminationMessage())
			require.NoError(t, err)
			for _, said := range of.says {
				assert.Contains(t, string(message), said)
			}
			assert.Empty(t, asides(p), "nothing is moved")
		})
	}
}
