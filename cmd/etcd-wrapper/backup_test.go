package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/folder"
	"etcd-wrapper/cmd/backups"
	"etcd-wrapper/exitcode"
)

// runBackup runs a backup command without a terminal and returns its exit status, output and log.
func runBackup(args ...string) (status exitcode.Code, out, log string) {
	var printed, logged bytes.Buffer
	status = run(append([]string{"backup"}, args...), streams{out: &printed, log: &logged})
	return status, printed.String(), logged.String()
}

// newStoreFlag returns a --backup-store flag with a new store that contains one unverified full snapshot.
func newStoreFlag(t *testing.T) string {
	dir := t.TempDir()
	opened, err := folder.New(dir)
	require.NoError(t, err)
	a := archive.New(opened, &format.Keys{})
	_, err = a.Create(t.Context(), archive.Cluster{Cluster: "c1", Created: time.Now()}, 1)
	require.NoError(t, err)
	_, err = archivetest.PutFull(t.Context(), a, archive.Full{
		Cluster: "c1", Generation: 1, Revision: 7, Time: time.Now(), Chain: format.Seed("c1", 1, 7), Member: "m", Reason: "begin",
	}, strings.NewReader("no database"))
	require.NoError(t, err)
	return "--backup-store=file://" + dir
}

// unusedPort returns an --etcd-wrapper-port flag with a port on which no process is listening.
func unusedPort() string {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	return "--etcd-wrapper-port=" + strconv.Itoa(server.Listener.Addr().(*net.TCPAddr).Port)
}

func TestBackupList(t *testing.T) {
	flag := newStoreFlag(t)
	status, out, log := runBackup("list", flag)
	require.Equal(t, exitcode.Clean, status, log)
	assert.Contains(t, out, "generation 1, since ")
	assert.Regexp(t, `(?m)^cluster +c1$`, out)
	assert.Regexp(t, `(?m)^ *last verified +not yet$`, out)
	status, out, _ = runBackup("list", flag, "-o", "json")
	require.Equal(t, exitcode.Clean, status)
	var document map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &document))
	assert.Equal(t, "c1", document["cluster"])
}

