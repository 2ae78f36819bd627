package writer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/cmd/suites/etcdtest"
)

// names returns the names of all objects.
func (s *stand) names() (found []string) {
	s.Helper()
	for object, err := range s.store.List(s.Context(), "", "") {
		require.NoError(s, err)
		if !strings.HasPrefix(object.Name, "probe/") { // which shows what a store can, and goes at once
			found = append(found, object.Name)
		}
	}
	return found
}

// requireUntouched checks that nothing is written and that the reason is reported.
func (s *stand) requireUntouched(sentence ...string) {
	s.Helper()
	before := s.names()
	s.eventually(func(f Facts) bool { return f.Problem != nil && f.Role == facts.Waiting }, "it is said")
	for _, part := range sentence {
		assert.Contains(s, s.Facts().Problem.Message, part)
	}
	assert.Contains(s, s.Facts().Problem.Message, "--backup-store")
	s.put("a", "1")
	require.ErrorContains(s, s.Flush(s.Context()), sentence[0])
	_, err := s.FullNow(s.Context(), "asked for")
	require.Error(s, err)
	assert.Equal(s, before, s.names())
	assert.Equal(s, facts.Waiting, s.Facts().Role)
}

// other stores a segment of one row as a member with another history would.
func (s *stand) other(rows ...format.Row) {
	s.Helper()
	object := segment(s.T, keys, s.head().Start, format.Source{Member: "1"}, rows...)
	require.NoError(s, archivetest.PutSegment(s.Context(), s.backups(), object))
}

// twin returns a stand with its own data and the same store; its data belong to another cluster, or to this one if copy
// is set. The first one has ended.
func (s *stand) twin(cluster string) *stand {
	s.Helper()
	s.end()
	dir := s.TempDir()
	other := &stand{T: s.T, etcd: etcdtest.Start(s.T, dir), store: s.store, log: s.log, options: s.options, tune: s.tune}
	other.options.Etcd = Server(other.etcd.Server)
	other.options.SpoolDir, other.options.DataDir = filepath.Join(dir, "spool"), dir
	other.is(cluster, 1)
	return other
}

// is sets the identity of the data; an empty cluster removes it.
func (s *stand) is(cluster string, generation int) {
	s.Helper()
	if cluster == "" {
		require.NoError(s, os.Remove(filepath.Join(s.options.DataDir, archive.IdentityFile)))
		return
	}
	require.NoError(s, archive.Identity{Cluster: cluster, Generation: generation}.Write(s.options.DataDir))
}

// identified returns the identity of the data.
func (s *stand) identified() archive.Identity {
	s.Helper()
	identity, err := archive.ReadIdentity(s.options.DataDir)
	require.NoError(s, err)
	return identity
}

// write makes a number of revisions, and returns the last.
func (s *stand) write(count int, value string) (last int64) {
	s.Helper()
	for i := range count {
		last = s.put(fmt.Sprint("key", i), value)
	}
	return last
}

// Both run, and the volume of one is a copy of the other's.
func TestVolumeCopy_firstUploadContinues(t *testing.T) {
	s := newStand(t)
	s.write(5, "first")
	s.run()
	s.eventually(func(f Facts) bool { return f.LastFull != nil && f.Role == facts.Writer }, "a full")
	copied := s.twin(clusterID)
	copied.write(5, "first")
	require.Equal(t, s.etcd.Revision(), copied.etcd.Revision())
	copied.tune = append(copied.tune, func(w *Writer) { w.pace.heartbeat = 5 * s.options.Interval }) // so that the first one comes in between
	s.run()
	copied.run()
	copied.eventually(func(f Facts) bool { return f.Role == facts.Writer }, "it has the same rows, as a second member has")
	last := s.put("a", "of the first")
	s.awaitStored(last)
	copied.awaitSuperseded("another copy of this data", "--adopt="+clusterID)
	s.awaitStored(s.put("a", "goes on"))
	s.requireAllKept()
}

// Without this record a process killed after its first upload would leave no trace of the cluster.
func TestVolume_recordsTheWriterBeforeTheFirstUpload(t *testing.T) {
	s := newStand(t)
	s.options.Session = "this process"
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", After: 1, Hang: true})
	s.run()
	s.eventually(storesItsCopy, "its data are in the store, and its manifest is not")
	assert.Equal(t, "this process", s.identified().Session)
}

