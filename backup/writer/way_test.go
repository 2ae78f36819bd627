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
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/cmd/suites/etcdtest"
)

// alike is an etcd with the cluster id of another one: both have one configuration.
type alike struct {
	Etcd
	cluster string
}

func (a alike) ClusterID() string { return a.cluster }

// twin is a stand of another cluster of the same configuration, with the same store and other data. The first one has ended.
func (s *stand) twin() *stand {
	s.Helper()
	s.end()
	dir := s.TempDir()
	other := &stand{T: s.T, etcd: etcdtest.Start(s.T, dir), store: s.store, log: s.log, options: s.options, tune: s.tune}
	other.options.Etcd = alike{Server(other.etcd.Server), s.options.Etcd.ClusterID()}
	other.options.SpoolDir, other.options.LineageFile = filepath.Join(dir, "spool"), filepath.Join(dir, "member", "backups.json")
	return other
}

// write makes a number of revisions, and returns the last.
func (s *stand) write(count int, value string) (last int64) {
	s.Helper()
	for i := range count {
		last = s.put(fmt.Sprint("key", i), value)
	}
	return last
}

func TestTwoClustersOfOneConfigurationDoNotShareAChain(t *testing.T) {
	for name, test := range map[string]struct {
		behind bool // whether the first one's chain has segments behind its full
		goes   func(other *stand)
		told   string
	}{
		"the rows are there":            {true, func(other *stand) { other.write(20, "other") }, "took another way than its backups"},
		"the chain is a full alone":     {false, func(other *stand) { other.write(20, "other") }, "took another way than its backups"},
		"the rows are compacted":        {true, func(other *stand) { other.compact(other.write(20, "other")) }, "another cluster of the same configuration"},
		"they are, and a full is alone": {false, func(other *stand) { other.compact(other.write(20, "other")) }, "another cluster of the same configuration"},
		"the end of the chain is damaged": {true, func(other *stand) {
			other.write(20, "other")
			other.damage(archive.SegmentName(1, other.head().Segment.Position))
		}, "took another way than its backups"},
		"no full can be believed": {true, func(other *stand) {
			other.write(20, "other")
			other.damage(archive.ManifestName(1, other.head().Full.Name()))
		}, "another cluster of the same configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			s.write(5, "first")
			s.run()
			s.eventually(func(f Facts) bool { return f.LastFull != nil }, "a full")
			if test.behind {
				s.awaitStored(s.put("a", "1"))
				s.awaitStored(s.put("a", "2"))
			}
			require.NoError(t, s.Flush(t.Context()))
			other := s.twin()
			test.goes(other)
			other.run()
			other.requireUntouched(test.told, s.options.Etcd.ClusterID())
		})
	}
}

// Every history begins like that.
func TestAChainWithoutARowIsOfDataThatHaveNoneOrWereSeenToGoWithIt(t *testing.T) {
	for name, alone := range map[string]bool{"a full alone": true, "a full and what came without a row": false} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t).run()
			s.eventually(func(f Facts) bool { return f.LastFull != nil }, "a full")
			s.addUser("someone")
			require.NoError(t, s.Flush(t.Context()))
			s.end()
			for _, name := range s.names() {
				if alone && strings.Contains(name, "/segment/") {
					require.NoError(t, s.store.Delete(t.Context(), name))
				}
			}
			other := s.twin()
			require.EqualValues(t, 1, other.head().Revision())
			other.write(20, "other")
			other.run()
			other.requireUntouched("another cluster of the same configuration", s.options.Etcd.ClusterID())
			other.end()

			young := s.twin()
			young.run()
			young.eventually(func(f Facts) bool { return f.Role == Writing && f.Stored == 1 }, "it has no rows, either")
			young.end()
			s.run()
			s.awaitStored(s.put("a", "1"))
			require.NoError(t, s.Flush(t.Context()))
			s.requireAllKept()
		})
	}
}

