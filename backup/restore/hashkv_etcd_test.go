package restore

import (
	"os"
	"path/filepath"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/pkg/v3/traceutil"
	"go.etcd.io/etcd/server/v3/lease"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.uber.org/zap"
)

// etcd is the part of an etcd that stores keys, without a log or clients.
type etcd struct {
	t      require.TestingT
	dir    string
	back   backend.Backend
	lessor lease.Lessor
	mvcc.WatchableKV
	leases []lease.LeaseID
}

func start(t require.TestingT, dir string) *etcd {
	e := &etcd{t: t, dir: dir}
	e.open(time.Millisecond)
	return e
}

// open starts etcd, which then finishes a compaction that was interrupted.
func (e *etcd) open(betweenBatches time.Duration) {
	config := backend.DefaultBackendConfig(zap.NewNop())
	config.Path, config.UnsafeNoFsync = filepath.Join(e.dir, "db"), true
	e.back = backend.New(config)
	e.lessor = lease.NewLessor(zap.NewNop(), e.back, nil, lease.LessorConfig{MinLeaseTTL: 1000})
	e.WatchableKV = mvcc.New(zap.NewNop(), e.back, e.lessor, mvcc.StoreConfig{CompactionBatchLimit: 2, CompactionSleepInterval: betweenBatches})
}

func (e *etcd) stop() {
	require.NoError(e.t, e.Close())
	e.lessor.Stop()
	require.NoError(e.t, e.back.Close())
}

// await waits until no compaction is at work.
func (e *etcd) await() {
	tx := e.back.ReadTx()
	require.Eventually(e.t, func() bool {
		tx.RLock()
		defer tx.RUnlock()
		scheduled, _ := mvcc.UnsafeReadScheduledCompact(tx)
		finished, _ := mvcc.UnsafeReadFinishedCompact(tx)
		return scheduled == finished
	}, time.Minute, time.Millisecond)
}

// file is a copy of the database as it is now.
func (e *etcd) file() string {
	file, err := os.CreateTemp(e.dir, "copy")
	require.NoError(e.t, err)
	snapshot := e.back.Snapshot()
	_, err = snapshot.WriteTo(file)
	require.NoError(e.t, err)
	require.NoError(e.t, snapshot.Close())
	require.NoError(e.t, file.Close())
	return file.Name()
}

// compact returns when all is deleted that is to be.
func (e *etcd) compact(revision int64) {
	done, err := e.Compact(traceutil.TODO(), revision)
	require.NoError(e.t, err)
	<-done
}

// compactInterrupted stops etcd in the middle of a compaction, and starts it again.
func (e *etcd) compactInterrupted(revision int64) {
	e.stop()
	e.open(time.Hour)
	_, err := e.Compact(traceutil.TODO(), revision)
	require.NoError(e.t, err)
	e.stop()
	e.open(time.Millisecond)
}
