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

func (s *harness) names() (found []string) {
	s.Helper()
	for object, err := range s.store.List(s.Context(), "", "") {
		require.NoError(s, err)
		// The writer deletes probe objects as soon as it has created them.
		if !strings.HasPrefix(object.Name, "probe/") {
			found = append(found, object.Name)
		}
	}
	return found
}

// requireRefused requires that the writer refuses to write to the store and reports a problem that contains the given
// strings. Neither Flush nor FullNow may change the store.
func (s *harness) requireRefused(texts ...string) {
	s.Helper()
	before := s.names()
	s.eventually(func(f Facts) bool { return f.Problem != nil && f.Role == facts.Waiting }, "the problem is reported")
	for _, text := range texts {
		assert.Contains(s, s.Facts().Problem.Message, text)
	}
	assert.Contains(s, s.Facts().Problem.Message, "--backup-store")
	s.put("a", "1")
	require.ErrorContains(s, s.Flush(s.Context()), texts[0])
	_, err := s.FullNow(s.Context(), "requested")
	require.Error(s, err)
	assert.Equal(s, before, s.names())
	assert.Equal(s, facts.Waiting, s.Facts().Role)
}

// storeAsOther uploads rows in a segment at the end of the chain, as another member would.
func (s *harness) storeAsOther(rows ...format.Row) {
	s.Helper()
	object := segment(s.T, keys, s.head().Start, format.Source{Member: "1"}, rows...)
	require.NoError(s, archivetest.PutSegment(s.Context(), s.backups(), object))
}

// twin stops the writer and returns a harness with a second etcd server and the same store. The identity file in the
// second server's data directory names the given cluster.
func (s *harness) twin(cluster string) *harness {
	s.Helper()
	s.stop()
	dir := s.TempDir()
	other := &harness{T: s.T, etcd: etcdtest.Start(s.T, dir), store: s.store, log: s.log, options: s.options, tune: s.tune}
	other.options.Etcd = Server(other.etcd.Server)
	other.options.SpoolDir, other.options.DataDir = filepath.Join(dir, "spool"), dir
	other.setIdentity(cluster, 1)
	return other
}

// setIdentity writes the identity file to the data directory, or removes the file if cluster is empty.
func (s *harness) setIdentity(cluster string, generation int) {
	s.Helper()
	if cluster == "" {
		require.NoError(s, os.Remove(filepath.Join(s.options.DataDir, archive.IdentityFile)))
		return
	}
	require.NoError(s, archive.Identity{Cluster: cluster, Generation: generation}.Write(s.options.DataDir))
}

// dataIdentity reads the identity file in the data directory.
func (s *harness) dataIdentity() archive.Identity {
	s.Helper()
	identity, err := archive.ReadIdentity(s.options.DataDir)
	require.NoError(s, err)
	return identity
}

// write puts the same value to count different keys.
func (s *harness) write(count int, value string) {
	s.Helper()
	for i := range count {
		s.put(fmt.Sprint("key", i), value)
	}
}

// A copy of a volume is used by a second etcd server while the original is running. The server that uploads first
// continues the backups, and the other one is closed.
func TestVolumeCopy_firstUploadContinues(t *testing.T) {
	s := newHarness(t)
	s.write(5, "first")
	s.run()
	s.eventually(func(f Facts) bool { return f.LastFull != nil && f.Role == facts.Writer }, "a full snapshot")
	copied := s.twin(clusterID)
	copied.write(5, "first")
	require.Equal(t, s.etcd.Revision(), copied.etcd.Revision())
	// Space out the heartbeats of the copy, so that the original can upload first.
	copied.tune = append(copied.tune, func(w *Writer) { w.pace.heartbeat = 5 * s.options.Interval })
	s.run()
	copied.run()
	copied.eventually(func(f Facts) bool { return f.Role == facts.Writer }, "the copy cannot be distinguished from a member yet")
	last := s.put("a", "only in the original")
	s.awaitStored(last)
	copied.awaitSuperseded("another copy of this data", "--adopt="+clusterID)
	s.awaitStored(s.put("a", "after the copy is closed"))
	s.requireAllStored()
}

