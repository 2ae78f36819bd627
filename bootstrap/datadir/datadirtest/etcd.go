// Package datadirtest makes data directories for tests, with a real etcd, and corrupts them.
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

// LastKey is one of the keys that are in what New returns.
const LastKey = "key-149"

const pristineKeys = 200

func init() { wal.SegmentSizeBytes = 64 << 10 } // several segments without many keys

var (
	pristineOnce sync.Once
	pristineRoot string
	errPristine  error
)

// New returns a copy of the data directory of an etcd that was used and closed. It has several segments and snapshots.
func New(t *testing.T) string {
	t.Helper()
	pristineOnce.Do(func() {
		if pristineRoot, errPristine = os.MkdirTemp("", "datadir-"); errPristine == nil {
			errPristine = makePristine(filepath.Join(pristineRoot, "new.etcd"))
		}
	})
	require.NoError(t, errPristine)
	dir := filepath.Join(t.TempDir(), "new.etcd")
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(pristineRoot, "new.etcd"))))
	return dir
}

// Clean removes what New copies from; it is for TestMain.
func Clean() { _ = os.RemoveAll(pristineRoot) }

func makePristine(dir string) error {
	server, err := Start(dir)
	if err != nil {
		return err
	}
	defer server.Close()
	client := v3client.New(server.Server)
	for i := range pristineKeys {
		if _, err := client.Put(context.Background(), fmt.Sprintf("key-%03d", i%150), strings.Repeat("v", 1000)); err != nil {
			return err
		}
	}
	_, err = client.Delete(context.Background(), "key-000")
	return err
}

// Start runs an etcd that takes a snapshot every 50 entries. Without fsync the same bytes reach the page cache, which
// is all that a killed process leaves to the next.
func Start(dir string) (*embed.Etcd, error) {
	listen := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	config := embed.NewConfig()
	config.Dir, config.SnapshotCount, config.LogLevel, config.LogOutputs = dir, 50, "fatal", []string{"stderr"}
	config.UnsafeNoFsync, config.TickMs, config.ElectionMs = true, 10, 100
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{listen}, []url.URL{listen}
	nobody := url.URL{Scheme: "http", Host: "127.0.0.1:1"} // a cluster of one has no peer that would call
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{listen}, []url.URL{nobody}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	if err != nil {
		return nil, err
	}
	select {
	case <-server.Server.ReadyNotify():
		return server, nil
	case <-time.After(30 * time.Second):
		server.Close()
		return nil, errors.New("etcd is not ready after 30 s")
	}
}

// RequireStarts proves with etcd itself that a data directory can be used, and that the key is there.
func RequireStarts(t *testing.T, dir, key string) {
	t.Helper()
	server, err := Start(dir)
	require.NoError(t, err)
	defer server.Close()
	got, err := v3client.New(server.Server).Get(t.Context(), key, clientv3.WithCountOnly())
	require.NoError(t, err)
	require.EqualValues(t, 1, got.Count)
}
