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

// A fixture is a member that is not running etcd, with its volume, its store and the options of its Recovery.
type fixture struct {
	t           *testing.T
	volume      string
	copyDir     string // copy of the data directory for rollBack
	member      Member
	store       *memory.Store
	archive     *archive.Archive
	options     Options
	log         bytes.Buffer
	clock       time.Time        // advances only during pauses if set by setClock
	now         func() time.Time // nil for the system clock
	wait        func(context.Context, int)
	idleTime    time.Duration // idle time before a generation may be replaced; 0 disables the wait
	lateMounts  time.Duration // how long a multi-member cluster without data waits for volumes to be mounted
	neededBytes int64         // number of bytes for which recovery last checked the free space
	room        int           // number of preserved copies that fit on the volume; negative means unlimited
}

func tokenAsOwner(token string) string { return token }

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, volume: t.TempDir(), store: memory.New(), room: -1}
	f.archive = archive.New(f.store, &format.Keys{})
	f.member = Member{
		Config: embed.NewConfig(), DataDir: filepath.Join(f.volume, "new.etcd"), PeerURLs: types.MustNewURLs([]string{"http://127.0.0.1:1"}), Alone: true,
	}
	f.options = Options{
		Archive: f.archive, VolumeDir: f.volume, Validate: datadir.Verify, Log: zerolog.New(&f.log), Owner: tokenAsOwner,
		FlushSpool: func(context.Context, archive.Identity, int64) error { return nil },
	}
	f.wait = func(context.Context, int) {}
	return f
}

// newFilledFixture returns a fixture with one key on the volume and a backup of it.
func newFilledFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	f.fill()
	return f
}

// fill runs an etcd server that writes one key to the volume, and then backs up the volume.
func (f *fixture) fill() {
	f.t.Helper()
	require.NoError(f.t, os.Rename(datadirtest.Initialized(f.t), f.member.DataDir))
	f.backUp()
}

// backUp initializes the store and stores a full snapshot of the volume.
func (f *fixture) backUp() {
	f.t.Helper()
	f.initStore(time.Now())
	f.uploadFull(ours)
}

// uploadFull stores a full snapshot of the volume in a cluster's first generation.
func (f *fixture) uploadFull(cluster string) {
	f.t.Helper()
	f.uploadFullAs("", cluster, 1, time.Now())
}

// uploadFullAs stores a full snapshot of the volume as the given member and with the given time.
func (f *fixture) uploadFullAs(member, cluster string, generation int, made time.Time) {
	f.t.Helper()
	position := positionOf(f.t, f.member.DataDir)
	database, err := os.Open(f.database())
	require.NoError(f.t, err)
	defer database.Close()
	_, err = archivetest.PutFull(f.t.Context(), f.archive, archive.Full{
		Cluster: cluster, Generation: generation, Revision: position.Revision, Chain: format.Seed(cluster, generation, position.Revision),
		Time: made.UTC().Truncate(time.Second), Reason: "requested", Member: member,
	}, database)
	require.NoError(f.t, err)
}

// initStore creates the cluster and its first generation in the store, like the backup writer.
func (f *fixture) initStore(created time.Time) {
	f.t.Helper()
	_, err := f.archive.Create(f.t.Context(), archive.Cluster{Cluster: ours, Owner: f.member.InitialClusterToken, Etcd: hex(positionOf(f.t, f.member.DataDir).ClusterID), Created: created}, 1)
	require.NoError(f.t, err)
	if identity, err := archive.ReadIdentity(f.member.DataDir); !identity.Known() {
		require.NoError(f.t, err)
		f.setGeneration(1)
	}
}

// setGeneration sets the generation in the identity of the data.
func (f *fixture) setGeneration(generation int) {
	f.t.Helper()
	require.NoError(f.t, archive.Identity{Cluster: ours, Generation: generation}.Write(f.member.DataDir))
}

// positionOf returns the position of the data, which must be readable.
func positionOf(t *testing.T, dataDir string) datadir.Position {
	t.Helper()
	position, err := datadir.ReadPosition(dataDir)
	require.NoError(t, err)
	return position
}

func (f *fixture) database() string { return filepath.Join(f.member.DataDir, "member", "snap", "db") }

// put runs etcd on the volume and writes keys.
func (f *fixture) put(keys ...string) {
	f.t.Helper()
	server, err := datadirtest.Start(f.member.DataDir)
	require.NoError(f.t, err)
	defer server.Close()
	for _, key := range keys {
		_, err := v3client.New(server.Server).Put(f.t.Context(), key, "value")
		require.NoError(f.t, err)
	}
}

