package backups

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/seal"
	"etcd-wrapper/bootstrap/backup/seal/sealtest"
	"etcd-wrapper/bootstrap/backup/segment"
	"etcd-wrapper/bootstrap/backup/sidecarstore"
	"etcd-wrapper/bootstrap/backup/store/memory"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// lived is what an etcd had: a snapshot, and what came behind it.
type lived struct {
	snapshot []byte // a stock one
	revision int64  // of the snapshot
	last     int64
	rows     []segment.Row // all of them, in order
	events   []*clientv3.Event
}

// live has an etcd take a snapshot between writes.
func live(t *testing.T) (l lived) {
	dir := t.TempDir()
	server, err := datadirtest.Start(dir)
	require.NoError(t, err)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Clients[0].Addr().String()}, Logger: zap.NewNop()})
	require.NoError(t, err)
	for i := range 20 {
		_, err := client.Put(t.Context(), fmt.Sprint("key", i%7), fmt.Sprint(i))
		require.NoError(t, err)
	}
	reader, err := client.Snapshot(t.Context())
	require.NoError(t, err)
	l.snapshot, err = io.ReadAll(reader)
	require.NoError(t, err)
	l.revision = 21
	for i := range 10 {
		_, err := client.Put(t.Context(), fmt.Sprint("key", i%7), fmt.Sprint("later", i))
		require.NoError(t, err)
	}
	l.last = l.revision + 10
	l.events = watched(t, client, l.revision+1, l.last)
	require.NoError(t, client.Close())
	server.Close()
	l.rows = rowsIn(t, filepath.Join(dir, "member", "snap", "db"))
	return l
}

func watched(t *testing.T, client *clientv3.Client, from, to int64) (events []*clientv3.Event) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for answer := range client.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(from)) {
		require.NoError(t, answer.Err())
		events = append(events, answer.Events...)
		if answer.Header.Revision >= to && events[len(events)-1].Kv.ModRevision == to {
			break
		}
	}
	return events
}

func rowsIn(t *testing.T, path string) (rows []segment.Row) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.View(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("key")).ForEach(func(key, value []byte) error {
			rows = append(rows, segment.Row{Key: bytes.Clone(key), Value: bytes.Clone(value)})
			return nil
		})
	}))
	return rows
}

// upTo are the rows up to a revision.
func (l lived) upTo(revision int64) []segment.Row {
	i := slices.IndexFunc(l.rows, func(row segment.Row) bool { return int64(binary.BigEndian.Uint64(row.Key)) > revision })
	if i < 0 {
		return l.rows
	}
	return l.rows[:i]
}

var noon = time.Date(2026, time.November, 22, 12, 0, 0, 0, time.UTC)

// keep puts a full and a segment into a store.
func (l lived) keep(t *testing.T) Settings { return l.keepWith(t, &seal.Keys{}) }

func (l lived) keepWith(t *testing.T, keys *seal.Keys) Settings {
	settings := Settings{Store: memory.New(), Keys: keys}
	kept := settings.Archive()
	_, err := kept.Found(t.Context(), "c1", noon)
	require.NoError(t, err)
	full, err := kept.PutFull(t.Context(), archive.Full{
		Cluster: "c1", Generation: 1, Revision: l.revision, Time: noon, Chain: segment.Seed("c1", 1, l.revision), Member: "m", Reason: "begin",
	}, bytes.NewReader(l.snapshot[:len(l.snapshot)-sha256.Size]))
	require.NoError(t, err)
	builder, err := segment.NewBuilder(settings.Keys, full.Start())
	require.NoError(t, err)
	for _, row := range l.rows[len(l.upTo(l.revision)):] {
		require.NoError(t, builder.Row(row))
		revision, err := row.Revision()
		require.NoError(t, err)
		require.NoError(t, builder.Marker(segment.Marker{Revision: revision, Time: noon.Add(time.Duration(revision) * time.Second)}))
	}
	object, err := builder.Finish(segment.Source{Member: "m"})
	require.NoError(t, err)
	require.NoError(t, kept.PutSegment(t.Context(), object))
	return settings
}