func TestVolume_recordsTheEndOfTheStore(t *testing.T) {
	s := startedStand(t)
	last := s.put("a", "1")
	s.awaitStored(last)
	require.NoError(t, s.Flush(t.Context()))
	s.end()
	assert.Equal(t, format.After(last), s.identified().Position)
	assert.Equal(t, clusterID, s.identified().Cluster)
}

func TestNewStore_getsItsOwnID(t *testing.T) {
	s := newStand(t)
	s.is("", 0)
	s.options.Owner = "shop/etcd"
	s.run()
	s.awaitStored(s.put("a", "1"))
	is := s.identified()
	assert.Len(t, is.Cluster, 32)
	assert.NotEqual(t, s.options.Etcd.Identity().ClusterID, is.Cluster)
	first, err := s.backups().Cluster(t.Context())
	require.NoError(t, err)
	assert.Equal(t, is.Cluster, first.Cluster)
	assert.Equal(t, "shop/etcd", first.Owner)
	assert.Equal(t, s.options.Etcd.Identity().ClusterID, first.Etcd)
	facts := s.Facts()
	assert.Equal(t, []any{is.Cluster, "shop/etcd"}, []any{facts.Cluster, facts.Owner})
}

// The volume has the id before the store has, and a process that was killed in between starts with that.
func TestNewStore_interruptedCreation(t *testing.T) {
	for name, which := range map[string]string{"the cluster manifest": "cluster.json", "the generation": "gen/"} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			s.is("", 0)
			s.store.Inject(memory.Fault{Op: memory.Put, Prefix: which, Err: memory.ErrUnreachable})
			s.run()
			s.eventually(func(f Facts) bool { return f.Problem != nil }, "it is told")
			s.end()
			is := s.identified()
			s.store.ClearFaults()
			s.run()
			s.awaitStored(s.put("a", "1"))
			first, err := s.backups().Cluster(t.Context())
			require.NoError(t, err)
			assert.Equal(t, is.Cluster, first.Cluster)
		})
	}
}

// founded initializes a store for a cluster.
func (s *stand) founded(store *memory.Store, cluster string) archive.Generation {
	s.Helper()
	generation, err := archive.New(store, keys).Create(s.Context(), archive.Cluster{Cluster: cluster, Created: time.Now()}, 1)
	require.NoError(s, err)
	return generation
}

// restored creates the generation of a restore from the first one.
func (s *stand) restored() {
	s.Helper()
	next := archive.Generation{Number: 2, Cluster: clusterID, Parent: 1, ParentRevision: 1, Session: "theirs", Created: time.Now()}
	require.NoError(s, archivetest.BeginGeneration(s.Context(), s.backups(), next))
}

// with sets the keys.
func (s *stand) with(keys *format.Keys) {
	s.options.Archive = archive.New(s.store, keys)
}

// segmentsIn returns the names of the segments in a spool.
func segmentsIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	found, err := os.ReadDir(filepath.Join(dir, "segments"))
	require.NoError(t, err)
	for _, entry := range found {
		names = append(names, entry.Name())
	}
	return names
}

// waitingStand returns a stand that was stopped with a queued write, and whose store is reachable again.
func waitingStand(t *testing.T) *stand {
	t.Helper()
	s := startedStand(t)
	s.store.Inject(memory.Fault{Err: &store.Unavailable{}})
	s.put("a", "acknowledged")
	s.eventually(func(Facts) bool { return s.waits() > 0 }, "it waits")
	s.end()
	s.store.ClearFaults()
	return s
}

// For example on a full volume: the next capture must not replace it.
func TestSpool_noBackupsIfItCannotBePreserved(t *testing.T) {
	s := waitingStand(t)
	waited := segmentsIn(t, s.options.SpoolDir)
	s.is(clusterID, 2)
	moved := s.options.SpoolDir + strings.Repeat("d", 255-len(".aside-20260102T110000.000Z")-len("spool")+1)
	require.NoError(t, os.Rename(s.options.SpoolDir, moved)) // with more after it the name would be too long
	s.options.SpoolDir = moved
	_, err := s.make()
	require.ErrorContains(t, err, "cannot preserve")
	assert.Equal(t, waited, segmentsIn(t, s.options.SpoolDir))
}