// keys returns the keys and the revision on the volume.
func (f *fixture) keys() (keys []string, revision int64) {
	f.t.Helper()
	server, err := datadirtest.Start(f.member.DataDir)
	require.NoError(f.t, err)
	defer server.Close()
	all, err := v3client.New(server.Server).Get(f.t.Context(), "", clientv3.WithPrefix())
	require.NoError(f.t, err)
	for _, kv := range all.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys, all.Header.Revision
}

// requireKeys checks which keys are on the volume.
func (f *fixture) requireKeys(want ...string) {
	f.t.Helper()
	keys, _ := f.keys()
	require.Equal(f.t, want, keys)
}

// setClock makes the clock advance only during pauses, by the given amount per pause.
func (f *fixture) setClock(each time.Duration) {
	f.clock = at
	f.now = func() time.Time { return f.clock }
	f.wait = func(context.Context, int) { f.clock = f.clock.Add(each) }
}

// recovery returns a Recovery that does not wait unless the test enables waiting.
func (f *fixture) recovery() *Recovery {
	r := New(f.options)
	r.lateMounts, r.idleTime, r.wait = f.lateMounts, f.idleTime, f.wait
	if f.room >= 0 {
		r.checkRoom = func(_ seed.Seed, source restore.Source) error {
			f.neededBytes = source.DatabaseBytes
			if len(f.preservedCopies()) > f.room {
				return fmt.Errorf("%w on the volume", restore.ErrNoRoom)
			}
			return nil
		}
	}
	if f.now != nil {
		r.now = f.now
	}
	return r
}

func (f *fixture) run() error { return f.runWith(nil) }

func (f *fixture) runWith(interrupt func(Action) error) error {
	_, err := f.start(interrupt)
	return err
}

// interruptBefore interrupts a run just before an action.
func (f *fixture) interruptBefore(at Action) error {
	return f.runWith(before(at, func() error { return errInterrupted }))
}

// requireStarts checks that etcd can open the volume unchanged, with the configured members.
func (f *fixture) requireStarts() {
	f.t.Helper()
	start, err := f.start(nil)
	require.NoError(f.t, err, f.log.String())
	require.Empty(f.t, start)
	require.Empty(f.t, f.preserved())
}

func (f *fixture) start(interrupt func(Action) error) (string, error) {
	return f.startWithin(f.t.Context(), interrupt)
}

func (f *fixture) startWithin(ctx context.Context, interrupt func(Action) error) (string, error) {
	r := f.recovery()
	r.interrupt = interrupt
	return r.prepare(ctx, f.member, f.examine)
}

// prepare runs a Recovery that a test has configured.
func (f *fixture) prepare(r *Recovery) error {
	_, err := r.prepare(f.t.Context(), f.member, f.examine)
	return err
}

// examine validates the data directory.
func (f *fixture) examine(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(f.member.DataDir, "member", "wal")); errors.Is(err, fs.ErrNotExist) {
		return nil // etcd has not stored anything
	}
	_, err := datadir.Verify(ctx, f.member.DataDir, bootstrap.Full)
	return err
}

// damage overwrites the start of the database.
func (f *fixture) damage() {
	f.t.Helper()
	file, err := os.OpenFile(f.database(), os.O_RDWR, 0)
	require.NoError(f.t, err)
	defer file.Close()
	_, err = file.WriteAt(bytes.Repeat([]byte{0xff}, 16<<10), 0)
	require.NoError(f.t, err)
}

// lose removes the data directory.
func (f *fixture) lose() {
	f.t.Helper()
	require.NoError(f.t, os.RemoveAll(f.member.DataDir))
}

// losses maps names to functions that make a volume lose its data.
var losses = map[string]func(*fixture){
	"broken": (*fixture).damage,
	"empty":  (*fixture).lose,
}

// copyVolume copies the data directory so that rollBack can restore it.
func (f *fixture) copyVolume() {
	f.t.Helper()
	f.copyDir = filepath.Join(f.t.TempDir(), "older")
	require.NoError(f.t, os.CopyFS(f.copyDir, os.DirFS(f.member.DataDir)))
}

// rollBack replaces the data directory with the copy.
func (f *fixture) rollBack() {
	f.t.Helper()
	f.lose()
	require.NoError(f.t, os.CopyFS(f.member.DataDir, os.DirFS(f.copyDir)))
}

