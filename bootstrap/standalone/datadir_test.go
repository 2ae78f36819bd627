package standalone

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
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
)

const pristineKeys = 200

var (
	pristineOnce sync.Once
	pristineRoot string
	errPristine  error
)

// dataDir returns a copy of the data directory of an etcd that was used and closed.
func dataDir(t *testing.T) string {
	t.Helper()
	pristineOnce.Do(func() {
		if pristineRoot, errPristine = os.MkdirTemp("", "standalone-"); errPristine == nil {
			errPristine = makePristine(filepath.Join(pristineRoot, "new.etcd"))
		}
	})
	require.NoError(t, errPristine)
	dir := filepath.Join(t.TempDir(), "new.etcd")
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(pristineRoot, "new.etcd"))))
	return dir
}

func makePristine(dir string) error {
	server, err := startEtcd(dir)
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

// startEtcd runs an etcd that takes a snapshot every 50 entries. Without fsync the same bytes reach the page cache, which
// is all that a killed process leaves to the next.
func startEtcd(dir string) (*embed.Etcd, error) {
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

// writeUntilKilled runs an etcd, stores keys up to the last one, prints a line for each and never ends by itself. The last
// key is flushed to the database, so that it is ahead of what the WAL knows to be committed.
func writeUntilKilled(dir string, lastKey int) int {
	server, err := startEtcd(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	client := v3client.New(server.Server)
	for i := range lastKey + 1 {
		if _, err := client.Put(context.Background(), fmt.Sprintf("key-%d", i), strings.Repeat("v", 500)); err != nil {
			return 1
		}
		if i == lastKey {
			server.Server.Backend().ForceCommit()
		}
		fmt.Println("stored", i)
	}
	select {}
}

// requireStarts proves with etcd itself that a data directory can be used.
func requireStarts(t *testing.T, dir, key string) {
	t.Helper()
	server, err := startEtcd(dir)
	require.NoError(t, err)
	defer server.Close()
	got, err := v3client.New(server.Server).Get(t.Context(), key, clientv3.WithCountOnly())
	require.NoError(t, err)
	require.EqualValues(t, 1, got.Count)
}

// fingerprint maps every path below dir to what it is, when it was modified and what it holds.
func fingerprint(t *testing.T, dir string) map[string]string {
	t.Helper()
	prints := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		var content []byte
		if info.Mode().IsRegular() {
			content, err = os.ReadFile(path)
		}
		prints[path] = fmt.Sprintf("%s %d %s %x", info.Mode(), info.Size(), info.ModTime(), sha256.Sum256(content))
		return err
	}))
	return prints
}