// It may be killed at any time, and get rows before it is started again.
func TestWhoBeginsAChainRemembersThatBeforeTheStoreHasIt(t *testing.T) {
	s := newStand(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", After: 1, Hang: true})
	s.run()
	s.eventually(storesItsCopy, "its data are in the store, and its manifest is not")
	require.Eventually(t, func() bool { _, err := os.Stat(s.options.LineageFile); return err == nil }, patience, poll)
	s.end()
	s.store.Heal()
	s.run()
	s.awaitStored(s.put("a", "1"))
}

// compactedMeanwhile stops the stand, and compacts beyond all that the store has.
func (s *stand) compactedMeanwhile() {
	s.Helper()
	s.end()
	s.put("first", "meanwhile")
	s.put("a", "meanwhile")
	s.compact(s.write(10, "meanwhile"))
}

// requireGoesOn says that another chain begins behind the gap, with all there is.
func (s *stand) requireGoesOn() {
	s.Helper()
	s.awaitStored(s.put("a", "afterwards"))
	require.NoError(s, s.Flush(s.Context()))
	s.requireAllKept()
}

func TestDataThatWereOnTheWayBeforeGoOnBehindAGap(t *testing.T) {
	s := begun(t)
	s.compactedMeanwhile()
	s.run()
	s.requireGoesOn()
	s.requireChains(2)
	info, err := os.Stat(s.options.LineageFile)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
}

func TestARowThatIsLeftOfTheLastRevisionTellsThatTheDataAreOnTheWay(t *testing.T) {
	s := begun(t)
	s.end()
	s.compact(s.write(10, "meanwhile"))
	require.NoError(t, os.Remove(s.options.LineageFile))
	s.run()
	s.requireGoesOn()
	assert.FileExists(t, s.options.LineageFile)
}

// It has joined, or was upgraded, while the store was away, and is the only one.
func TestDataThatWereNotSeenOnTheWayGoOnOnceSomebodySaysThatTheyAre(t *testing.T) {
	for name, content := range map[string]string{"nothing": "", "unreadable": "{", "another": `{"cluster":"beef","generation":1}`} {
		t.Run(name, func(t *testing.T) {
			s := begun(t)
			s.compactedMeanwhile()
			require.NoError(t, os.Remove(s.options.LineageFile))
			if content != "" {
				require.NoError(t, os.WriteFile(s.options.LineageFile, []byte(content), 0o600))
			}
			generation, err := archive.New(s.store, keys).GenerationOf(t.Context(), s.options.Etcd.ClusterID())
			require.NoError(t, err)
			line := fmt.Sprintf(`{"cluster":%q,"generation":1,"created":%q}`, generation.Cluster, generation.Created.Format(time.RFC3339Nano))
			s.run()
			s.requireUntouched("another cluster of the same configuration", "write "+line+" into "+s.options.LineageFile)
			require.NoError(t, os.WriteFile(s.options.LineageFile, []byte(line+"\n"), 0o600))
			s.requireGoesOn()
			s.eventually(func(f Facts) bool { return f.Trouble == nil }, "it is over")
		})
	}
}

// Their volume was put back and written to; once that is compacted nothing shows it any more.
func TestDataThatWereSeenToTakeAnotherWayAreNotForgottenToHaveTakenIt(t *testing.T) {
	for name, later := range map[string]bool{"first generation": false, "of a restore": true} {
		for way, ahead := range map[string]byte{"another way": 1, "older than its backups": 50} {
			t.Run(name+", "+way, func(t *testing.T) {
				s := newStand(t)
				if later {
					s.isRestored()
				}
				s.run()
				s.awaitStored(s.put("first", "value"))
				require.NoError(t, s.Flush(t.Context()))
				s.end()
				own := s.current()
				row := own[len(own)-1]
				row.Key[7] += ahead
				row.Value = []byte("of another history")
				s.other(row)
				s.put("a", "of this one")
				s.run()
				s.requireUntouched(way)
				s.end()
				s.compact(s.write(100, "meanwhile"))
				s.run()
				s.requireUntouched("another cluster of the same configuration")
			})
		}
	}
}

// isRestored begins a generation that a restore has made.
func (s *stand) isRestored() {
	s.Helper()
	a := archive.New(s.store, keys)
	_, err := a.Found(s.Context(), "beef", time.Now())
	require.NoError(s, err)
	require.NoError(s, a.BeginGeneration(s.Context(), archive.Generation{
		Number: 2, Cluster: s.options.Etcd.ClusterID(), Parent: 1, ParentRevision: 1, Created: time.Now(),
	}))
}

// The store was emptied, and its chain is another one's: what is remembered is of the one before.
func TestAStoreThatWasBegunAnewIsNotTheOneThatIsRemembered(t *testing.T) {
	s := begun(t)
	require.NoError(t, s.Flush(t.Context()))
	s.end()
	s.empty()
	_, err := archive.New(s.store, keys).Found(t.Context(), s.options.Etcd.ClusterID(), time.Now().Add(-time.Hour))
	require.NoError(t, err)
	other := s.twin()
	other.write(3, "other")
	other.run()
	other.requireGoesOn()
	other.end()
	s.compact(s.write(30, "meanwhile"))
	s.run()
	s.requireUntouched("another cluster of the same configuration")
}

// Somebody has tried another store meanwhile, and by mistake one that has the backups of a twin.
func TestDataGoOnWithEachStoreThatTheyWereKeptIn(t *testing.T) {
	s := begun(t)
	require.NoError(t, s.Flush(t.Context()))
	s.end()
	first, second := s.store, memory.New()
	s.store = second
	s.run()
	s.awaitStored(s.put("a", "in the second"))
	require.NoError(t, s.Flush(t.Context()))
	s.store = memory.New()
	twin := s.twin()
	twin.write(20, "twin")
	twin.run()
	twin.awaitStored(twin.put("a", "of the twin"))
	twin.end()
	s.write(30, "of this one")
	s.run()
	s.requireUntouched("another way")
	s.end()
	s.put("first", "meanwhile")
	s.put("a", "meanwhile")
	s.compact(s.write(10, "meanwhile"))
	for _, kept := range []*memory.Store{first, second, first} {
		s.store = kept
		s.run()
		s.requireGoesOn()
		s.end()
		s.compactedMeanwhile()
	}
	content, err := os.ReadFile(s.options.LineageFile)
	require.NoError(t, err)
	assert.Len(t, strings.Split(strings.TrimSpace(string(content)), "\n"), 3, "each once: %s", content)
}

// Nobody else has a cluster id that a restore has made.
func TestARestoredClusterGoesOnBehindAGapInAnyCase(t *testing.T) {
	s := newStand(t)
	s.isRestored()
	s.run()
	s.awaitStored(s.put("a", "1"))
	require.NoError(t, s.Flush(t.Context()))
	s.compactedMeanwhile()
	require.NoError(t, os.Remove(s.options.LineageFile))
	s.run()
	s.requireGoesOn()
	assert.FileExists(t, s.options.LineageFile)
}