// requireRestored runs recovery once more and checks that it keeps the result of the restore: a new cluster with the
// given keys, a revision above every earlier one, the given number of preserved copies, and no unfinished
// directories.
func (f *fixture) requireRestored(keys []string, copies int) {
	f.t.Helper()
	require.NoError(f.t, f.run(), "the restored data is valid and up to date")
	require.Len(f.t, f.preserved(), copies)
	for _, dir := range f.preserved() {
		require.FileExists(f.t, filepath.Join(dir, "member", "snap", "db"), "preserved copies are complete")
	}
	require.Empty(f.t, f.leftovers())
	found, revision := f.keys()
	require.Equal(f.t, keys, found)
	all := f.generations()
	require.Len(f.t, all, 2)
	require.Greater(f.t, revision, all[1].ParentRevision+margin)
	require.Equal(f.t, ours, all[1].Cluster)
	require.Equal(f.t, hex(positionOf(f.t, f.member.DataDir).ClusterID), all[1].Etcd)
	require.NotEqual(f.t, all[0].Etcd, all[1].Etcd)
	require.Equal(f.t, archive.Identity{Cluster: ours, Generation: 2}, f.identity())
	reserved, err := f.archive.Reserved(f.t.Context())
	require.NoError(f.t, err)
	require.Greater(f.t, reserved.Revision, revision)
}

// preserved returns the preserved data directories.
func (f *fixture) preserved() []string {
	f.t.Helper()
	found, err := filepath.Glob(f.member.DataDir + ".aside-*")
	require.NoError(f.t, err)
	return found
}

// leftovers returns the unfinished directories.
func (f *fixture) leftovers() []string {
	f.t.Helper()
	found, err := filepath.Glob(f.member.DataDir + ".restor*")
	require.NoError(f.t, err)
	return found
}

// preservedCopies returns the preserved copies of the data and of the spool.
func (f *fixture) preservedCopies() (paths []string) {
	for _, path := range []string{f.member.DataDir, f.options.SpoolDir} {
		for _, old := range disk.PreservedCopies(path) {
			paths = append(paths, old.Path)
		}
	}
	return paths
}

// flipBit flips a bit of the last value on the volume to simulate a faulty disk.
func (f *fixture) flipBit() {
	f.t.Helper()
	f.updateDatabase(func(tx *bolt.Tx) error {
		rows := tx.Bucket(schema.Key.Name())
		key, value := rows.Cursor().Last()
		changed := bytes.Clone(value)
		changed[len(changed)-1] ^= 1
		return rows.Put(bytes.Clone(key), changed)
	})
}

// updateDatabase changes the database. etcd must be closed.
func (f *fixture) updateDatabase(change func(*bolt.Tx) error) {
	f.t.Helper()
	db, err := bolt.Open(f.database(), 0o600, nil)
	require.NoError(f.t, err)
	defer db.Close()
	require.NoError(f.t, db.Update(change))
}

// rejectData records that the writer rejected the data in a directory, whose name is the data directory plus suffix.
// Revisions first to last differ from those in the store. If last is 0, no rows were compared.
func (f *fixture) rejectData(first, last int64, suffix string) {
	f.t.Helper()
	why := errors.New("another copy of this data is writing to the same backups")
	if last > 0 {
		why = &relation.RowsError{Err: why, First: first, Last: last}
	}
	require.NoError(f.t, f.recovery().RecordMismatch(f.member.DataDir+suffix, why))
}

// setKeys replaces the keys of the writer and of recovery.
func (f *fixture) setKeys(keys *format.Keys) {
	f.archive = archive.New(f.store, keys)
	f.options.Archive = f.archive
}

// uploadSegment stores a segment with the rows that only the volume has.
func (f *fixture) uploadSegment() format.Object {
	f.t.Helper()
	head, err := f.archive.Head(f.t.Context(), 1)
	require.NoError(f.t, err)
	builder, err := format.NewSegmentBuilder(f.archive.Keys(), head.Start)
	require.NoError(f.t, err)
	db, err := bolt.Open(f.database(), 0, &bolt.Options{ReadOnly: true})
	require.NoError(f.t, err)
	defer db.Close()
	require.NoError(f.t, db.View(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("key")).ForEach(func(key, value []byte) error {
			row := format.Row{Key: key, Value: value}
			if revision, err := row.Revision(); err != nil || revision <= head.Revision() {
				return err
			}
			return builder.Add(&row)
		})
	}))
	object, err := builder.Finish(format.Source{})
	require.NoError(f.t, err)
	require.NoError(f.t, archivetest.PutSegment(f.t.Context(), f.archive, object))
	return object
}

// objects returns the names of the objects with a prefix.
func (f *fixture) objects(prefix string) (names []string) {
	f.t.Helper()
	for object, err := range f.store.List(f.t.Context(), prefix, "") {
		require.NoError(f.t, err)
		names = append(names, object.Name)
	}
	return names
}

// files returns the files of all data directories, and the recovery record if it exists.
func (f *fixture) files() (found []string) {
	f.t.Helper()
	for _, pattern := range []string{"*/member/*/*", recordFile} {
		all, err := fs.Glob(os.DirFS(f.volume), pattern)
		require.NoError(f.t, err)
		found = append(found, all...)
	}
	return found
}

// corrupt appends a byte to objects in the store.
func (f *fixture) corrupt(names ...string) {
	f.t.Helper()
	for _, name := range names {
		content, exists := f.store.Content(name)
		require.True(f.t, exists, name)
		f.store.SetContent(name, append(content, 'x'))
	}
}

