package datadir

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// childEtcd makes the test binary run etcd: `<test binary> child-etcd <data directory> <number of the last key>`.
const childEtcd = "child-etcd"

// TestMain also runs the child processes of the tests: an etcd server, a validation, or the wrapper's checks.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && strings.HasPrefix(os.Args[1], "validation-") {
		os.Exit(runAsChild(os.Args[1], os.Args[2], bootstrap.Mode(os.Args[3])))
	}
	if len(os.Args) == 4 && os.Args[1] == childEtcd {
		lastKey, _ := strconv.Atoi(os.Args[3])
		fmt.Fprintln(os.Stderr, writeUntilKilled(os.Args[2], lastKey))
		os.Exit(1)
	}
	if len(os.Args) == 4 && (os.Args[1] == childServe || os.Args[1] == childCheck) {
		run := func() error { return serve(os.Args[2], os.Args[3]) }
		if os.Args[1] == childCheck {
			run = func() error { return printChecks(os.Args[2]) }
		}
		if err := run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	status := m.Run()
	datadirtest.Clean()
	os.Exit(status)
}

// writeUntilKilled runs etcd, writes keys up to lastKey and prints a line for each key. The last key is committed to
// the database, which is then ahead of the commit index in the WAL. writeUntilKilled never returns.
func writeUntilKilled(dir string, lastKey int) error {
	server, err := datadirtest.Start(dir)
	if err != nil {
		return err
	}
	client := v3client.New(server.Server)
	for i := range lastKey + 1 {
		if _, err := client.Put(context.Background(), fmt.Sprintf("key-%d", i), strings.Repeat("v", 500)); err != nil {
			return err
		}
		if i == lastKey {
			server.Server.Backend().ForceCommit()
		}
		fmt.Println("stored", i)
	}
	select {}
}

func TestKilledWhileWriting(t *testing.T) {
	for _, stored := range []int{0, 1, 48, 49, 50, 51, 300} {
		dir := filepath.Join(t.TempDir(), "new.etcd")
		killAfterKey(t, dir, stored, 1000)
		requireValid(t, dir)
		datadirtest.RequireStarts(t, dir, fmt.Sprintf("key-%d", stored))
	}
}

// The data of a killed member must be valid even if the database is ahead of the commit index in the WAL. etcd does
// not sync records that only advance the commit index.
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
			for _, seen := range []string{name, "member/wal"} { // polling may miss a short-lived file, so member/wal is enough
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
	require.NoError(t, result(t, dir, bootstrap.Sanity))
	require.NoError(t, result(t, dir, bootstrap.Full))
}

// killAfterKey starts an etcd server that writes keys up to lastKey, and kills the server once the given key has been
// stored.
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

// etcdChild returns a command that runs etcd and writes keys up to lastKey. The process is killed after one minute.
func etcdChild(t *testing.T, dir string, lastKey int) *exec.Cmd {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, os.Args[0], childEtcd, dir, strconv.Itoa(lastKey))
}

func kill(t *testing.T, process *exec.Cmd) {
	require.NoError(t, process.Process.Kill())
	_ = process.Wait() // "signal: killed"
}
