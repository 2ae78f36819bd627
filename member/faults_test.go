package member_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

func TestWatch_removedMember(t *testing.T) {
	t.Parallel()
	configs := clusterConfigs(t, 2)
	configs[0].StrictReconfigCheck = false
	stays, goes := benchWith(t, configs[0]), benchWith(t, configs[1])
	openAll(t, []*bench{stays, goes})

	watched := make(chan error, 1)
	go func() { watched <- goes.Watch(soon(t)) }()
	_, err := stays.client(t).MemberRemove(soon(t), uint64(goes.ID()))
	require.NoError(t, err)
	require.ErrorContains(t, <-watched, "etcd stopped; the member may have been removed")
	assert.ErrorContains(t, goes.ListenerError(), "etcd stopped; the member may have been removed")
	for _, b := range []*bench{goes, stays} {
		b.mustClose(t)
	}
}

func TestOpen_portInUse(t *testing.T) {
	b := newBench(t, newDir(t))
	taken, err := net.Listen("tcp", b.config.ListenPeerUrls[0].Host)
	require.NoError(t, err)
	defer taken.Close()
	err = b.Open(soon(t))
	require.ErrorContains(t, err, "cannot start etcd")
	require.ErrorContains(t, err, "address already in use")
	opened, err := b.Close()
	assert.False(t, opened, "etcd listens before it opens its data")
	assert.NoError(t, err)
}

// Opening the metrics listener is the last step of Open.
func TestOpen_metricsPortInUse(t *testing.T) {
	dir, _, config := stoppedMember(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	config.Dir, config.ListenMetricsUrls = dir, []url.URL{{Scheme: "http", Host: taken.Addr().String()}}
	b := benchWith(t, config)
	require.ErrorContains(t, b.Open(soon(t)), "address already in use")
	opened, err := b.Close()
	assert.True(t, opened)
	assert.Error(t, err, "nothing was closed in order")
}

func TestOpen_databaseInUse(t *testing.T) {
	dir := newDir(t)
	first := newBench(t, dir)
	require.NoError(t, first.Open(soon(t)))
	first.mustClose(t)
	holder, err := os.Open(filepath.Join(dir, "member", "snap", "db"))
	require.NoError(t, err)
	defer holder.Close()
	require.NoError(t, unix.Flock(int(holder.Fd()), unix.LOCK_EX))

	given := newBench(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.ErrorIs(t, given.Open(ctx), context.DeadlineExceeded)
	opened, err := given.Close()
	assert.False(t, opened, "etcd never touched the data")
	require.NoError(t, err)
	assert.Contains(t, given.log.String(), "the database is locked by another process")

	patient := newBench(t, dir)
	ready := make(chan error, 1)
	go func() { ready <- patient.Open(soon(t)) }()
	require.NoError(t, unix.Flock(int(holder.Fd()), unix.LOCK_UN))
	require.NoError(t, <-ready)
	patient.mustClose(t)
}

// On its own, zap would exit the process. The member must report the reason, and the failing goroutine must not
// continue.
func TestLogger_fatalIsACrash(t *testing.T) {
	for name, log := range map[string]func(*zap.Logger, string, ...zap.Field){
		"fatal": (*zap.Logger).Fatal, "panic": (*zap.Logger).Panic,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, t.TempDir())
			require.NoError(t, b.config.ZapLoggerBuilder(b.config))
			wentOn := make(chan struct{})
			go func() {
				log(b.config.GetLogger(), "failed to save Raft hard state and entries", zap.Error(syscall.ENOSPC))
				close(wentOn)
			}()
			reason := <-b.crashed
			require.EqualError(t, reason, "etcd: failed to save Raft hard state and entries: no space left on device")
			require.ErrorIs(t, reason, syscall.ENOSPC)
			assert.Contains(t, b.log.String(), `"level":"`+name+`"`)
			select {
			case <-wentOn:
				assert.Fail(t, "it went on")
			default:
			}
		})
	}
}

func TestOpen_permissions(t *testing.T) {
	dir := newDir(t)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "member", "snap"), 0o755))
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "member", "note"), nil, 0o644))
	b := newBench(t, dir)
	require.NoError(t, b.Open(soon(t)))
	_, err := b.Close()
	require.NoError(t, err)
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		info, statErr := entry.Info()
		want := fs.FileMode(0o600)
		if entry.IsDir() {
			want = 0o700
		}
		assert.Equal(t, want, info.Mode().Perm(), path)
		return errors.Join(err, statErr)
	}))
}
