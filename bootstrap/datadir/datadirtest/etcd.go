// Package datadirtest creates data directories for tests by running a real etcd server.
package datadirtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

// LastKey is a key in the data directory returned by New.
const LastKey = "key-149"

// puts is the number of keys written to the data directory returned by New.
const puts = 200

func init() { wal.SegmentSizeBytes = 64 << 10 } // small enough that a few keys fill more than one segment

// root returns the directory that contains the original data directories.
var root = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "datadir-") })

// Clean removes the original data directories. Call it in TestMain.
func Clean() {
	if root, err := root(); err == nil {
		_ = os.RemoveAll(root)
	}
}

var used, initialized = original("used", writeKeys), original("initialized", func(client *clientv3.Client) error {
	_, err := client.Put(context.Background(), "key", "value")
	return err
})

// New returns a copy of the data directory of an etcd server that was used and closed. The data directory has several
// segments and snapshots.
func New(t *testing.T) string {
	t.Helper()
	return copyOf(t, used, "new.etcd")
}

// Initialized returns a copy of the data directory of an etcd server that stored "key" and was closed. The log has a
// single segment, and there is no snapshot.
func Initialized(t *testing.T) string {
	t.Helper()
	return copyOf(t, initialized, "[new].etcd") // the brackets must not be interpreted as a filepath.Match pattern
}

func copyOf(t *testing.T, original func() (string, error), name string) string {
	t.Helper()
	from, err := original()
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.CopyFS(dir, os.DirFS(from)))
	return dir
}

// original returns a function that creates a data directory on the first call.
func original(name string, use func(client *clientv3.Client) error) func() (dir string, err error) {
	return sync.OnceValues(func() (dir string, err error) {
		root, err := root()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(root, name)
		server, err := Start(dir)
		if err != nil {
			return "", err
		}
		defer server.Close()
		return dir, use(v3client.New(server.Server))
	})
}

func writeKeys(client *clientv3.Client) error {
	for i := range puts {
		if _, err := client.Put(context.Background(), fmt.Sprintf("key-%03d", i%150), strings.Repeat("v", 1000)); err != nil {
			return err
		}
	}
	_, err := client.Delete(context.Background(), "key-000")
	return err
}

// Start starts an etcd server that takes a snapshot every 50 entries. The change functions can modify the
// configuration of the server. Start disables fsync, which is safe in tests because the page cache survives when
// the process is killed.
func Start(dir string, change ...func(*embed.Config)) (*embed.Etcd, error) {
	listen := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	config := embed.NewConfig()
	config.Dir, config.SnapshotCount, config.LogLevel, config.LogOutputs = dir, 50, "fatal", []string{"stderr"}
	config.UnsafeNoFsync, config.TickMs, config.ElectionMs = true, 10, 100
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{listen}, []url.URL{listen}
	unused := url.URL{Scheme: "http", Host: "127.0.0.1:1"} // no other member ever connects to a single member
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{listen}, []url.URL{unused}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	for _, change := range change {
		change(config)
	}
	server, err := embed.StartEtcd(config)
	if err != nil {
		return nil, err
	}
	select {
	case <-server.Server.ReadyNotify():
		return server, nil
	case <-time.After(30 * time.Second):
		server.Close()
		return nil, errors.New("etcd did not become ready within 30 s")
	}
}

// RequireStarts requires etcd to start with a data directory and serve the key.
func RequireStarts(t *testing.T, dir, key string) {
	t.Helper()
	server, err := Start(dir)
	require.NoError(t, err)
	defer server.Close()
	got, err := v3client.New(server.Server).Get(t.Context(), key, clientv3.WithCountOnly())
	require.NoError(t, err)
	require.EqualValues(t, 1, got.Count)
}
