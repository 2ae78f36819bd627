package writer

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

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
			if stores { // only check the owner often
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
