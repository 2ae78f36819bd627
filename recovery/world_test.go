package recovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

func TestMain(m *testing.M) {
	status := m.Run()
	datadirtest.Clean()
	os.Exit(status)
}

// ours is the ID of the cluster in these tests.
const ours = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"

// A world is a volume with the data of a closed etcd, and a store.
type world struct {
	t       *testing.T
	volume  string
	older   string // an earlier copy of the data directory
	member  Member
	store   *memory.Store
	archive *archive.Archive
	options Options
	log     bytes.Buffer
	now     func() time.Time
	wait    func(context.Context, int)
	still   time.Duration // idle time before a generation is replaced; 0 makes tests wait for none
}

func asItsToken(token string) string { return token }

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, volume: t.TempDir(), store: memory.New()}
	w.archive = archive.New(w.store, &format.Keys{})
	w.member = Member{
		DataDir: filepath.Join(w.volume, "new.etcd"), Name: "default", PeerURLs: types.MustNewURLs([]string{"http://127.0.0.1:1"}), Token: "etcd-cluster", Alone: true,
	}
	w.options = Options{
		Archive: w.archive, VolumeDir: w.volume, Validate: datadir.Verify, Log: zerolog.New(&w.log), Owner: asItsToken,
		FlushSpool: func(context.Context, archive.Identity, int64) error { return nil },
	}
	w.wait = func(context.Context, int) {}
	return w
}

// newFilledWorld returns a world with data and a backup.
func newFilledWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.fill()
	return w
}

// fill gives the volume the data of an etcd with one key, and backs them up.
func (w *world) fill() {
	w.t.Helper()
	require.NoError(w.t, os.Rename(datadirtest.Initialized(w.t), w.member.DataDir))
	w.backUp()
}

// backUp initializes the store and stores a full snapshot of the volume.
func (w *world) backUp() {
	w.t.Helper()
	w.found(time.Now())
	w.uploadFull(ours)
}

// uploadFull stores a full snapshot of the volume in a cluster's first generation.
func (w *world) uploadFull(cluster string) {
	w.t.Helper()
	w.uploadFullAs("", cluster, 1, time.Now())
}

// uploadFullAs stores a full snapshot of the volume as the given member, with the given time.
func (w *world) uploadFullAs(member, cluster string, generation int, made time.Time) {
	w.t.Helper()
	stands := positionOf(w.t, w.member.DataDir)
	database, err := os.Open(w.database())
	require.NoError(w.t, err)
	defer database.Close()
	_, err = archivetest.PutFull(w.t.Context(), w.archive, archive.Full{
		Cluster: cluster, Generation: generation, Revision: stands.Revision, Chain: format.Seed(cluster, generation, stands.Revision),
		Time: made.UTC().Truncate(time.Second), Reason: "asked for", Member: member,
	}, database)
	require.NoError(w.t, err)
}

// found initializes the store for the data, as the backup writer does.
func (w *world) found(created time.Time) {
	w.t.Helper()
	_, err := w.archive.Create(w.t.Context(), archive.Cluster{Cluster: ours, Owner: w.member.Token, Etcd: hex(positionOf(w.t, w.member.DataDir).ClusterID), Created: created}, 1)
	require.NoError(w.t, err)
	if identity, err := archive.ReadIdentity(w.member.DataDir); !identity.Known() {
		require.NoError(w.t, err)
		w.setGeneration(1)
	}
}

// setGeneration writes the identity of the data.
func (w *world) setGeneration(generation int) {
	w.t.Helper()
	require.NoError(w.t, archive.Identity{Cluster: ours, Generation: generation}.Write(w.member.DataDir))
}

// positionOf returns the position of readable data.
func positionOf(t *testing.T, dataDir string) datadir.Position {
	t.Helper()
	stands, err := datadir.ReadPosition(dataDir)
	require.NoError(t, err)
	return stands
}

func (w *world) database() string { return filepath.Join(w.member.DataDir, "member", "snap", "db") }

// put runs etcd on the volume and writes keys.
func (w *world) put(keys ...string) {
	w.t.Helper()
	server, err := datadirtest.Start(w.member.DataDir)
	require.NoError(w.t, err)
	defer server.Close()
	for _, key := range keys {
		_, err := v3client.New(server.Server).Put(w.t.Context(), key, "value")
		require.NoError(w.t, err)
	}
}

// keys returns the keys on the volume and its revision.
func (w *world) keys() (keys []string, revision int64) {
	w.t.Helper()
	server, err := datadirtest.Start(w.member.DataDir)
	require.NoError(w.t, err)
	defer server.Close()
	all, err := v3client.New(server.Server).Get(w.t.Context(), "", clientv3.WithPrefix())
	require.NoError(w.t, err)
	for _, kv := range all.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys, all.Header.Revision
}

// requireKeys requires the keys on the volume.
func (w *world) requireKeys(want ...string) {
	w.t.Helper()
	keys, _ := w.keys()
	require.Equal(w.t, want, keys)
}

// setClock makes the clock advance only in pauses, by the same amount each. It returns the time.
func (w *world) setClock(each time.Duration) time.Time {
	now := at
	w.now = func() time.Time { return now }
	w.wait = func(context.Context, int) { now = now.Add(each) }
	return now
}

// recovery returns a Recovery that does not wait unless a test asks for it.
func (w *world) recovery() *Recovery {
	r := New(w.options)
	r.lateMounts, r.idleTime, r.wait = 0, w.still, w.wait
	if w.now != nil {
		r.now = w.now
	}
	return r
}

func (w *world) run() error { return w.runWith(nil) }

func (w *world) runWith(interrupt func(Action) error) error {
	_, err := w.start(interrupt)
	return err
}

