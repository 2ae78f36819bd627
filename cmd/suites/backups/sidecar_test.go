package backups_test

import (
	"bytes"
	"compress/gzip"
	"compress/lzw"
	"compress/zlib"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

// compressed is content as etcd-backup-restore compresses it, which names the way in a suffix.
func compressed(t *testing.T, suffix string, content []byte) []byte {
	t.Helper()
	var into bytes.Buffer
	var by io.WriteCloser
	switch suffix {
	case "":
		return content
	case ".gz":
		by = gzip.NewWriter(&into)
	case ".zlib":
		by = zlib.NewWriter(&into)
	case ".Z":
		by = lzw.NewWriter(&into, lzw.LSB, 8)
	}
	_, err := by.Write(content)
	require.NoError(t, err)
	require.NoError(t, by.Close())
	return into.Bytes()
}

// received is an event as etcd-backup-restore writes it down.
type received struct {
	EtcdEvent *clientv3.Event `json:"etcdEvent"`
	Time      time.Time       `json:"time"`
}

// eventsUpTo reads a watch up to a revision.
func eventsUpTo(t *testing.T, watch clientv3.WatchChan, last int64) (all []received) {
	t.Helper()
	for answer := range watch {
		require.NoError(t, answer.Err())
		for _, event := range answer.Events {
			all = append(all, received{event, time.Now()})
		}
		if len(all) > 0 && all[len(all)-1].EtcdEvent.Kv.ModRevision >= last {
			return all
		}
	}
	require.FailNow(t, "the watch has ended")
	return nil
}

// sidecar is where etcd-backup-restore keeps the backups of a member, and how.
type sidecar struct {
	*member
	folder, suffix string
	remains        bool // of the chunks that an object was put together from
}

func (s sidecar) keep(kind string, first, last int64, content []byte) {
	s.T.Helper()
	path := filepath.Join(s.dir, s.folder, fmt.Sprintf("%s-%08d-%08d-%d%s", kind, first, last, time.Now().Unix()+last, s.suffix))
	content = compressed(s.T, s.suffix, content)
	require.NoError(s.T, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(s.T, os.WriteFile(path, content, 0o600))
	if s.remains {
		require.NoError(s.T, os.MkdirAll(path+".chunk", 0o700))
		require.NoError(s.T, os.WriteFile(filepath.Join(path+".chunk", "0000000001"), content[:len(content)/2], 0o600))
	}
}

// backUp takes a full whose name has an older revision than its content, as the sidecar asks for that first, and what comes then.
func (s sidecar) backUp() (between int64, then, latest state) {
	s.T.Helper()
	s.live()
	named := s.write("named", "the revision of the full's name")
	s.write("between", "is in the full, though its name does not say so")
	snapshot, err := s.Etcd().Snapshot(s.T.Context())
	require.NoError(s.T, err)
	defer snapshot.Close()
	content, err := io.ReadAll(snapshot)
	require.NoError(s.T, err)
	s.keep("Full", 0, named, content)

	watch := s.Etcd().Watch(s.T.Context(), "", clientv3.WithPrefix(), clientv3.WithRev(named+1))
	between = s.write("key", "at the revision that is gone back to")
	then = now(s.Pod)
	_, err = s.Etcd().Delete(s.T.Context(), "named")
	require.NoError(s.T, err)
	last := s.write("last", "before the move")
	events := eventsUpTo(s.T, watch, last)
	for _, part := range [][]received{events[:2], events[2:]} {
		plain, err := json.Marshal(part)
		require.NoError(s.T, err)
		sum := sha256.Sum256(plain)
		s.keep("Incr", part[0].EtcdEvent.Kv.ModRevision, part[len(part)-1].EtcdEvent.Kv.ModRevision, append(plain, sum[:]...))
	}
	return between, then, now(s.Pod)
}

// Who moves here from etcd-backup-restore has all of its backups.
func TestWhatTheSidecarKeptComesBack(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]sidecar{
		"v1":                 {folder: "v1/Backup-1518427675", suffix: ""},
		"v2 and gzip":        {folder: "v2", suffix: ".gz"},
		"v2 and zlib":        {folder: "v2", suffix: ".zlib"},
		"lzw, without v2":    {folder: "", suffix: ".Z"},
		"chunks left behind": {folder: "v2", suffix: ".gz", remains: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.member = &member{Pod: harness.NewStandalonePod(t, nil), depot: newDepot(t)}
			run := s.StartReady()
			between, then, latest := s.backUp()
			run.StopCleanly()
			assert.Contains(t, s.visit("backup", "list", s.flag()), "what etcd-backup-restore wrote")
			for to, want := range map[string]state{"latest": latest, fmt.Sprint("revision:", between): then} {
				p := restored(t, s.export(to))
				again := p.StartReady()
				assert.Equal(t, want, now(p), to)
				again.StopCleanly()
			}
		})
	}
}
