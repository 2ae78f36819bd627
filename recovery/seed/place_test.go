package seed

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcd-wrapper/backup/restore"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
)

func TestResolvePath(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	in := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.Mkdir(in("there"), 0o700))
	require.NoError(t, os.Symlink("there", in("relative")))
	require.NoError(t, os.Symlink(in("relative")+"/etcd", in("link")))
	require.NoError(t, os.Symlink("circle", in("circle")))
	for path, place := range map[string]string{
		"there/": "there", "relative": "there", "relative/etcd/": "there/etcd", "link": "there/etcd", "no/such/etcd": "no/such/etcd", "circle": "circle",
	} {
		assert.Equal(t, in(place), ResolvePath(in("")+"/"+path), path)
	}
}

func TestBuild_mountPoint(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount(t.TempDir(), dir, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("skipped: cannot mount a file system: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	_, err := alone(dir).Build(t.Context(), restore.Source{Snapshot: func(context.Context) (io.ReadCloser, error) {
		t.Error("something is fetched")
		return nil, io.ErrUnexpectedEOF
	}}, restore.Options{})
	require.ErrorContains(t, err, dir+" is a mount point")
}

func TestBuild_symbolicLink(t *testing.T) {
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	source, _ := old(t)
	build(t, alone(link), source, 0)
	target, err := os.Readlink(link)
	require.NoError(t, err)
	assert.Equal(t, dir, target)
	assert.DirExists(t, filepath.Join(dir, "member", "wal"))
}

// Without the lock, two builds could end up with a mixture of both.
func TestBuild_lockedDirectory(t *testing.T) {
	plan := alone(filepath.Join(t.TempDir(), "etcd"))
	source, _ := old(t)
	slow, begun, goOn := source, make(chan struct{}), make(chan struct{})
	slow.Snapshot = func(ctx context.Context) (io.ReadCloser, error) {
		close(begun)
		<-goOn
		return source.Snapshot(ctx)
	}
	done := make(chan error, 1)
	go func() {
		_, err := plan.Build(t.Context(), slow, restore.Options{})
		done <- err
	}()
	<-begun
	_, err := plan.Build(t.Context(), source, restore.Options{})
	require.ErrorContains(t, err, "cannot restore into "+plan.DataDir+": "+ErrInUse.Error())
	close(goOn)
	require.NoError(t, <-done)
	_, err = datadir.Verify(t.Context(), plan.DataDir, bootstrap.Full)
	require.NoError(t, err)
}