// The volume must record the process before its first upload, so that the record is correct even if the process is
// killed.
func TestVolume_recordsTheWriterBeforeTheFirstUpload(t *testing.T) {
	s := newHarness(t)
	s.options.Session = "this process"
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", After: 1, Hang: true})
	s.run()
	s.eventually(fullUploads, "the upload of the first full snapshot has started")
	assert.Equal(t, "this process", s.dataIdentity().Session)
}

func TestVolume_recordsTheEndOfTheStore(t *testing.T) {
	s := newStartedHarness(t)
	last := s.put("a", "1")
	s.awaitStored(last)
	require.NoError(t, s.Flush(t.Context()))
	s.stop()
	assert.Equal(t, format.After(last), s.dataIdentity().Position)
	assert.Equal(t, clusterID, s.dataIdentity().Cluster)
}

func TestNewStore_getsItsOwnID(t *testing.T) {
	s := newHarness(t)
	s.setIdentity("", 0)
	s.options.Owner = "shop/etcd"
	s.run()
	s.awaitStored(s.put("a", "1"))
	identity := s.dataIdentity()
	assert.Len(t, identity.Cluster, 32)
	assert.NotEqual(t, s.options.Etcd.Identity().ClusterID, identity.Cluster)
	first, err := s.backups().Cluster(t.Context())
	require.NoError(t, err)
	assert.Equal(t, identity.Cluster, first.Cluster)
	assert.Equal(t, "shop/etcd", first.Owner)
	assert.Equal(t, s.options.Etcd.Identity().ClusterID, first.Etcd)
	facts := s.Facts()
	assert.Equal(t, []any{identity.Cluster, "shop/etcd"}, []any{facts.Cluster, facts.Owner})
}

// The cluster ID is written to the volume before it is stored. If the process cannot complete the creation of the
// store, the next process must use the same ID.
func TestNewStore_interruptedCreation(t *testing.T) {
	for name, which := range map[string]string{"the cluster manifest": "cluster.json", "the generation": "gen/"} {
		t.Run(name, func(t *testing.T) {
			s := newHarness(t)
			s.setIdentity("", 0)
			s.store.Inject(memory.Fault{Op: memory.Put, Prefix: which, Err: memory.ErrUnreachable})
			s.run()
			s.eventually(func(f Facts) bool { return f.Problem != nil }, "the problem is reported")
			s.stop()
			identity := s.dataIdentity()
			s.store.ClearFaults()
			s.run()
			s.awaitStored(s.put("a", "1"))
			first, err := s.backups().Cluster(t.Context())
			require.NoError(t, err)
			assert.Equal(t, identity.Cluster, first.Cluster)
		})
	}
}

// createCluster stores the manifests of a cluster and its first generation, and returns the generation.
func (s *harness) createCluster(store *memory.Store, cluster string) archive.Generation {
	s.Helper()
	generation, err := archive.New(store, keys).Create(s.Context(), archive.Cluster{Cluster: cluster, Created: time.Now()}, 1)
	require.NoError(s, err)
	return generation
}

// startGeneration creates generation 2, as a restore of generation 1 would.
func (s *harness) startGeneration() {
	s.Helper()
	next := archive.Generation{Number: 2, Cluster: clusterID, Parent: 1, ParentRevision: 1, Session: "theirs", Created: time.Now()}
	require.NoError(s, archivetest.BeginGeneration(s.Context(), s.backups(), next))
}

// useKeys sets the keys of the archive.
func (s *harness) useKeys(keys *format.Keys) {
	s.options.Archive = archive.New(s.store, keys)
}

// segmentsIn returns the file names of the segments in a spool directory.
func segmentsIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	found, err := os.ReadDir(filepath.Join(dir, "segments"))
	require.NoError(t, err)
	for _, entry := range found {
		names = append(names, entry.Name())
	}
	return names
}

// newQueuedHarness returns a harness whose writer was stopped with a segment in its spool. The store is reachable
// again.
func newQueuedHarness(t *testing.T) *harness {
	t.Helper()
	s := newStartedHarness(t)
	s.store.Inject(memory.Fault{Err: &store.Unavailable{}})
	s.put("a", "acknowledged")
	s.eventually(func(Facts) bool { return s.queuedSegments() > 0 }, "a segment is queued")
	s.stop()
	s.store.ClearFaults()
	return s
}