// manifest returns the name of the newest full snapshot's manifest.
func (f *fixture) manifest() string {
	f.t.Helper()
	head, err := f.archive.Head(f.t.Context(), 1)
	require.NoError(f.t, err)
	return archive.ManifestName(1, head.Full.Name())
}

// statusOf returns the exit status for an error from recovery, or 0 if the error is temporary and is retried.
func (f *fixture) statusOf(err error) exitcode.Code {
	f.t.Helper()
	require.Error(f.t, err)
	return exitcode.StatusOf(err, exitcode.Clean)
}

// deleteAll deletes all objects with a prefix, as retention does.
func (f *fixture) deleteAll(prefix string) {
	f.t.Helper()
	for _, name := range f.objects(prefix) {
		require.NoError(f.t, f.store.Delete(f.t.Context(), name))
	}
}

// identity returns the identity of the data.
func (f *fixture) identity() archive.Identity {
	f.t.Helper()
	identity, err := archive.ReadIdentity(f.member.DataDir)
	require.NoError(f.t, err)
	return identity
}

func (f *fixture) clusterManifest() archive.Cluster {
	f.t.Helper()
	cluster, err := f.archive.Cluster(f.t.Context())
	require.NoError(f.t, err)
	return cluster
}

// replaceByPlainData replaces the data with data of plain etcd, which does not record which cluster it belongs to.
func (f *fixture) replaceByPlainData() {
	f.t.Helper()
	f.lose()
	require.NoError(f.t, os.Rename(datadirtest.Initialized(f.t), f.member.DataDir))
}

// killAtFirstStart replaces the data with the directories that etcd leaves if it is killed right after its first
// start.
func killAtFirstStart(f *fixture) {
	f.t.Helper()
	f.lose()
	require.NoError(f.t, os.MkdirAll(filepath.Join(f.member.DataDir, "member", "snap"), 0o700))
}

// advanceStore adds revisions to the store that the volume lacks.
func (f *fixture) advanceStore() {
	f.t.Helper()
	f.copyVolume()
	f.put("a")
	f.backUp()
	f.rollBack()
}

func (f *fixture) emptyStore() {
	f.store = memory.New()
	f.archive = archive.New(f.store, f.archive.Keys())
	f.options.Archive = f.archive
}

// addMembers adds members with the given IDs to the database. etcd must be closed.
func (f *fixture) addMembers(ids ...string) {
	f.t.Helper()
	f.updateDatabase(func(tx *bolt.Tx) error {
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

// recordRemoval records in the closed database that the member was removed from the cluster, as etcd would.
func (f *fixture) recordRemoval() {
	f.t.Helper()
	id := []byte(hex(positionOf(f.t, f.member.DataDir).MemberID))
	f.updateDatabase(func(tx *bolt.Tx) error {
		return errors.Join(tx.Bucket(schema.Members.Name()).Delete(id), tx.Bucket(schema.MembersRemoved.Name()).Put(id, []byte("removed")))
	})
}

// recordRestoreTest records in the store that a restore test of the newest full snapshot was successful.
func (f *fixture) recordRestoreTest() {
	f.t.Helper()
	full := f.newestFull()
	require.NoError(f.t, f.archive.PutResult(f.t.Context(), archive.Result{
		Cluster: full.Cluster, Generation: full.Generation, Full: full.Name(), Revision: full.Revision, Outcome: archive.Verified, At: time.Now(),
	}))
}

// endSession stores a segment without rows that ends a writer's session in generation 1.
func (f *fixture) endSession(source format.Source) {
	f.t.Helper()
	head, err := f.archive.Head(f.t.Context(), 1)
	require.NoError(f.t, err)
	builder, err := format.NewSegmentBuilder(f.archive.Keys(), head.Start)
	require.NoError(f.t, err)
	object, err := builder.Finish(source)
	require.NoError(f.t, err)
	require.NoError(f.t, f.archive.PutStored(f.t.Context(), 1, object.Position, object.Reader()))
}

// replaceKeys gives the member keys that have not signed anything in the store.
func (f *fixture) replaceKeys() {
	f.options.Archive = archive.New(f.store, formattest.NewKeys(f.t).Load(f.t))
}

func (f *fixture) newestFull() archive.StoredFull {
	f.t.Helper()
	history, err := f.archive.History(f.t.Context())
	require.NoError(f.t, err)
	fulls := history.Newest().Fulls
	return fulls[len(fulls)-1]
}

func (f *fixture) generations() []archive.Generation {
	f.t.Helper()
	all, err := f.archive.Generations(f.t.Context())
	require.NoError(f.t, err)
	return all
}

var errInterrupted = errors.New("interrupted by the test")