// keepAsSidecar puts a full and a delta into a store, as etcd-backup-restore does.
func (l lived) keepAsSidecar(t *testing.T) Settings {
	s := memory.New()
	s.SetContent(fmt.Sprintf("v2/Full-%08d-%08d-%d", 0, l.revision, noon.Unix()), l.snapshot)
	type event struct {
		EtcdEvent *clientv3.Event `json:"etcdEvent"`
		Time      time.Time       `json:"time"`
	}
	var events []event
	for _, e := range l.events {
		events = append(events, event{e, noon.Add(time.Duration(e.Kv.ModRevision) * time.Second)})
	}
	content, err := json.Marshal(events)
	require.NoError(t, err)
	sum := sha256.Sum256(content)
	s.SetContent(fmt.Sprintf("v2/Incr-%08d-%08d-%d", l.revision+1, l.last, noon.Unix()+60), append(content, sum[:]...))
	return Settings{Store: s, Keys: &seal.Keys{}}
}

// requireSnapshot compares a file with what etcd had.
func (l lived) requireSnapshot(t *testing.T, path string, revision int64) {
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	database := content[:len(content)-sha256.Size]
	sum := sha256.Sum256(database)
	require.Equal(t, sum[:], content[len(database):])
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, os.WriteFile(path+".db", database, 0o600))
	require.Equal(t, l.upTo(revision), rowsIn(t, path+".db"))
	require.NoError(t, os.Remove(path+".db"))
}

func TestAnyKeptRevisionIsExported(t *testing.T) {
	l := live(t)
	for who, settings := range map[string]Settings{"ours": l.keep(t), "the sidecar's": l.keepAsSidecar(t)} {
		for _, example := range []struct {
			target   archive.Target
			revision int64
		}{
			{archive.Target{}, l.last},
			{archive.Target{Revision: l.revision}, l.revision},
			{archive.Target{Revision: l.revision + 4}, l.revision + 4},
			{archive.Target{Time: noon.Add(time.Duration(l.last-2) * time.Second)}, l.last - 2},
		} {
			dir := t.TempDir()
			path := filepath.Join(dir, "out.db")
			exported, err := Export(t.Context(), settings, example.target, path, NewMeter(nil))
			require.NoError(t, err, "%s: %s", who, example.target)
			assert.Equal(t, example.revision, exported.Revision, "%s: %s", who, example.target)
			assert.Equal(t, example.revision-l.revision, exported.Rows)
			l.requireSnapshot(t, path, example.revision)
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			assert.Len(t, left, 1, "nothing but the snapshot")
			_, err = Export(t.Context(), settings, example.target, path, NewMeter(nil))
			assert.ErrorIs(t, err, ErrExists)
		}
	}
}

