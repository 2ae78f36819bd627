package datadir

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/wal"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// BenchmarkDataDir reads a data directory with a 110 MB database and 110 MB of log entries after the last snapshot.
func BenchmarkDataDir(b *testing.B) {
	dir := large(b)
	for name, read := range map[string]func() error{
		"sanity": func() error { return result(b, dir, bootstrap.Sanity) },
		"full":   func() error { return result(b, dir, bootstrap.Full) },
		"look": func() error {
			found := Look(dir, "")
			_, err := found.ClusterVersions()
			return errors.Join(err, found.Inspect(Identity{Name: "default"}, zerolog.Nop()))
		},
		"log": func() error {
			_, err := readLog(b.Context(), survey(dir, ""), nil)
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				require.NoError(b, read())
			}
		})
	}
}

func large(b *testing.B) (dir string) {
	small := wal.SegmentSizeBytes
	wal.SegmentSizeBytes = 64 << 20 // default of etcd
	defer func() { wal.SegmentSizeBytes = small }()
	dir = filepath.Join(b.TempDir(), "new.etcd")
	server, err := datadirtest.Start(dir, func(config *embed.Config) { config.SnapshotCount = 1 << 30 })
	require.NoError(b, err)
	defer server.Close()
	client, value := v3client.New(server.Server), strings.Repeat("v", 1000)
	var writers sync.WaitGroup
	for writer := range 50 {
		writers.Go(func() {
			for i := range 2000 {
				if _, err := client.Put(b.Context(), fmt.Sprintf("key-%d-%d", writer, i%300), value); err != nil {
					b.Error(err)
				}
			}
		})
	}
	writers.Wait()
	return dir
}
