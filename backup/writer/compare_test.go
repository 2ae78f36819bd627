package writer

import (
	"bytes"
	"fmt"
	"io"
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

func (s *stand) names() (found []string) {
	s.Helper()
	for object, err := range s.store.List(s.Context(), "", "") {
		require.NoError(s, err)
		// Ignore probe objects, because the writer deletes them immediately.
		if !strings.HasPrefix(object.Name, "probe/") {
			found = append(found, object.Name)
		}
	}
	return found
}

// requireUntouched requires that nothing is written to the store and that the reported problem contains the given
// strings.
func (s *stand) requireUntouched(sentence ...string) {
	s.Helper()
	before := s.names()
	s.eventually(func(f Facts) bool { return f.Problem != nil && f.Role == facts.Waiting }, "the problem is reported")
	for _, part := range sentence {
		assert.Contains(s, s.Facts().Problem.Message, part)
	}
	assert.Contains(s, s.Facts().Problem.Message, "--backup-store")
	s.put("a", "1")
	require.ErrorContains(s, s.Flush(s.Context()), sentence[0])
	_, err := s.FullNow(s.Context(), "requested")
	require.Error(s, err)
	assert.Equal(s, before, s.names())
	assert.Equal(s, facts.Waiting, s.Facts().Role)
}

// other stores a segment of rows as another member would.
func (s *stand) other(rows ...format.Row) {
	s.Helper()
	object := segment(s.T, keys, s.head().Start, format.Source{Member: "1"}, rows...)
	require.NoError(s, archivetest.PutSegment(s.Context(), s.backups(), object))
}

// twin stops the writer and returns a stand with another etcd server that uses the same store. The new server's data
// belongs to the given cluster.
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

// is sets the identity of the data. An empty cluster removes the identity.
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

// write writes count keys.
func (s *stand) write(count int, value string) {
	s.Helper()
	for i := range count {
		s.put(fmt.Sprint("key", i), value)
	}
}

// Two members are running, and one member's volume is a copy of the other's.
func TestVolumeCopy_firstUploadContinues(t *testing.T) {
	s := newStand(t)
	s.write(5, "first")
	s.run()
	s.eventually(func(f Facts) bool { return f.LastFull != nil && f.Role == facts.Writer }, "a full snapshot")
	copied := s.twin(clusterID)
	copied.write(5, "first")
	require.Equal(t, s.etcd.Revision(), copied.etcd.Revision())
	// The first member must upload between the heartbeats of the copy.
	copied.tune = append(copied.tune, func(w *Writer) { w.pace.heartbeat = 5 * s.options.Interval })
	s.run()
	copied.run()
	copied.eventually(func(f Facts) bool { return f.Role == facts.Writer }, "the copy has the same rows as a second member")
	last := s.put("a", "of the first")
	s.awaitStored(last)
	copied.awaitSuperseded("another copy of this data", "--adopt="+clusterID)
	s.awaitStored(s.put("a", "goes on"))
	s.requireAllKept()
}

// If the process is killed after its first upload, the volume must identify the cluster.
func TestVolume_recordsTheWriterBeforeTheFirstUpload(t *testing.T) {
	s := newStand(t)
	s.options.Session = "this process"
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", After: 1, Hang: true})
	s.run()
	s.eventually(storesItsCopy, "the data is stored, the manifest is not")
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

// The cluster ID is written to the volume first. If the process is killed before it stores the ID, the next process
// uses the same ID.
func TestNewStore_interruptedCreation(t *testing.T) {
	for name, which := range map[string]string{"the cluster manifest": "cluster.json", "the generation": "gen/"} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			s.is("", 0)
			s.store.Inject(memory.Fault{Op: memory.Put, Prefix: which, Err: memory.ErrUnreachable})
			s.run()
			s.eventually(func(f Facts) bool { return f.Problem != nil }, "the problem is reported")
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

// restored creates a new generation as a restore of the first generation would.
func (s *stand) restored() {
	s.Helper()
	next := archive.Generation{Number: 2, Cluster: clusterID, Parent: 1, ParentRevision: 1, Session: "theirs", Created: time.Now()}
	require.NoError(s, archivetest.BeginGeneration(s.Context(), s.backups(), next))
}

// with sets the keys.
func (s *stand) with(keys *format.Keys) {
	s.options.Archive = archive.New(s.store, keys)
}

// segmentsIn returns the names of the segments in a spool directory.
func segmentsIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	found, err := os.ReadDir(filepath.Join(dir, "segments"))
	require.NoError(t, err)
	for _, entry := range found {
		names = append(names, entry.Name())
	}
	return names
}

// waitingStand returns a stopped stand with a queued write and a reachable store.
func waitingStand(t *testing.T) *stand {
	t.Helper()
	s := startedStand(t)
	s.store.Inject(memory.Fault{Err: &store.Unavailable{}})
	s.put("a", "acknowledged")
	s.eventually(func(Facts) bool { return s.waits() > 0 }, "a segment is queued")
	s.end()
	s.store.ClearFaults()
	return s
}

// Captures must not overwrite queued segments that cannot be preserved, for example because the volume is full.
func TestSpool_noBackupsIfItCannotBePreserved(t *testing.T) {
	s := waitingStand(t)
	waited := segmentsIn(t, s.options.SpoolDir)
	s.is(clusterID, 2)
	moved := s.options.SpoolDir + strings.Repeat("d", 255-len(".aside-20260102T110000.000Z")-len("spool")+1)
	require.NoError(t, os.Rename(s.options.SpoolDir, moved)) // the name is too long for a suffix
	s.options.SpoolDir = moved
	_, err := s.make()
	require.ErrorContains(t, err, "cannot preserve")
	assert.Equal(t, waited, segmentsIn(t, s.options.SpoolDir))
}

// damage flips a byte of an object.
func (s *stand) damage(name string) {
	s.Helper()
	content, exists := s.store.Content(name)
	require.True(s, exists, name)
	content[12] ^= 1
	s.store.SetContent(name, content)
}

// head returns the end of the chain.
func (s *stand) head() archive.Head {
	s.Helper()
	_, head := s.newest()
	return head
}

// contents returns the contents of all objects.
func (s *stand) contents() map[string][]byte {
	s.Helper()
	all := map[string][]byte{}
	for _, name := range s.names() {
		all[name], _ = s.store.Content(name)
	}
	return all
}

// requireUnchanged requires that no object was changed or deleted.
func (s *stand) requireUnchanged(before map[string][]byte) {
	s.Helper()
	for name, content := range before {
		now, exists := s.store.Content(name)
		require.True(s, exists, name)
		require.True(s, bytes.Equal(content, now), name)
	}
}

// lay stores a segment without any checks.
func (s *stand) lay(object format.Object) {
	s.Helper()
	content, err := io.ReadAll(object.Reader())
	require.NoError(s, err)
	s.store.SetContent(archive.SegmentName(1, object.Position), content)
}

// empty deletes all objects in the store.
func (s *stand) empty() {
	s.Helper()
	for object, err := range s.store.List(s.Context(), "", "") {
		require.NoError(s, err)
		require.NoError(s, s.store.Delete(s.Context(), object.Name))
	}
}

func TestEmptiedStore_duringTheInspection(t *testing.T) {
	s := newStand(t)
	s.founded(s.store, "c1")
	const name = "gen/000001/generation.json"
	s.store.Inject(memory.Fault{Op: memory.Get, Prefix: name, Then: func() { assert.NoError(t, s.store.Delete(t.Context(), name)) }})
	for _, begins := range []bool{false, true} {
		options := Options{Archive: s.backups(), Etcd: s.options.Etcd, Now: time.Now}
		_, err := inspection{Options: options, storeView: storeView{identity: archive.Identity{Cluster: "c1", Generation: 1}}, canCreate: begins}.run(t.Context())
		require.ErrorIs(t, err, store.ErrNotFound)
	}
}

// often makes the writer inspect the store continuously.
func (s *stand) often() *stand {
	s.tune = append(s.tune, func(s *Writer) { s.pace.headValid, s.pace.verifyOwner = 50*time.Millisecond, 50*time.Millisecond })
	return s
}

// foundedBy replaces the contents of the store with those of a store that another cluster has just initialized.
func (s *stand) foundedBy(cluster string) {
	s.Helper()
	theirs := memory.New()
	s.founded(theirs, cluster)
	kept := map[string]bool{}
	for object, err := range theirs.List(s.Context(), "", "") {
		require.NoError(s, err)
		content, _ := theirs.Content(object.Name)
		s.store.SetContent(object.Name, content)
		kept[object.Name] = true
	}
	for _, name := range s.names() {
		if !kept[name] {
			require.NoError(s, s.store.Delete(s.Context(), name))
		}
	}
}

func TestLostIdentity_isWrittenAgain(t *testing.T) {
	for name, stores := range map[string]bool{"by an idle member": false, "by one that stores all the time": true} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			if stores { // check nothing but the owner often
				s.options.Interval = 10 * time.Millisecond
				s.run(func(s *Writer) { s.pace.verifyOwner = time.Second })
			} else {
				s.often().run()
			}
			s.awaitStored(s.put("a", "1"))
			for _, name := range []string{"cluster.json", "gen/000001/generation.json"} {
				require.NoError(t, s.store.Delete(t.Context(), name))
				require.Eventually(t, func() bool {
					if stores {
						s.put("a", "2")
					}
					_, exists := s.store.Content(name)
					return exists
				}, patience, poll, name)
			}
			s.awaitStored(s.put("a", "3"))
			s.requireWhole()
		})
	}
}
