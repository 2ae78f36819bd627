package datadir

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// A directory is valid at whatever moment etcd was killed.
func TestKilledWhileWriting(t *testing.T) {
	for _, stored := range []int{0, 1, 48, 49, 50, 51, 300} {
		dir := filepath.Join(t.TempDir(), "new.etcd")
		killAfterKey(t, dir, stored, 1000)
		requireValid(t, dir)
		datadirtest.RequireStarts(t, dir, fmt.Sprintf("key-%d", stored))
	}
}

// The database is ahead of the commit index in the WAL: etcd buffers records that only move that index.
func TestKilledWhileIdle(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	killAfterKey(t, dir, 20, 20)
	requireValid(t, dir)
	datadirtest.RequireStarts(t, dir, "key-20")
}

func TestKilledWhileStartingForTheFirstTime(t *testing.T) {
	for _, name := range []string{"", "member", "member/snap", "member/snap/db", "member/wal.tmp", "member/wal"} {
		dir := filepath.Join(t.TempDir(), "new.etcd")
		etcd := etcdChild(t, dir, 0)
		require.NoError(t, etcd.Start())
		require.Eventually(t, func() bool {
			for _, seen := range []string{name, "member/wal"} { // what is there for a moment only may be missed
				if _, err := os.Stat(filepath.Join(dir, seen)); err == nil {
					return true
				}
			}
			return false
		}, 30*time.Second, time.Millisecond)
		kill(t, etcd)
		requireValid(t, dir)
	}
}

func requireValid(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, verdict(t, dir, bootstrap.Sanity))
	require.NoError(t, verdict(t, dir, bootstrap.Full))
}

// killAfterKey starts an etcd that stores keys up to lastKey and kills it when it has stored one of them.
func killAfterKey(t *testing.T, dir string, stored, lastKey int) {
	etcd := etcdChild(t, dir, lastKey)
	stdout, err := etcd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, etcd.Start())
	lines, want := bufio.NewScanner(stdout), fmt.Sprintf("stored %d", stored)
	for lines.Scan() && lines.Text() != want {
	}
	kill(t, etcd)
	require.Equal(t, want, lines.Text())
}

// etcdChild returns an etcd that stores keys up to lastKey, and is killed if nobody does it within a minute.
func etcdChild(t *testing.T, dir string, lastKey int) *exec.Cmd {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, os.Args[0], childEtcd, dir, strconv.Itoa(lastKey))
}

func kill(t *testing.T, process *exec.Cmd) {
	require.NoError(t, process.Process.Kill())
	_ = process.Wait() // "signal: killed"
}
