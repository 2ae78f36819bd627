package recovery_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// killWithSpool runs a member, kills it while its last write is in the spool but not in the store, and then makes the
// store reachable again.
func killWithSpool(p *harness.Pod, d depot) {
	p.T.Helper()
	run := p.StartReady()
	p.Put("key", "in the store")
	run.AwaitStored(p.Revision())
	d.disconnect()
	before := run.Status().Backup.SpoolBytes
	p.Put("key", "acknowledged while the store is unreachable")
	harness.Eventually(p.T, "the write is in the spool", func() bool { return run.Status().Backup.SpoolBytes > before })
	run.Kill()
	d.reconnect()
}

func newSpoolPod(t *testing.T) (*harness.Pod, depot) {
	t.Helper()
	p, d := harness.NewStandalonePod(t, nil), newDepot(t)
	p.Flags = append(p.Flags, d.flag())
	return p, d
}

func TestSpool_survivesLostData(t *testing.T) {
	for name, disaster := range map[string]func(p *harness.Pod){
		"corrupt database":           breakDatabase,
		"data directory moved aside": func(p *harness.Pod) { require.NoError(p.T, os.Rename(p.DataDir(), p.DataDir()+".mine")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, d := newSpoolPod(t)
			killWithSpool(p, d)
			disaster(p)
			p.StartReady()
			assert.Equal(t, "acknowledged while the store is unreachable", p.Get("key"))
			left, err := filepath.Glob(filepath.Join(p.Volume, "backup.spool.aside-*"))
			require.NoError(t, err)
			assert.Empty(t, left, "no part of the spool had to be preserved, because all of it is in the store")
		})
	}
}

// A user may replace the data with an old copy while writes are only in the spool. These writes must be uploaded and
// restored, although the copy does not contain them.
func TestSpool_survivesManualRestore(t *testing.T) {
	t.Parallel()
	p, d := newSpoolPod(t)
	run := p.StartReady()
	p.Put("key", "older")
	run.Shutdown()
	old := filepath.Join(p.Dir, "old")
	copyDirectory(p, p.DataDir(), old)
	killWithSpool(p, d)
	require.NoError(t, os.RemoveAll(p.DataDir()))
	copyDirectory(p, old, p.DataDir())
	p.StartReady()
	assert.Equal(t, "acknowledged while the store is unreachable", p.Get("key"))
}
