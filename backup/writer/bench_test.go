package writer

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/cmd/suites/etcdtest"
)

// BenchmarkSecond captures 10,000 rows of 1 KB, which is a second of heavy load, and makes segments of them in the spool. A
// tenth of a second for it is a tenth of a core.
func BenchmarkSecond(b *testing.B) {
	etcd := etcdtest.Start(b, b.TempDir())
	random := rand.New(rand.NewPCG(1, 1))
	for i := range 100 {
		var ops []clientv3.Op
		for j := range 100 {
			value := make([]byte, 1000) // as compressible as JSON is: half of it
			for k := range value {
				value[k] = "0123456789abcdef"[random.IntN(16)]
			}
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("/registry/things/%05d", 100*i+j), string(value)))
		}
		_, err := etcd.Client.Txn(b.Context()).Then(ops...).Commit()
		require.NoError(b, err)
	}
	writer, err := New(Options{
		Archive: archive.New(memory.New(), keys), Etcd: Server(etcd.Server), Schedule: never, SpoolDir: filepath.Join(b.TempDir(), "spool"), SpoolLimit: 1 << 40,
		DataDir: b.TempDir(), Session: archive.NewSession(), Log: zerolog.Nop(),
	})
	require.NoError(b, err)
	writer.core.Facts.leads = true
	b.ReportAllocs()
	for b.Loop() {
		writer.chain.tail = &format.Start{Cluster: "c", Generation: 1, Position: format.After(1), Before: format.Seed("c", 1, 1)}
		writer.revision = etcd.Revision()
		for again := true; again; {
			again, err = writer.captureUpTo(writer.revision, true, false)
			require.NoError(b, err)
		}
		require.Greater(b, writer.chain.tail.Position.Revision, writer.revision)
		require.NoError(b, writer.spool.Clear())
		writer.chain.waiting = nil
	}
}
