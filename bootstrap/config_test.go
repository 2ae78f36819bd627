package bootstrap_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
)

func TestStoredConfiguration_atomicAndPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etcd.conf.yaml")
	require.NoError(t, os.WriteFile(path, []byte("a much longer older configuration"), 0o644))
	require.NoError(t, bootstrap.StoreConfig(path, []byte("name: etcd-0")))
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "name: etcd-0", string(content))
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	assert.ErrorContains(t, bootstrap.StoreConfig(filepath.Join(path, "below", "a", "file"), nil), "cannot store etcd configuration")
}

func TestEarlyConfiguration_onlyNewSingleMember(t *testing.T) {
	for config, want := range map[string]bool{
		"initial-cluster: etcd-0=http://127.0.0.1:2380\ninitial-cluster-state: new":      true,
		"initial-cluster: etcd-0=http://127.0.0.1:2380\ninitial-cluster-state: existing": false,
		"initial-cluster: a=http://a:1,b=http://b:1\ninitial-cluster-state: new":         false,
		"initial-cluster-state: new": false,
		"":                           false,
		"\tnot: yaml":                false,
	} {
		assert.Equal(t, want, bootstrap.Preview([]byte(config)).NewAlone, "%q", config)
	}
}

func TestConfiguredWAL_isFoundOnTheVolume(t *testing.T) {
	path := t.TempDir()
	volume := bootstrap.NewVolume(path)
	log := filepath.Join(path, "new.etcd", "member", "wal")
	require.NoError(t, os.MkdirAll(log, 0o700))
	assert.Empty(t, volume.Logs(), "a directory without segments is not a log")
	require.NoError(t, os.WriteFile(filepath.Join(log, "0000000000000000-0000000000000000.wal"), nil, 0o600))
	require.Equal(t, []string{log}, volume.Logs())
	for config, want := range map[string]string{
		"data-dir: " + filepath.Join(path, "new.etcd/"):     log,
		"Data-Dir: " + filepath.Join(path, ".", "new.etcd"): log,
		"{data-dir: /elsewhere, wal-dir: " + log + "/}":     log,
		"name: etcd-0": "",
	} {
		assert.Equal(t, want, bootstrap.Preview([]byte(config)).LogDir, "%q", config)
	}
}

func TestSystemError_suggestsAnAction(t *testing.T) {
	dir := t.TempDir()
	full := &os.PathError{Op: "write", Path: filepath.Join(dir, "exit_code"), Err: syscall.ENOSPC}
	for err, want := range map[error]string{
		fmt.Errorf("cannot write: %w", full):                               "no space left on device \\(" + dir + " has \\d+ of \\d+ MiB free; expand the volume or free up space on it\\)$",
		errors.New("wal: open /data/0.wal: permission denied"):             fmt.Sprintf("this process runs as user %d, group %d\\)$", os.Geteuid(), os.Getegid()),
		errors.New("etcd: wal: no space left on device"):                   "device \\(" + dir + " has \\d+ of \\d+ MiB free; .*\\)$",
		errors.New("etcd: failed to repair WAL: unexpected EOF"):           "EOF \\(" + dir + " has \\d+ of \\d+ MiB free; .* space for a copy .*\\)$",
		&os.SyscallError{Syscall: "bind", Err: syscall.EADDRINUSE}:         "\\(stop the process that is listening on this address\\)$",
		&os.PathError{Op: "open", Path: "/x", Err: syscall.EACCES}:         fmt.Sprintf("this process runs as user %d, group %d\\)$", os.Geteuid(), os.Getegid()),
		errors.New("entry 7 conflict with committed entry [committed(9)]"): "\\(the data directory conflicts with the other members.*--recover=auto.*\\)$",
		errors.New("failed to update; member unknown"):                     "\\(the data directory conflicts with the other members.*--recover=auto.*\\)$",
		errors.New("tocommit(9) is out of range [lastIndex(7)]"):           "\\(the data directory is missing entries that this member acknowledged .*--recover=auto.*\\)$",
		errors.New("cannot fetch cluster info from peer urls"):             "\\(no member of the existing cluster responded; the next start tries again\\)$",
		errors.New("a member that was removed from its cluster"):           "\\(.*if this member was removed, do not start it again; .*--recover=auto.*\\)$",
	} {
		advised := bootstrap.ExplainError(err, dir)
		assert.Regexp(t, want, advised.Error())
		assert.ErrorIs(t, advised, err)
		assert.Equal(t, advised, bootstrap.ExplainError(advised, dir), "advice is added only once")
	}
	for _, text := range []string{"other", "cannot read cluster.json in s3://bucket/etcd/: HTTP status 403 (AccessDenied): permission denied"} {
		other := errors.New(text)
		assert.Equal(t, other, bootstrap.ExplainError(other, dir))
	}
	require.NoError(t, bootstrap.ExplainError(nil, dir))
}