// cutAt interrupts a run before an action.
func (w *world) cutAt(at Action) error {
	return w.runWith(before(at, func() error { return errCut }))
}

// requireRejoined requires that the peers add the member and that the run succeeds.
func (w *world) requireRejoined() {
	w.t.Helper()
	start, err := w.start(nil)
	require.NoError(w.t, err)
	require.Equal(w.t, takenIn, start)
}

// requireStarts requires that etcd may open the volume unchanged, with the configured members.
func (w *world) requireStarts() {
	w.t.Helper()
	w.requireStartsWithin(w.t.Context())
}

func (w *world) requireStartsWithin(ctx context.Context) {
	w.t.Helper()
	start, err := w.startWithin(ctx, nil)
	require.NoError(w.t, err, w.log.String())
	require.Empty(w.t, start)
	require.Empty(w.t, w.preserved())
}

// forbidPauses fails the test if recovery waits.
func (w *world) forbidPauses() {
	w.wait = func(context.Context, int) { require.FailNow(w.t, "there is nothing to wait for", w.log.String()) }
}

// inPause calls a function in the pause with the given number, and counts pauses.
func (w *world) inPause(which int, happens func()) (pauses *int) {
	pause := w.wait
	pauses = new(int)
	w.wait = func(ctx context.Context, times int) {
		if pause(ctx, times); *pauses == which-1 {
			happens()
		}
		*pauses++
	}
	return pauses
}

func (w *world) start(interrupt func(Action) error) (string, error) {
	return w.startWithin(w.t.Context(), interrupt)
}

func (w *world) startWithin(ctx context.Context, interrupt func(Action) error) (string, error) {
	r := w.recovery()
	r.interrupt = interrupt
	return r.prepare(ctx, w.member, w.examine)
}

// prepare runs a Recovery that a test has configured.
func (w *world) prepare(r *Recovery) error {
	_, err := r.prepare(w.t.Context(), w.member, w.examine)
	return err
}

// examine validates the data directory.
func (w *world) examine(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(w.member.DataDir, "member", "wal")); errors.Is(err, fs.ErrNotExist) {
		return nil // etcd had stored nothing
	}
	_, err := datadir.Verify(ctx, w.member.DataDir, bootstrap.Full)
	return err
}

// damage damages the database.
func (w *world) damage() {
	w.t.Helper()
	file, err := os.OpenFile(w.database(), os.O_RDWR, 0)
	require.NoError(w.t, err)
	defer file.Close()
	_, err = file.WriteAt(bytes.Repeat([]byte{0xff}, 16<<10), 0)
	require.NoError(w.t, err)
}

// lose removes the data.
func (w *world) lose() {
	w.t.Helper()
	require.NoError(w.t, os.RemoveAll(w.member.DataDir))
}

// losses list the ways in which a volume loses its data.
var losses = map[string]func(*world){
	"broken": (*world).damage,
	"empty":  (*world).lose,
}

// copyVolume copies the data directory for rollBack.
func (w *world) copyVolume() {
	w.t.Helper()
	w.older = filepath.Join(w.t.TempDir(), "older")
	require.NoError(w.t, os.CopyFS(w.older, os.DirFS(w.member.DataDir)))
}

// rollBack replaces the data directory with the copy.
func (w *world) rollBack() {
	w.t.Helper()
	w.lose()
	require.NoError(w.t, os.CopyFS(w.member.DataDir, os.DirFS(w.older)))
}

// requireEnd requires the result of a restore: a new cluster with the keys, whose revision is above every earlier
// one, asides preserved copies, and no unfinished directories. Another run changes nothing.
func (w *world) requireEnd(keys []string, asides int) {
	w.t.Helper()
	require.NoError(w.t, w.run(), "it is valid, and not behind")
	require.Len(w.t, w.preserved(), asides)
	for _, aside := range w.preserved() {
		require.FileExists(w.t, filepath.Join(aside, "member", "snap", "db"), "nothing is deleted")
	}
	require.Empty(w.t, w.leftovers())
	found, revision := w.keys()
	require.Equal(w.t, keys, found)
	all := w.generations()
	require.Len(w.t, all, 2)
	require.Greater(w.t, revision, all[1].ParentRevision+margin)
	require.Equal(w.t, ours, all[1].Cluster)
	require.Equal(w.t, hex(positionOf(w.t, w.member.DataDir).ClusterID), all[1].Etcd)
	require.NotEqual(w.t, all[0].Etcd, all[1].Etcd)
	require.Equal(w.t, archive.Identity{Cluster: ours, Generation: 2}, w.identity())
	reserved, err := w.archive.Reserved(w.t.Context())
	require.NoError(w.t, err)
	require.Greater(w.t, reserved.Revision, revision)
}

// preserved returns the preserved data directories.
func (w *world) preserved() []string {
	w.t.Helper()
	found, err := filepath.Glob(w.member.DataDir + ".aside-*")
	require.NoError(w.t, err)
	return found
}

// leftovers returns unfinished directories.
func (w *world) leftovers() []string {
	w.t.Helper()
	found, err := filepath.Glob(w.member.DataDir + ".restor*")
	require.NoError(w.t, err)
	return found
}

func (w *world) newestFull() archive.StoredFull {
	w.t.Helper()
	history, err := w.archive.History(w.t.Context())
	require.NoError(w.t, err)
	fulls := history.Newest().Fulls
	return fulls[len(fulls)-1]
}

func (w *world) generations() []archive.Generation {
	w.t.Helper()
	all, err := w.archive.Generations(w.t.Context())
	require.NoError(w.t, err)
	return all
}

var errCut = fmt.Errorf("cut off")
