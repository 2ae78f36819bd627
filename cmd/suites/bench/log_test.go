//go:build bench

package bench_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcd-wrapper/cmd/suites/harness"
)

const (
	logPairs   = 10
	logEntries = 100_000
)

// inspection compares starts on a long log without a raft snapshot. This is the worst case for the wrapper, which
// inspects the log before it starts etcd. Each start uses a copy of the same data.
func inspection(t *testing.T) []row {
	kept := harness.NewPod(t)
	kept.Config["snapshot-count"] = 10 * logEntries
	filled := plain.start(t, kept)
	fillLog(kept, t)
	filled.stop()
	var outside [2]series
	for range logPairs {
		for i, s := range both {
			p := harness.NewPod(t)
			p.Config["snapshot-count"] = 10 * logEntries
			require.NoError(t, os.CopyFS(p.DataDir(), os.DirFS(kept.DataDir())))
			r := s.start(t, p)
			outside[i] = append(outside[i], r.outsideEtcd())
			r.stop()
			require.NoError(t, os.RemoveAll(p.DataDir()))
		}
	}
	what := "start → ready, log of " + size(t, filepath.Join(kept.DataDir(), "member", "wal")) + " without a raft snapshot, excluding etcd's own start, ms"
	return []row{row{what: what, plain: outside[0], wrapper: outside[1]}.costsAtMost(50, "ms")}
}

// fillLog writes logEntries values of 1 kB.
func fillLog(p *harness.Pod, t *testing.T) {
	t.Helper()
	clients, content := connect(p), strings.Repeat("v", 1000)
	var writers sync.WaitGroup
	for _, client := range clients {
		writers.Go(func() {
			for n := range logEntries / len(clients) {
				_, err := client.Put(context.Background(), fmt.Sprintf("key-%d", n%100), content)
				assert.NoError(t, err)
			}
		})
	}
	writers.Wait()
}

// size returns the disk usage of a file or of all files in a directory.
func size(t *testing.T, path string) string {
	t.Helper()
	blocks := int64(0) // in units of 512 bytes
	require.NoError(t, filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		var stat unix.Stat_t
		err = unix.Stat(path, &stat)
		blocks += stat.Blocks
		return err
	}))
	return fmt.Sprintf("%.2f GB", float64(blocks)*512/1e9)
}