func TestWhatIsNotKeptNamesWhatIs(t *testing.T) {
	l := live(t)
	path := filepath.Join(t.TempDir(), "out.db")
	settings := l.keep(t)
	_, err := Export(t.Context(), settings, archive.Target{Revision: l.last + 1}, path, NewMeter(nil))
	require.ErrorIs(t, err, archive.ErrNotKept)
	assert.ErrorContains(t, err, fmt.Sprintf("revisions %d to %d", l.revision, l.last))

	settings = l.keepAsSidecar(t)
	_, err = Export(t.Context(), settings, archive.Target{Revision: l.last + 1}, path, NewMeter(nil))
	require.ErrorIs(t, err, sidecarstore.ErrNotKept)
	_, err = Export(t.Context(), settings, archive.Target{Revision: 3}, path, NewMeter(nil))
	require.ErrorIs(t, err, sidecarstore.ErrNotKept)

	overview, err := Look(t.Context(), settings, noon)
	require.NoError(t, err)
	require.Len(t, overview.Sidecar, 1)
	assert.Equal(t, []int64{l.revision, l.last, 1}, []int64{overview.Sidecar[0].From, overview.Sidecar[0].To, int64(overview.Sidecar[0].Deltas)})

	_, err = Export(t.Context(), Settings{Store: memory.New(), Keys: &seal.Keys{}}, archive.Target{}, path, NewMeter(nil))
	assert.ErrorIs(t, err, archive.ErrNotKept)
	_, err = os.Lstat(path)
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// lose adds a full whose data are missing: within the chain, or so many revisions behind it.
func (l lived) lose(t *testing.T, settings Settings, gap int64) {
	kept := settings.Archive()
	head, err := kept.Head(t.Context(), 1)
	require.NoError(t, err)
	full := archive.Full{
		Cluster: "c1", Generation: 1, Revision: head.Revision(), Time: noon.Add(time.Hour), Reason: "schedule",
		Next: head.Position, Chain: head.Before, Last: head.Last,
	}
	if gap > 0 {
		full.Revision += gap
		full.Next, full.Chain, full.Last = segment.After(full.Revision), segment.Seed("c1", 1, full.Revision), segment.Digest{}
	}
	full, err = kept.PutFull(t.Context(), full, bytes.NewReader(l.snapshot))
	require.NoError(t, err)
	require.NoError(t, settings.Store.Delete(t.Context(), archive.DataName(1, full.Name())))
}

func TestWithoutTheNewestFullAnOlderOneIsExportedAndWhatIsLostIsTold(t *testing.T) {
	l := live(t)
	for gap, told := range map[int64]string{0: "object not found\n", 5: "object not found\n5 revisions behind it, or more, cannot be read\n"} {
		settings := l.keep(t)
		l.lose(t, settings, gap)
		path := filepath.Join(t.TempDir(), "out.db")
		exported, err := Export(t.Context(), settings, archive.Target{}, path, NewMeter(nil))
		if gap == 0 {
			require.NoError(t, err, "nothing is lost")
		} else {
			require.ErrorIs(t, err, ErrIncomplete)
			require.ErrorContains(t, err, fmt.Sprintf("5 revisions or more that followed revision %d cannot be read", l.last))
		}
		assert.Equal(t, gap, exported.Lost)
		assert.Len(t, exported.Damaged, 1)
		assert.Equal(t, l.last, exported.Revision)
		l.requireSnapshot(t, path, l.last)
		var text bytes.Buffer
		require.NoError(t, exported.Print(&text))
		assert.Contains(t, text.String(), told)
	}
}

func TestAnEndThatCannotBeReadIsToldOf(t *testing.T) {
	l := live(t)
	settings := l.keep(t)
	stored := settings.Store.(*memory.Store)
	name := archive.SegmentName(1, segment.After(l.revision))
	stored.SetContent(name, []byte("no segment\n"))
	path := filepath.Join(t.TempDir(), "out.db")
	exported, err := Export(t.Context(), settings, archive.Target{}, path, NewMeter(nil))
	require.ErrorIs(t, err, ErrIncomplete)
	require.ErrorContains(t, err, fmt.Sprintf("what followed revision %d cannot be read (%s", l.revision, name))
	l.requireSnapshot(t, path, l.revision)
	assert.Equal(t, l.revision, exported.Revision)
	require.Len(t, exported.Damaged, 1)
	assert.Contains(t, exported.Damaged[0], name)
	overview, err := Look(t.Context(), settings, noon)
	require.NoError(t, err)
	assert.Equal(t, exported.Damaged[0], overview.Generations[0].Windows[0].Beyond)
	var text bytes.Buffer
	require.NoError(t, overview.Print(&text))
	assert.Contains(t, text.String(), "what follows cannot be read")
}

func TestWithoutAKeyNothingIsMadeOfWhatIsOlder(t *testing.T) {
	l, trusted, other := live(t), sealtest.New(t), sealtest.New(t)
	for what, names := range map[string]func(kept *archive.Archive, head archive.Head) string{
		"the last segment": func(kept *archive.Archive, head archive.Head) string {
			l.shipNothing(t, kept, head.Start)
			return archive.SegmentName(1, head.Position)
		},
		"the newest full": func(kept *archive.Archive, _ archive.Head) string {
			full, err := kept.PutFull(t.Context(), archive.Full{
				Cluster: "c1", Generation: 1, Revision: l.last + 10, Time: noon.Add(time.Hour), Chain: segment.Seed("c1", 1, l.last+10), Reason: "gap",
			}, bytes.NewReader(l.snapshot))
			require.NoError(t, err)
			return archive.ManifestName(1, full.Name())
		},
	} {
		t.Run(what, func(t *testing.T) {
			settings := l.keepWith(t, trusted.Load(t))
			head, err := settings.Archive().Head(t.Context(), 1)
			require.NoError(t, err)
			name := names(archive.New(settings.Store, other.Load(t)), head)
			path, plan := filepath.Join(t.TempDir(), "out.db"), planned(t)
			_, err = Export(t.Context(), settings, archive.Target{}, path, NewMeter(nil))
			_, failed := Restore(t.Context(), settings, archive.Target{}, plan, NewMeter(nil))
			for _, err := range []error{err, failed} {
				require.ErrorIs(t, err, seal.ErrUntrusted)
				require.ErrorContains(t, err, name)
				require.ErrorContains(t, err, "--backup-trusted-keys")
			}
			assert.NoFileExists(t, path)
			assert.NoDirExists(t, plan.DataDir)
			_, err = Export(t.Context(), settings, archive.Target{Revision: l.last}, path, NewMeter(nil))
			require.NoError(t, err, "it was asked for")
		})
	}
}

// shipNothing puts a segment of one marker into a store.
func (l lived) shipNothing(t *testing.T, kept *archive.Archive, start segment.Start) {
	builder, err := segment.NewBuilder(kept.Keys(), start)
	require.NoError(t, err)
	require.NoError(t, builder.Marker(segment.Marker{Revision: l.last, Time: noon.Add(time.Hour)}))
	object, err := builder.Finish(segment.Source{})
	require.NoError(t, err)
	require.NoError(t, kept.PutSegment(t.Context(), object))
}

// Our backups went on where the sidecar's ended: what ours lack is not to be had from there.
func TestWhatOursShouldHaveIsNotTakenFromTheSidecars(t *testing.T) {
	l := live(t)
	settings := l.keepAsSidecar(t)
	kept := settings.Archive()
	_, err := kept.Found(t.Context(), "c1", noon.Add(time.Hour))
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "out.db")
	for _, target := range []archive.Target{{}, {Time: noon.Add(2 * time.Hour)}} {
		_, err = Export(t.Context(), settings, target, path, NewMeter(nil))
		require.ErrorIs(t, err, archive.ErrNotKept, target)
		_, err = Restore(t.Context(), settings, target, planned(t), NewMeter(nil))
		require.ErrorIs(t, err, archive.ErrNotKept, target)
	}
	exported, err := Export(t.Context(), settings, archive.Target{Time: noon.Add(time.Duration(l.last-2) * time.Second)}, path, NewMeter(nil))
	require.NoError(t, err, "it was before ours")
	assert.Equal(t, l.last-2, exported.Revision)
}

// A full that is damaged is left for the one before it.
func TestTheSidecarsDamagedFullIsLeftForAnOlderOne(t *testing.T) {
	l := live(t)
	settings := l.keepAsSidecar(t)
	name := fmt.Sprintf("v2/Full-%08d-%08d-%d", 0, l.revision+2, noon.Unix()+30)
	settings.Store.(*memory.Store).SetContent(name, l.snapshot[:len(l.snapshot)-7])
	path := filepath.Join(t.TempDir(), "out.db")
	exported, err := Export(t.Context(), settings, archive.Target{}, path, NewMeter(nil))
	require.NoError(t, err)
	assert.NotEqual(t, name, exported.Full)
	l.requireSnapshot(t, path, l.last)
}

func TestMain(m *testing.M) {
	status := m.Run()
	datadirtest.Clean()
	os.Exit(status)
}