func TestBackupCommands_exitStatuses(t *testing.T) {
	flag, file := newStoreFlag(t), filepath.Join(t.TempDir(), "out.db")
	require.NoError(t, os.WriteFile(file+".there", nil, 0o600))
	for _, test := range []struct {
		args    []string
		status  exitcode.Code
		message string
	}{
		{[]string{"list", unusedPort()}, exitcode.Usage, "--backup-store: missing"},
		{[]string{"list", "--backup-store=ftp://x"}, exitcode.Usage, "--backup-store: must be"},
		{[]string{"list", flag, "--backup-trusted-keys=/nowhere"}, exitcode.Usage, "--backup-trusted-keys"},
		{[]string{"list", flag, "-o", "yaml"}, exitcode.Usage, "--output"},
		{[]string{"list", "--backup-store=file:///nowhere/at/all"}, exitcode.StoreAway, "/nowhere/at/all"},
		{[]string{"prune", flag, "--backup-keep=points=24h"}, exitcode.ChecksFailed, "no backup of generation 1 has been verified yet"},
		{[]string{"prune", flag}, exitcode.Usage, "--backup-keep is required"},
		{[]string{"prune", flag, "--dry-run"}, exitcode.ChecksFailed, "no backup of generation 1 has been verified yet"},
		{[]string{"export", flag, "--to=tomorrow", file}, exitcode.Usage, "--to"},
		{[]string{"export", flag, "--to=revision:8", file}, exitcode.NotKept, "revisions 7 to 7"},
		{[]string{"export", flag, file + ".there"}, exitcode.Usage, "already exists"},
		{[]string{"export", flag, file}, exitcode.BackupFailed, "invalid size for a snapshot"},
		{[]string{"now", unusedPort()}, exitcode.NoAnswer, "no answer"},
		{[]string{"now", flag}, exitcode.Usage, "unknown flag --backup-store"},
		{[]string{"list", flag, "--backup-interval=5s"}, exitcode.Usage, "unknown flag --backup-interval"},
		{[]string{"export", flag, "-"}, exitcode.Usage, "cannot write a snapshot to standard output"},
		{[]string{"export", flag, "/no/such/directory/out.db"}, exitcode.Usage, "the directory /no/such/directory does not exist; create it, or correct the path"},
		{[]string{"export", flag, "--generation=-1", file}, exitcode.Usage, `--generation: "-1" is not a valid generation`},
		{[]string{"export", flag, "--generation=0", file}, exitcode.Usage, `--generation: "0" is not a valid generation`},
		{[]string{"export", flag, "--generation=5", file}, exitcode.NotKept, "is not available"},
		{[]string{"get", flag, "--generation=x", "key"}, exitcode.Usage, `--generation: "x" is not a valid generation`},
		{[]string{"copy", flag, "--to-store=" + strings.TrimPrefix(flag, "--backup-store="), "--follow=-1s"}, exitcode.Usage, "--follow must not be negative: -1s"},
		{[]string{"copy", flag, "--to-store=elsewhere"}, exitcode.Usage, "--to-store: must be"},
		{[]string{"copy", flag, "--to-store=file:///nowhere/at/all"}, exitcode.StoreAway, "/nowhere/at/all"},
	} {
		status, _, log := runBackup(test.args...)
		assert.Equal(t, test.status, status, "%v: %s", test.args, log)
		assert.Contains(t, log, test.message, test.args)
		assert.Equal(t, 1, strings.Count(log, "\n"), "%v: the error must be a single line: %s", test.args, log)
	}
	_, err := os.Lstat(file)
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestBackupCommands_temporaryDirectory(t *testing.T) {
	flag := newStoreFlag(t)
	for dir, want := range map[string]string{"/no/such/directory": "TMPDIR: the directory /no/such/directory does not exist", "/dev/null": "TMPDIR: /dev/null is not a directory"} {
		t.Setenv("TMPDIR", dir)
		for _, args := range [][]string{{"get", flag, "key"}, {"diff", flag, "--from=revision:7"}, {"verify", flag}} {
			status, _, log := runBackup(args...)
			assert.Equal(t, exitcode.Usage, status, args)
			assert.Contains(t, log, want, args)
		}
	}
}

func TestBackupPrune_assumedPolicy(t *testing.T) {
	flag := newStoreFlag(t)
	_, out, _ := runBackup("prune", flag, "--dry-run")
	assert.Contains(t, strings.Join(strings.Fields(out), " "), "retention policy points=24h,hourly=24,daily=7,weekly=4 (the default, because --backup-keep is not set): keep every")
	_, out, _ = runBackup("prune", flag, "--dry-run", "-o", "json")
	assert.Contains(t, out, `"assumed": true`)
	for _, flags := range [][]string{{"--backup-keep=points=24h,hourly=24,daily=7,weekly=4"}, nil} {
		if flags == nil {
			t.Setenv("ETCD_WRAPPER_BACKUP_KEEP", "points=2d")
		}
		_, out, _ = runBackup(append([]string{"prune", flag, "--dry-run"}, flags...)...)
		assert.NotContains(t, out, "default")
		status, _, log := runBackup(append([]string{"prune", flag}, flags...)...)
		assert.Equal(t, exitcode.ChecksFailed, status, log)
	}
}

func TestErrors_nameTheCommand(t *testing.T) {
	for _, args := range [][]string{
		{"restore", "--backup-store=file:///nowhere/at/all", "--data-dir=" + t.TempDir()},
		{"restore", "--snapshot=x", "--to=revision:1", "--data-dir=" + t.TempDir()},
		{"backup", "list", "--backup-store=file:///nowhere/at/all"},
	} {
		var log bytes.Buffer
		run(args, streams{out: io.Discard, log: &log})
		assert.Regexp(t, "^etcd-wrapper: the "+args[0]+" command failed: .*\n$", log.String())
		log.Reset()
		run(append(args, "-o", "json"), streams{out: io.Discard, log: &log})
		assert.Contains(t, log.String(), `"message":"the `+args[0]+` command failed"`)
	}
}

// A command whose target cannot be restored must print a single line and exit with status 64 if the target is invalid,
// or 78 if the store does not contain it.
func TestTargets_thatAreNotKept(t *testing.T) {
	store := newStoreFlag(t) // the latest revision in the store is 7
	empty := "--backup-store=file://" + t.TempDir()
	at := func(when time.Time) string { return "time:" + when.UTC().Format(time.RFC3339) }
	for _, example := range []struct {
		target  string
		status  exitcode.Code
		message string
	}{
		{"revision:0", exitcode.Usage, "is not a valid revision"},
		{"revision:-3", exitcode.Usage, "is not a valid revision"},
		{"revision:seven", exitcode.Usage, "is not a valid revision"},
		{"revision:99999999999999999999", exitcode.Usage, "is not a valid revision"},
		{"time:noon", exitcode.Usage, "is not a valid time"},
		{at(time.Now().Add(time.Hour)), exitcode.Usage, "is in the future"},
		{"revision:1", exitcode.NotKept, "revisions 7 to 7"},
		{"revision:6", exitcode.NotKept, "revisions 7 to 7"},
		{"revision:8", exitcode.NotKept, "revisions 7 to 7"},
		{"revision:9223372036854775807", exitcode.NotKept, "revisions 7 to 7"},
		{at(time.Now().Add(-time.Hour)), exitcode.NotKept, "revisions 7 to 7"},
	} {
		for _, args := range [][]string{
			{"backup", "export", store, "--to=" + example.target, filepath.Join(t.TempDir(), "out.db")},
			{"backup", "verify", store, "--to=" + example.target},
			{"restore", store, "--to=" + example.target, "--data-dir=" + filepath.Join(t.TempDir(), "new.etcd")},
		} {
			var log bytes.Buffer
			status := run(args, streams{out: io.Discard, log: &log})
			assert.Equal(t, example.status, status, "%v: %s", args, &log)
			assert.Contains(t, log.String(), example.message, args)
			assert.Equal(t, 1, strings.Count(log.String(), "\n"), "%v: the error must be a single line: %s", args, &log)
		}
		if example.status == exitcode.Usage {
			var log bytes.Buffer
			status := run([]string{
				"start-etcd", "--standalone", store, "--restore-to=" + example.target, "--restore-id=x", "--volume-dir=" + t.TempDir(),
			}, streams{out: io.Discard, log: &log})
			assert.Equal(t, exitcode.Usage, status)
			assert.Contains(t, log.String(), example.message)
			assert.Contains(t, log.String(), "--restore-to")
		}
		if example.status == exitcode.NotKept {
			var log bytes.Buffer
			assert.Equal(t, exitcode.NotKept, run([]string{"restore", empty, "--to=" + example.target, "--data-dir=" + filepath.Join(t.TempDir(), "x")}, streams{out: io.Discard, log: &log}))
			assert.Contains(t, log.String(), "restore points: none")
		}
	}
}

func TestRestore_directoryThatDoesNotExist(t *testing.T) {
	var log bytes.Buffer
	dir := filepath.Join(t.TempDir(), "mistyped", "new.etcd")
	assert.Equal(t, exitcode.Usage, run([]string{"restore", newStoreFlag(t), "--data-dir=" + dir}, streams{out: io.Discard, log: &log}))
	assert.Contains(t, log.String(), "--data-dir: the directory "+filepath.Dir(dir)+" does not exist")
	assert.NoDirExists(t, filepath.Dir(dir))
}

// Only damaged backups may cause status 70.
func TestBackupStatus_damageAlone(t *testing.T) {
	for err, want := range map[error]exitcode.Code{
		format.ErrDamaged: exitcode.BackupFailed, archive.ErrHole: exitcode.BackupFailed, backups.ErrNotVerified: exitcode.BackupFailed,
		backups.ErrIncomplete: exitcode.BackupFailed, store.ErrNotFound: exitcode.BackupFailed,
		os.ErrPermission: exitcode.ToolFailed, syscall.ENOSPC: exitcode.ToolFailed, syscall.EPIPE: exitcode.ToolFailed,
		context.DeadlineExceeded: exitcode.StoreAway, store.ErrDenied: exitcode.StoreAway, backups.ErrNotCopy: exitcode.Usage,
	} {
		assert.Equal(t, want, backupStatus(fmt.Errorf("cannot do it: %w", err)), err.Error())
	}
}

func TestInspectArgs_fileWithADash(t *testing.T) {
	_, err := parse(inspectArgs("-out.db.partial"), io.Discard)
	assert.NoError(t, err)
}
