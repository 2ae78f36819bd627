package recovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/relation"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/internal/disk"
	"etcd-wrapper/recovery/seed"
)

func TestMain(m *testing.M) {
	status := m.Run()
	datadirtest.Clean()
	os.Exit(status)
}

// ours is the ID of the test cluster.
const ours = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"

// A world consists of a store and a volume with the data of a closed etcd.
type world struct {
	t       *testing.T
	volume  string
	older   string // copy of the data directory for rollBack
	member  Member
	store   *memory.Store
	archive *archive.Archive
	options Options
	log     bytes.Buffer
	clock   time.Time        // advances only during pauses if set by setClock
	now     func() time.Time // nil for the system clock
	wait    func(context.Context, int)
	still   time.Duration // idle time before a generation may be replaced; 0 disables the wait
	late    time.Duration // how long a multi-member cluster without data waits for volumes to be mounted
	needed  int64         // number of bytes required by the last check of the free space
	room    int           // number of preserved copies that fit on the volume; negative means unlimited
}

func asItsToken(token string) string { return token }

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, volume: t.TempDir(), store: memory.New(), room: -1}
	w.archive = archive.New(w.store, &format.Keys{})
	w.member = Member{
		Config: embed.NewConfig(), DataDir: filepath.Join(w.volume, "new.etcd"), PeerURLs: types.MustNewURLs([]string{"http://127.0.0.1:1"}), Alone: true,
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

// fill runs an etcd server that writes one key to the volume, and then backs up the volume.
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

// uploadFullAs stores a full snapshot of the volume as the given member and with the given time.
func (w *world) uploadFullAs(member, cluster string, generation int, made time.Time) {
	w.t.Helper()
	stands := positionOf(w.t, w.member.DataDir)
	database, err := os.Open(w.database())
	require.NoError(w.t, err)
	defer database.Close()
	_, err = archivetest.PutFull(w.t.Context(), w.archive, archive.Full{
		Cluster: cluster, Generation: generation, Revision: stands.Revision, Chain: format.Seed(cluster, generation, stands.Revision),
		Time: made.UTC().Truncate(time.Second), Reason: "requested", Member: member,
	}, database)
	require.NoError(w.t, err)
}

// found initializes the store for the data, like the backup writer.
func (w *world) found(created time.Time) {
	w.t.Helper()
	_, err := w.archive.Create(w.t.Context(), archive.Cluster{Cluster: ours, Owner: w.member.InitialClusterToken, Etcd: hex(positionOf(w.t, w.member.DataDir).ClusterID), Created: created}, 1)
	require.NoError(w.t, err)
	if identity, err := archive.ReadIdentity(w.member.DataDir); !identity.Known() {
		require.NoError(w.t, err)
		w.setGeneration(1)
	}
}

// setGeneration sets the generation in the identity of the data.
func (w *world) setGeneration(generation int) {
	w.t.Helper()
	require.NoError(w.t, archive.Identity{Cluster: ours, Generation: generation}.Write(w.member.DataDir))
}

// positionOf returns the position of the data, which must be readable.
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

// keys returns the keys and the revision on the volume.
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

// requireKeys checks which keys are on the volume.
func (w *world) requireKeys(want ...string) {
	w.t.Helper()
	keys, _ := w.keys()
	require.Equal(w.t, want, keys)
}

// setClock makes the clock advance only during pauses, by the given amount per pause.
func (w *world) setClock(each time.Duration) {
	w.clock = at
	w.now = func() time.Time { return w.clock }
	w.wait = func(context.Context, int) { w.clock = w.clock.Add(each) }
}

// recovery returns a Recovery that does not wait unless the test enables waiting.
func (w *world) recovery() *Recovery {
	r := New(w.options)
	r.lateMounts, r.idleTime, r.wait = w.late, w.still, w.wait
	if w.room >= 0 {
		r.checkRoom = func(_ seed.Seed, source restore.Source) error {
			w.needed = source.DatabaseBytes
			if len(w.preservedCopies()) > w.room {
				return fmt.Errorf("%w on the volume", restore.ErrNoRoom)
			}
			return nil
		}
	}
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

// cutAt interrupts a run just before an action.
func (w *world) cutAt(at Action) error {
	return w.runWith(before(at, func() error { return errCut }))
}

// requireStarts checks that etcd can open the volume unchanged, with the configured members.
func (w *world) requireStarts() {
	w.t.Helper()
	start, err := w.start(nil)
	require.NoError(w.t, err, w.log.String())
	require.Empty(w.t, start)
	require.Empty(w.t, w.preserved())
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
		return nil // etcd has not stored anything
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

// losses maps names to functions that make a volume lose its data.
var losses = map[string]func(*world){
	"broken": (*world).damage,
	"empty":  (*world).lose,
}

// copyVolume copies the data directory so that rollBack can restore it.
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

// requireEnd checks the result of a restore: a new cluster with the given keys, a revision above every earlier one,
// the given number of preserved copies, and no unfinished directories. requireEnd also checks that a second run
// changes nothing.
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

// leftovers returns the unfinished directories.
func (w *world) leftovers() []string {
	w.t.Helper()
	found, err := filepath.Glob(w.member.DataDir + ".restor*")
	require.NoError(w.t, err)
	return found
}

// preservedCopies returns the preserved copies of the data and of the spool.
func (w *world) preservedCopies() (paths []string) {
	for _, path := range []string{w.member.DataDir, w.options.SpoolDir} {
		for _, old := range disk.PreservedCopies(path) {
			paths = append(paths, old.Path)
		}
	}
	return paths
}

// flipBit flips a bit of the last value on the volume to simulate a faulty disk.
func (w *world) flipBit() {
	w.t.Helper()
	w.updateDatabase(func(tx *bolt.Tx) error {
		rows := tx.Bucket(schema.Key.Name())
		key, value := rows.Cursor().Last()
		changed := bytes.Clone(value)
		changed[len(changed)-1] ^= 1
		return rows.Put(bytes.Clone(key), changed)
	})
}

// updateDatabase changes the database while etcd is closed.
func (w *world) updateDatabase(change func(*bolt.Tx) error) {
	w.t.Helper()
	db, err := bolt.Open(w.database(), 0o600, nil)
	require.NoError(w.t, err)
	defer db.Close()
	require.NoError(w.t, db.Update(change))
}

// refuse records that the writer rejected the data in a directory, whose name is the data directory plus suffix.
// Revisions first to last differ from those in the store. If last is 0, no rows were compared.
func (w *world) refuse(first, last int64, suffix string) {
	w.t.Helper()
	why := errors.New("another copy of this data is writing to the same backups")
	if last > 0 {
		why = &relation.RowsError{Err: why, First: first, Last: last}
	}
	require.NoError(w.t, w.recovery().RecordMismatch(w.member.DataDir+suffix, why))
}

// setKeys replaces the keys of the writer and of recovery.
func (w *world) setKeys(keys *format.Keys) {
	w.archive = archive.New(w.store, keys)
	w.options.Archive = w.archive
}

// uploadSegment stores a segment with the rows that only the volume has.
func (w *world) uploadSegment() format.Object {
	w.t.Helper()
	head, err := w.archive.Head(w.t.Context(), 1)
	require.NoError(w.t, err)
	builder, err := format.NewSegmentBuilder(w.archive.Keys(), head.Start)
	require.NoError(w.t, err)
	db, err := bolt.Open(w.database(), 0, &bolt.Options{ReadOnly: true})
	require.NoError(w.t, err)
	defer db.Close()
	require.NoError(w.t, db.View(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("key")).ForEach(func(key, value []byte) error {
			row := format.Row{Key: key, Value: value}
			if revision, err := row.Revision(); err != nil || revision <= head.Revision() {
				return err
			}
			return builder.Add(&row)
		})
	}))
	object, err := builder.Finish(format.Source{})
	require.NoError(w.t, err)
	require.NoError(w.t, archivetest.PutSegment(w.t.Context(), w.archive, object))
	return object
}

// objects returns the names of the objects with a prefix.
func (w *world) objects(prefix string) (names []string) {
	w.t.Helper()
	for object, err := range w.store.List(w.t.Context(), prefix, "") {
		require.NoError(w.t, err)
		names = append(names, object.Name)
	}
	return names
}

// files returns the files of all data directories.
func (w *world) files() (found []string) {
	w.t.Helper()
	for _, of := range []string{"*/member/*/*", recordFile} {
		all, err := fs.Glob(os.DirFS(w.volume), of)
		require.NoError(w.t, err)
		found = append(found, all...)
	}
	return found
}

// corrupt damages objects of the store.
func (w *world) corrupt(names ...string) {
	w.t.Helper()
	for _, name := range names {
		content, exists := w.store.Content(name)
		require.True(w.t, exists, name)
		w.store.SetContent(name, append(content, 'x'))
	}
}

// manifest returns the name of the newest full snapshot's manifest.
func (w *world) manifest() string {
	w.t.Helper()
	head, err := w.archive.Head(w.t.Context(), 1)
	require.NoError(w.t, err)
	return archive.ManifestName(1, head.Full.Name())
}

// statusOf returns the exit status for a refusal, or 0 if recovery retries.
func (w *world) statusOf(err error) exitcode.Code {
	w.t.Helper()
	require.Error(w.t, err)
	return exitcode.StatusOf(err, exitcode.Clean)
}

// deleteAll deletes all objects with a prefix, as retention does.
func (w *world) deleteAll(prefix string) {
	w.t.Helper()
	for _, name := range w.objects(prefix) {
		require.NoError(w.t, w.store.Delete(w.t.Context(), name))
	}
}

// identity returns the identity of the data.
func (w *world) identity() archive.Identity {
	w.t.Helper()
	identity, err := archive.ReadIdentity(w.member.DataDir)
	require.NoError(w.t, err)
	return identity
}

func (w *world) clusterManifest() archive.Cluster {
	w.t.Helper()
	cluster, err := w.archive.Cluster(w.t.Context())
	require.NoError(w.t, err)
	return cluster
}

// replaceByPlainData gives the volume the data of a plain etcd.
func (w *world) replaceByPlainData() {
	w.t.Helper()
	w.lose()
	require.NoError(w.t, os.Rename(datadirtest.Initialized(w.t), w.member.DataDir))
}

// barelyStarted leaves the directories of an etcd server that was killed right after its first start.
func barelyStarted(w *world) {
	w.t.Helper()
	w.lose()
	require.NoError(w.t, os.MkdirAll(filepath.Join(w.member.DataDir, "member", "snap"), 0o700))
}

// advanceStore adds revisions to the store that the volume lacks.
func (w *world) advanceStore() {
	w.t.Helper()
	w.copyVolume()
	w.put("a")
	w.backUp()
	w.rollBack()
}

func (w *world) emptyStore() {
	w.store = memory.New()
	w.archive = archive.New(w.store, w.archive.Keys())
	w.options.Archive = w.archive
}

// joinedBy adds members to the database while etcd is closed.
func (w *world) joinedBy(ids ...string) {
	w.t.Helper()
	w.updateDatabase(func(tx *bolt.Tx) error {
		members := tx.Bucket(schema.Members.Name())
		_, first := members.Cursor().First()
		value := bytes.Clone(first)
		for _, id := range ids {
			if err := members.Put([]byte(strings.Repeat("0", 16-len(id))+id), value); err != nil {
				return err
			}
		}
		return nil
	})
}

// leave records in the closed database that the member was removed from the cluster, as etcd would.
func (w *world) leave() {
	w.t.Helper()
	id := []byte(hex(positionOf(w.t, w.member.DataDir).MemberID))
	w.updateDatabase(func(tx *bolt.Tx) error {
		return errors.Join(tx.Bucket(schema.Members.Name()).Delete(id), tx.Bucket(schema.MembersRemoved.Name()).Put(id, []byte("removed")))
	})
}

// verify records in the store that a restore test of the newest full snapshot was successful.
func (w *world) verify() {
	w.t.Helper()
	full := w.newestFull()
	require.NoError(w.t, w.archive.PutResult(w.t.Context(), archive.Result{
		Cluster: full.Cluster, Generation: full.Generation, Full: full.Name(), Revision: full.Revision, Outcome: archive.Verified, At: time.Now(),
	}))
}

// endSession stores the end of a session in generation 1.
func (w *world) endSession(source format.Source) {
	w.t.Helper()
	head, err := w.archive.Head(w.t.Context(), 1)
	require.NoError(w.t, err)
	builder, err := format.NewSegmentBuilder(w.archive.Keys(), head.Start)
	require.NoError(w.t, err)
	object, err := builder.Finish(source)
	require.NoError(w.t, err)
	require.NoError(w.t, w.archive.PutStored(w.t.Context(), 1, object.Position, object.Reader()))
}

// replaceKeys gives the member keys that have not signed anything in the store.
func (w *world) replaceKeys() {
	w.options.Archive = archive.New(w.store, formattest.NewKeys(w.t).Load(w.t))
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