// If queued segments of another generation cannot be preserved, no writer may start, because its captures would
// overwrite them.
func TestSpool_noBackupsIfItCannotBePreserved(t *testing.T) {
	s := newQueuedHarness(t)
	queued := segmentsIn(t, s.options.SpoolDir)
	s.setIdentity(clusterID, 2)
	moved := s.options.SpoolDir + strings.Repeat("d", 255-len(".aside-20260102T110000.000Z")-len("spool")+1)
	// No suffix fits after this long name, so a preserved copy cannot be created.
	require.NoError(t, os.Rename(s.options.SpoolDir, moved))
	s.options.SpoolDir = moved
	_, err := s.make()
	require.ErrorContains(t, err, "cannot preserve")
	assert.Equal(t, queued, segmentsIn(t, s.options.SpoolDir))
}

// damage flips a byte of an object.
func (s *harness) damage(name string) {
	s.Helper()
	content, exists := s.store.Content(name)
	require.True(s, exists, name)
	content[12] ^= 1
	s.store.SetContent(name, content)
}

// head returns the end of the chain.
func (s *harness) head() archive.Head {
	s.Helper()
	_, head := s.newest()
	return head
}

// contents returns the contents of all objects.
func (s *harness) contents() map[string][]byte {
	s.Helper()
	all := map[string][]byte{}
	for _, name := range s.names() {
		all[name], _ = s.store.Content(name)
	}
	return all
}

// requireUnchanged requires that the store still contains the given objects with the same contents.
func (s *harness) requireUnchanged(before map[string][]byte) {
	s.Helper()
	for name, content := range before {
		now, exists := s.store.Content(name)
		require.True(s, exists, name)
		require.True(s, bytes.Equal(content, now), name)
	}
}

// putSegment stores a segment without the checks of archive.Archive.
func (s *harness) putSegment(object format.Object) {
	s.Helper()
	content, err := io.ReadAll(object.Reader())
	require.NoError(s, err)
	s.store.SetContent(archive.SegmentName(1, object.Position), content)
}

// emptyStore deletes all objects in the store.
func (s *harness) emptyStore() {
	s.Helper()
	for object, err := range s.store.List(s.Context(), "", "") {
		require.NoError(s, err)
		require.NoError(s, s.store.Delete(s.Context(), object.Name))
	}
}

func TestEmptiedStore_duringTheInspection(t *testing.T) {
	s := newHarness(t)
	s.createCluster(s.store, "c1")
	const name = "gen/000001/generation.json"
	s.store.Inject(memory.Fault{Op: memory.Get, Prefix: name, Then: func() { assert.NoError(t, s.store.Delete(t.Context(), name)) }})
	for _, canCreate := range []bool{false, true} {
		options := Options{Archive: s.backups(), Etcd: s.options.Etcd, Now: time.Now}
		_, err := inspection{Options: options, storeView: storeView{identity: archive.Identity{Cluster: "c1", Generation: 1}}, canCreate: canCreate}.run(t.Context())
		require.ErrorIs(t, err, store.ErrNotFound)
	}
}

// inspectOften makes the writer read the end of the chain and check the owner of the store every 50 ms.
func (s *harness) inspectOften() *harness {
	s.tune = append(s.tune, func(s *Writer) { s.pace.headValid, s.pace.verifyOwner = 50*time.Millisecond, 50*time.Millisecond })
	return s
}

// replaceStore replaces all objects with those of a store that the given cluster has just initialized.
func (s *harness) replaceStore(cluster string) {
	s.Helper()
	other := memory.New()
	s.createCluster(other, cluster)
	kept := map[string]bool{}
	for object, err := range other.List(s.Context(), "", "") {
		require.NoError(s, err)
		content, _ := other.Content(object.Name)
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
	for name, isBusy := range map[string]bool{"by an idle writer": false, "by a busy writer": true} {
		t.Run(name, func(t *testing.T) {
			s := newHarness(t)
			if isBusy { // keep all other intervals long, so that only the check of the owner can detect the loss
				s.options.Interval = 10 * time.Millisecond
				s.run(func(s *Writer) { s.pace.verifyOwner = time.Second })
			} else {
				s.inspectOften().run()
			}
			s.awaitStored(s.put("a", "1"))
			for _, name := range []string{"cluster.json", "gen/000001/generation.json"} {
				require.NoError(t, s.store.Delete(t.Context(), name))
				require.Eventually(t, func() bool {
					if isBusy {
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
