package recovery

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/seal/sealtest"
)

// decays damages objects of the store.
func (w *world) decays(names ...string) {
	w.t.Helper()
	for _, name := range names {
		content, there := w.store.Content(name)
		require.True(w.t, there, name)
		w.store.SetContent(name, append(content, 'x'))
	}
}

// distrusts gives the member keys that nothing in the store is signed with.
func (w *world) distrusts() {
	w.options.Archive = archive.New(w.store, sealtest.New(w.t).Load(w.t))
}

// manifest is the name of the newest full's.
func (w *world) manifest() string {
	w.t.Helper()
	head, err := w.archive.Head(w.t.Context(), 1)
	require.NoError(w.t, err)
	return archive.ManifestName(1, head.Full.Name())
}

const firstGeneration = "gen/000001/generation.json"

// A decayed object of 200 bytes, or a wrong key for what lies in the store, is a trouble of backups.
func TestAValidVolumeIsStartedWhateverTheStoreSaysThatIsNotBelieved(t *testing.T) {
	for what, happens := range map[string]func(w *world){
		"the certificate has decayed": func(w *world) { w.decays("cluster.json") },
		"the generation has":          func(w *world) { w.decays(firstGeneration) },
		"both have":                   func(w *world) { w.decays("cluster.json", firstGeneration) },
		"the certificate, and no generation is": func(w *world) {
			w.decays("cluster.json")
			require.NoError(w.t, w.store.Delete(w.t.Context(), firstGeneration))
		},
		"the only full has":                     func(w *world) { w.decays(w.manifest()) },
		"the reservation has":                   func(w *world) { w.reserves(2); w.decays(fmt.Sprintf("reservation/%019d", margin+2)) },
		"nobody trusts it":                      (*world).distrusts,
		"nobody trusts it, and it is reserved":  func(w *world) { w.reserves(50); w.distrusts() },
		"nobody trusts it, and it has segments": func(w *world) { w.put("a"); w.ship(); w.distrusts() },
		"nobody trusts it, and etcd went on":    func(w *world) { w.put("a"); w.distrusts() },
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.used()
			happens(w)
			w.opens()
		})
	}
}

func TestAValidVolumeIsStartedThoughNobodyCanOpenItsBackups(t *testing.T) {
	w, pair := newWorld(t), sealtest.New(t)
	w.sealedBy(pair.Load(t))
	w.used()
	w.put("a")
	w.ship()
	w.sealedBy(sealtest.Load(t, seal.Files{TrustedKeys: pair.TrustedKeys, Identities: sealtest.New(t).Identities}))
	w.opens()
}

// reserves is what a cluster has reserved that has come to a revision.
func (w *world) reserves(at int64) {
	w.t.Helper()
	cluster := hex(stand(w.t, w.member.DataDir).ClusterID)
	require.NoError(w.t, w.archive.Reserve(w.t.Context(), archive.Reservation{Cluster: cluster, Generation: 1, Revision: margin + at, Created: time.Now()}))
}

// Names prove nothing, but a volume that was not put back has no less than they tell of.
func TestAValidVolumeThatNamesTellOfMoreThanIsStartedByPeopleOnly(t *testing.T) {
	for what, of := range map[string]struct {
		happens func(w *world)
		says    []string
	}{
		"nobody trusts it": {(*world).distrusts, []string{"it has no signature", "add the key"}},
		"it has decayed":   {func(w *world) { w.decays("cluster.json", firstGeneration) }, []string{"generation.json", "put that object back"}},
		"its fulls have": {func(w *world) {
			w.decays(w.manifest())
			w.decays(w.manifest())
		}, []string{"manifest.json", "put that object back"}},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.used()
			w.goesOn()
			of.happens(w)
			err := w.run()
			for _, said := range append(of.says, "the data end with revision 2, and names in the store tell of revision 3", "--recover=never starts it as it is") {
				require.ErrorContains(t, err, said)
			}
			assert.Empty(t, w.asides())
			w.options.Never = true
			w.opens()
		})
	}
}

// A restore begins a generation before it has a full, with a reservation above all that was.
func TestAVolumeOfBeforeARestoreIsNotStartedAlthoughNobodyTrustsTheStore(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.older = filepath.Join(t.TempDir(), "older")
	require.NoError(t, os.CopyFS(w.older, os.DirFS(w.member.DataDir)))
	w.spoil()
	require.NoError(t, w.run())
	require.Len(t, w.generations(), 2)
	w.distrusts()
	require.NoError(t, w.run(), "what was restored is started")
	w.rollBack()
	err := w.run()
	require.ErrorContains(t, err, "so the volume was perhaps put back")
	require.ErrorContains(t, err, "add the key")
}

func TestALostVolumeComesBackThoughTheCertificateHasDecayed(t *testing.T) {
	for what, lost := range map[string]func(w *world){
		"empty": func(w *world) { require.NoError(w.t, os.RemoveAll(w.member.DataDir)) }, "broken": (*world).spoil,
	} {
		w := newWorld(t)
		w.used()
		w.decays("cluster.json")
		lost(w)
		require.NoError(t, w.run(), what)
		keys, _ := w.keys()
		assert.Equal(t, []string{"key"}, keys, what)
	}
}

func TestALostVolumeIsForPeopleWhereTheStoreIsNotBelieved(t *testing.T) {
	for what, of := range map[string]struct {
		happens func(w *world)
		says    string
	}{
		"whose it is": {func(w *world) { w.decays("cluster.json", firstGeneration) }, "generation.json"},
		"nor is there another": {func(w *world) {
			w.decays("cluster.json")
			require.NoError(w.t, w.store.Delete(w.t.Context(), firstGeneration))
		}, "cluster.json"},
		"what it has": {func(w *world) { w.decays(w.manifest()) }, "manifest.json"},
	} {
		for how, lost := range map[string]func(w *world){
			"empty": func(w *world) { require.NoError(w.t, os.RemoveAll(w.member.DataDir)) }, "broken": (*world).spoil,
		} {
			t.Run(what+", "+how, func(t *testing.T) {
				w := newWorld(t)
				w.used()
				of.happens(w)
				lost(w)
				err := w.run()
				require.ErrorContains(t, err, of.says)
				require.ErrorContains(t, err, "put that object back")
				assert.Empty(t, w.asides())
			})
		}
	}
}

// By its log the member is a quorum of one, and the others wait for it.
func TestAMemberThatGoesOnAloneByItsLogDoesNotWaitForAStoreThatIsNotBelieved(t *testing.T) {
	w, _ := once(t)
	w.decays(firstGeneration)
	w.opens()

	w, o := once(t)
	w.goesOn()
	w.decays(firstGeneration)
	assert.Contains(t, w.waits(o), "names in the store tell of revision 3")
}
