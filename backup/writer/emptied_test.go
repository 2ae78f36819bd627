package writer

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

// empty deletes all that the store has.
func (s *stand) empty() {
	s.Helper()
	for object, err := range s.store.List(s.Context(), "", "") {
		require.NoError(s, err)
		require.NoError(s, s.store.Delete(s.Context(), object.Name))
	}
}

func TestAStoreThatIsEmptiedUnderARunningMemberIsBegunAnewAtTheNextWrites(t *testing.T) {
	s := begun(t)
	s.awaitStored(s.put("a", "1"))
	s.empty()
	s.eventually(func(f Facts) bool {
		s.put("a", "2")
		return f.Fulls == 2 && f.Broken == nil
	}, "another full begins another chain")
	s.awaitStored(s.put("a", "3"))
	s.requireAllKept()
	generation, err := archive.New(s.store, keys).GenerationOf(t.Context(), clusterID)
	require.NoError(t, err, "the cluster manifest is there again")
	assert.Equal(t, 1, generation.Number)
	assert.Contains(t, s.log.String(), "the store was emptied")
	require.Eventually(t, func() bool { return s.reserved() >= archive.Margin }, patience, poll, "so is the reservation")
}

// It looks for the full every few seconds only: what it stores until then lands in the empty store.
func TestAStoreThatIsEmptiedUnderAMemberThatStoresOnIsBegunAnew(t *testing.T) {
	s := newStand(t)
	s.tune = append(s.tune, func(s *Writer) { s.pace.watch = patience })
	s.run()
	s.awaitStored(s.put("a", "1"))
	s.empty()
	s.awaitStored(s.put("a", "2"))
	s.addUser("someone")
	require.NoError(t, s.Flush(t.Context()))
	require.NotEmpty(t, s.names(), "it has not noticed")
	require.NoError(t, s.tell(t.Context(), func() { s.remote.checked = time.Time{}; s.take(t.Context(), expired, payload{}) }))
	s.eventually(func(f Facts) bool { return f.Fulls == 2 && f.Broken == nil }, "another full begins another chain")
	s.addUser("someone else")
	s.awaitStored(s.put("a", "3"))
	require.NoError(t, s.Flush(t.Context()))
	s.requireChains(1)
	s.requireAllKept()
	s.requireUsers(2)
}

// leaking is a store that loses what is read.
type leaking struct{ store.Store }

func (l leaking) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	content, err := l.Store.Get(ctx, name, offset, length)
	if err == nil && name == "gen/000001/generation.json" {
		err = l.Delete(ctx, name)
	}
	return content, err
}

func TestAStoreThatIsEmptiedWhileItIsLookedAtIsLookedAtAgain(t *testing.T) {
	kept := memory.New()
	_, err := archive.New(kept, keys).Found(t.Context(), archive.Cluster{Cluster: "c1", Created: time.Now()})
	require.NoError(t, err)
	for _, begin := range []bool{false, true} {
		_, err = found{archive: archive.New(leaking{kept}, keys), own: archive.Identity{Cluster: "c1", Generation: 1}}.find(t.Context(), nil, "session", begin)
		require.ErrorIs(t, err, store.ErrNotFound)
	}
}

// often has the store looked at all the time, and not after minutes.
func (s *stand) often() *stand {
	s.tune = append(s.tune, func(s *Writer) { s.pace.knows, s.pace.vet = 50*time.Millisecond, 50*time.Millisecond })
	return s
}

// foundedBy replaces all that the store has by what another cluster begins in an empty one.
func (s *stand) foundedBy(cluster string) {
	s.Helper()
	theirs := memory.New()
	_, err := archive.New(theirs, keys).Found(s.Context(), archive.Cluster{Cluster: cluster, Created: time.Now()})
	require.NoError(s, err)
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

func TestAnIdleMemberNoticesThatAnotherClusterHasTakenItsEmptiedStore(t *testing.T) {
	s := newStand(t).often().run()
	s.awaitStored(s.put("a", "1"))
	require.NoError(t, s.Flush(t.Context()))
	s.foundedBy("beef")
	s.requireUntouched("beef", clusterID)
}

func TestAMemberThatWatchesNoticesItAsWell(t *testing.T) {
	c := newCluster(t, 2)
	c.requireEventuallyStored(c.put("a", "1"))
	watching := c.members[1]
	watching.end()
	watching.often().run()
	watching.eventually(func(f Facts) bool { return f.Role == Watching && f.Stored > 0 }, "it watches")
	c.members[0].end()
	c.foundedBy("beef")
	watching.eventually(func(f Facts) bool { return f.Trouble != nil && f.Role == Unknown }, "it is said")
	assert.Contains(t, watching.Facts().Trouble.Text, "beef")
}

func TestBackupsOfAnotherClusterAreNotGoneOnWith(t *testing.T) {
	s := begun(t)
	s.end()
	theirs, err := archive.New(s.store, keys).Found(t.Context(), archive.Cluster{Cluster: clusterID, Created: time.Now()})
	require.NoError(t, err)
	theirs.Cluster = "beef"
	_, err = found{archive: archive.New(s.store, keys), generation: theirs}.find(t.Context(), nil, "session", true)
	require.ErrorIs(t, err, archive.ErrForeign)
	assert.ErrorContains(t, err, "beef")
	assert.ErrorContains(t, err, clusterID)
}

func TestABirthCertificateThatIsLostIsWrittenAgain(t *testing.T) {
	s := newStand(t).often().run()
	s.awaitStored(s.put("a", "1"))
	for _, name := range []string{"cluster.json", "gen/000001/generation.json"} {
		require.NoError(t, s.store.Delete(t.Context(), name))
		require.Eventually(t, func() bool { _, there := s.store.Content(name); return there }, patience, poll, name)
	}
	s.awaitStored(s.put("a", "2"))
	s.requireChains(1)
	s.requireAllKept()
}

func TestAMemberThatStoresAllTheTimeLooksWhoseTheStoreIsAsWell(t *testing.T) {
	s := newStand(t)
	s.options.Interval = 10 * time.Millisecond
	s.tune = append(s.tune, func(s *Writer) { s.pace.vet = time.Second })
	s.run()
	s.awaitStored(s.put("a", "1"))
	require.NoError(t, s.store.Delete(t.Context(), "cluster.json"))
	require.Eventually(t, func() bool {
		s.put("a", "2")
		_, there := s.store.Content("cluster.json")
		return there
	}, patience, poll)
	s.awaitStored(s.put("a", "3"))
	s.requireChains(1)
}
