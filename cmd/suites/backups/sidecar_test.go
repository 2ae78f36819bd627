package backups_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/restore/sidecarstore/sidecarstoretest"
	"etcd-wrapper/cmd/suites/harness"
)

// A sidecar stores backups of a member in the format of etcd-backup-restore.
type sidecar struct {
	*member
	folder, suffix string
	leaveChunks    bool // do not delete the chunks of multipart uploads
}

func (s sidecar) keep(kind string, first, last int64, content []byte) {
	s.T.Helper()
	path := filepath.Join(s.dir, s.folder, sidecarstoretest.Name(kind, first, last, time.Now().Add(time.Duration(last)*time.Second), s.suffix))
	content = sidecarstoretest.Compress(s.T, s.suffix, content)
	require.NoError(s.T, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(s.T, os.WriteFile(path, content, 0o600))
	if s.leaveChunks {
		require.NoError(s.T, os.MkdirAll(path+".chunk", 0o700))
		require.NoError(s.T, os.WriteFile(filepath.Join(path+".chunk", "0000000001"), content[:len(content)/2], 0o600))
	}
}

// backUp stores a full snapshot and two delta snapshots, as etcd-backup-restore does. The full snapshot contains a
// revision after the one in its name, because etcd-backup-restore determines the name before it takes the snapshot.
// backUp returns an intermediate revision, the state at that revision, and the latest state.
func (s sidecar) backUp() (intermediate int64, atIntermediate, latest state) {
	s.T.Helper()
	s.writeAllKinds()
	named := s.write("named", "at the revision in the snapshot's name")
	s.write("after", "in the snapshot, but after the revision in its name")
	snapshot, err := s.Etcd().Snapshot(s.T.Context())
	require.NoError(s.T, err)
	defer snapshot.Close()
	content, err := io.ReadAll(snapshot)
	require.NoError(s.T, err)
	s.keep("Full", 0, named, content)

	watching, end := context.WithCancel(s.T.Context())
	watch := s.Etcd().Watch(watching, "", clientv3.WithPrefix(), clientv3.WithRev(named+1))
	intermediate = s.write("key", "at the intermediate revision")
	atIntermediate = now(s.Pod)
	_, err = s.Etcd().Delete(s.T.Context(), "named")
	require.NoError(s.T, err)
	last := s.write("last", "before the migration")
	events := sidecarstoretest.UpTo(s.T, watch, last)
	end()
	for range watch { // drain the watch, because closing etcd's client can block forever while a watch is reconnecting
	}
	for _, part := range [][]sidecarstoretest.Event{events[:2], events[2:]} {
		s.keep("Incr", part[0].EtcdEvent.Kv.ModRevision, part[len(part)-1].EtcdEvent.Kv.ModRevision, sidecarstoretest.Delta(s.T, part...))
	}
	return intermediate, atIntermediate, now(s.Pod)
}

// After a migration from etcd-backup-restore, the backups that it made must still be listed and restorable.
func TestMigration_sidecarBackupsAreRestored(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]sidecar{
		"v1":              {folder: "v1/Backup-1518427675", suffix: ""},
		"v2 and gzip":     {folder: "v2", suffix: ".gz"},
		"v2 and zlib":     {folder: "v2", suffix: ".zlib"},
		"lzw, without v2": {folder: "", suffix: ".Z"},
		"leftover chunks": {folder: "v2", suffix: ".gz", leaveChunks: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.member = &member{Pod: harness.NewStandalonePod(t, nil), depot: newDepot(t)}
			run := s.StartReady()
			intermediate, atIntermediate, latest := s.backUp()
			run.Shutdown()
			assert.Contains(t, s.command("backup", "list", s.flag()), "backups made by etcd-backup-restore")
			for to, want := range map[string]state{"latest": latest, fmt.Sprint("revision:", intermediate): atIntermediate} {
				p := restored(t, s.export(to))
				again := p.StartReady()
				assert.Equal(t, want, now(p), to)
				again.Shutdown()
			}
		})
	}
}
