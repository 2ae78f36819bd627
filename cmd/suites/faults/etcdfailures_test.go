package faults_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/cmd/suites/ports"
)

// startFailures lists faults of the data directory or of the disk that prevent a member from starting, although it was
// stopped gracefully.
var startFailures = map[string]struct {
	inject func(p *harness.Pod)
	status int
	reason string
}{
	"corrupt log": {func(p *harness.Pod) { harness.CorruptFile(p.T, wal(p), logEnd(p)-8, 8) }, 70, "crc mismatch"},
	"log without its second half": {func(p *harness.Pod) {
		require.NoError(p.T, os.Truncate(wal(p), logEnd(p)/2))
	}, 70, "was truncated or damaged: it ends at index"},
	"log with a corrupt beginning": {func(p *harness.Pod) { harness.CorruptFile(p.T, wal(p), 0, 64) }, 70, "was lost, truncated or damaged"},
	"corrupt database":             {func(p *harness.Pod) { harness.CorruptFile(p.T, p.DBPath(), 0, 16<<10) }, 2, "invalid database"},
	"database that is not etcd's": {func(p *harness.Pod) {
		require.NoError(p.T, os.WriteFile(p.DBPath(), bytes.Repeat([]byte("not etcd's"), 1000), 0o600))
	}, 2, "invalid database"},
	"data directory is a file": {func(p *harness.Pod) {
		require.NoError(p.T, os.RemoveAll(p.DataDir()))
		require.NoError(p.T, os.WriteFile(p.DataDir(), nil, 0o600))
	}, 70, "not a directory"},
	"log truncated to 100 bytes": {func(p *harness.Pod) { require.NoError(p.T, os.Truncate(wal(p), 100)) }, 70, "was lost, truncated or damaged"},
	"log lost": {func(p *harness.Pod) {
		require.NoError(p.T, os.RemoveAll(filepath.Dir(wal(p))))
	}, 70, "was lost, truncated or damaged"},
	"data of another member of the cluster": {func(p *harness.Pod) {
		other := harness.NewPod(p.T)
		other.Config["name"] = "other-0"
		other.Config["initial-cluster"] = fmt.Sprintf("other-0=http://127.0.0.1:%d", other.PeerPort)
		p.Config["initial-cluster"] = fmt.Sprintf("%s,other-0=http://127.0.0.1:%d", p.Config["initial-cluster"], ports.Lease(p.T))
		other.StartAndStop()
		takeData(p, other.DataDir())
	}, 70, `belongs to member "other-0"`},
	"truncated database":           {func(p *harness.Pod) { require.NoError(p.T, os.Truncate(p.DBPath(), 8192)) }, 70, " is incomplete: truncated"},
	"data of a newer etcd version": {func(p *harness.Pod) { setClusterVersion(p, "3.7.0") }, 78, "start an etcd-wrapper release that runs etcd 3.7"},
	"read-only volume":             {makeReadOnly, 74, syscall.EROFS.Error()},
	"read-only data directory":     {func(p *harness.Pod) { harness.Mount(p.T, "--bind", "-o", "ro", p.DataDir(), p.DataDir()) }, 70, syscall.EROFS.Error()},
}

func TestFaultEtcd_reportsWhyItCannotRun(t *testing.T) {
	t.Parallel()
	for name, problem := range startFailures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trial(t, "opening", name)
			p := harness.NewPod(t)
			p.ExpectTerminationMessage()
			p.StartAndStop()
			problem.inject(p)
			run := p.Start()
			assert.Equal(t, problem.status, run.Exit(harness.Patience))
			assertExplained(p, run, problem.reason)
			assert.Equal(t, problem.status == 74 || problem.status == 78, clean(p), "only starts that end with status 74 or 78 keep the exit record")
		})
	}
}

// logEnd returns the offset at which the last record in the log ends.
func logEnd(p *harness.Pod) int64 {
	p.T.Helper()
	content, err := os.ReadFile(wal(p))
	require.NoError(p.T, err)
	return int64(len(bytes.TrimRight(content, "\x00")))
}

// setClusterVersion changes the cluster version in the database.
func setClusterVersion(p *harness.Pod, version string) {
	p.T.Helper()
	database, err := bolt.Open(p.DBPath(), 0o600, nil)
	require.NoError(p.T, err)
	require.NoError(p.T, database.Update(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("cluster")).Put([]byte("clusterVersion"), []byte(version))
	}))
	require.NoError(p.T, database.Close())
}

func makeReadOnly(p *harness.Pod) { harness.Mount(p.T, "--bind", "-o", "ro", p.Volume, p.Volume) }

func TestFaultFullDisk(t *testing.T) {
	t.Parallel()
	// 200 MiB are enough for a start, in which etcd preallocates two log segments of 64 MB each.
	for name, size := range map[string]int{"on the first start": 1 << 20, "while serving": 200 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trial(t, map[string]string{"on the first start": "opening", "while serving": "serving"}[name], "disk full")
			p := harness.NewPod(t)
			p.ExpectTerminationMessage()
			harness.Mount(t, "-t", "tmpfs", "-o", fmt.Sprintf("size=%d", size), "none", p.Volume)
			run := p.Start()
			if name == "while serving" {
				run.AwaitReady()
				fill(t, filepath.Join(p.Volume, "filler"))
				writeUntilExit(run)
			}
			assert.Contains(t, []int{2, 70}, run.Exit(harness.Patience))
			assertExplained(p, run, syscall.ENOSPC.Error())
			require.False(t, clean(p))
		})
	}
}

// fill writes to a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	require.NoError(t, err)
	defer file.Close() // the write error is checked below
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
}

// writeUntilExit writes until the process has exited. It ignores puts that time out on a busy machine.
func writeUntilExit(run *harness.Run) {
	value := string(make([]byte, 1<<20))
	harness.Eventually(run.T, "the process exits because of the full disk", func() bool {
		_ = run.Pod.TryPut("key", value, harness.StopBudget/5)
		return run.HasEnded()
	})
}

func TestFaultUnusualSettings_areLogged(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(p *harness.Pod) string{
		"force-new-cluster": func(p *harness.Pod) string {
			p.Config["force-new-cluster"] = true
			return "force-new-cluster is set"
		},
		"data and exit record on different volumes": func(p *harness.Pod) string {
			other := t.TempDir()
			harness.Mount(p.T, "-t", "tmpfs", "none", other)
			p.Config["data-dir"] = filepath.Join(other, "new.etcd")
			return "are on different volumes"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trial(t, "configured", name)
			p := harness.NewPod(t)
			warning := set(p)
			run := p.StartReady()
			assert.Len(t, run.Log.Matching(harness.Line{"level": "warn", "message": warning}), 1)
			run.Shutdown()
		})
	}
}

// takeData replaces the pod's data directory with the given one.
func takeData(p *harness.Pod, others string) {
	p.T.Helper()
	require.NoError(p.T, os.RemoveAll(p.DataDir()))
	require.NoError(p.T, os.Rename(others, p.DataDir()))
}
