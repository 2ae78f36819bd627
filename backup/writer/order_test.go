package writer

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store/memory"
)

func TestAChainWhoseFullCannotBeCopiedLeavesNothingBehind(t *testing.T) {
	s := newStand(t)
	s.tune = append(s.tune, func(s *Writer) {
		s.room = func(int64) error {
			if failures := s.Facts().Failures; failures == 1 || failures == 2 {
				return ErrSpoolFull
			}
			return nil
		}
	})
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Err: memory.ErrDenied, Times: 1})
	s.run()
	for range 50 {
		s.put("a", "captured behind a full that never comes")
	}
	s.awaitStored(s.put("a", "1"))
	require.NoError(t, s.Flush(t.Context()))
	assert.GreaterOrEqual(t, s.Facts().Failures, int64(3))
	s.requireChains(1)
	s.requireAllKept()
	s.requireNothingLoose()
}

func TestWhatWaitsInTheSpoolDoesNotGoIntoAStoreThatHasNothingBeforeIt(t *testing.T) {
	s := begun(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrUnreachable})
	for range 3 {
		s.put("a", "waits")
		s.BeforeCompaction(t.Context())
	}
	s.eventually(func(Facts) bool { return s.waits() > 0 }, "it waits")
	s.end()
	s.store = memory.New() // somebody emptied it, or the full that came before never arrived
	s.run()
	s.awaitStored(s.put("a", "1"))
	require.NoError(t, s.Flush(t.Context()))
	s.requireChains(1)
	s.requireAllKept()
	s.requireNothingLoose()
}

// requireNothingLoose says that every segment comes behind the first full.
func (s *stand) requireNothingLoose() {
	s.Helper()
	history, err := archive.New(s.store, keys).History(s.Context())
	require.NoError(s, err)
	for _, object := range history.Newest().Objects {
		assert.Greater(s, object.Start.Revision, history.Newest().Fulls[0].Revision, "a segment that nothing leads to")
	}
}

// A full stands for all before it: should the process die, nobody would bring the segments that it had overtaken.
func TestAFullDoesNotOvertakeTheSegmentsBeforeIt(t *testing.T) {
	s := begun(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/segment", Hang: true, Times: 1})
	between := s.put("a", "1")
	s.put("a", "2")
	asked, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _, _ = s.FullNow(asked, "asked for") }()
	s.eventually(func(f Facts) bool {
		return f.Fulls == 2 || f.FullRunning != nil && f.FullRunning.Doing == "waits until what is before it is stored"
	}, "the database is copied")
	s.end()
	s.store.Heal()
	s.run()
	s.awaitStored(s.put("a", "3"))
	_, _, path := kept(t, s.store, archive.Target{Revision: between})
	assert.Equal(t, between, path.Revision)
	s.requireChains(1)
}

// Its full may have been on its way when the process died, or somebody has emptied the store.
func TestWhatWaitedForAFullThatIsNotThereIsNotStoredWithoutIt(t *testing.T) {
	s := begun(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrUnreachable})
	s.put("a", "1")
	s.eventually(func(Facts) bool { return s.waits() > 0 }, "a segment waits")
	s.end()
	s.store = memory.New()
	s.run()
	require.NoError(t, s.Flush(t.Context()))
	s.requireChains(1)
	s.requireAllKept()
}

func TestALookThatEndsWhenAFullHasBegunAChainBeginsNoOther(t *testing.T) {
	s := newStand(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Hang: true})
	s.run()
	s.eventually(func(f Facts) bool { return f.FullRunning != nil && f.FullRunning.Doing == "stores the copy" }, "it is copied")
	s.put("a", "behind the full")
	s.eventually(func(Facts) bool { return s.waits() > 0 }, "it waits")
	require.NoError(t, s.tell(t.Context(), func() {
		s.saw(t.Context(), found{archive: s.remote.archive, abilities: s.remote.abilities, generation: s.remote.generation}, nil) // there was nothing when it began
	}))
	require.NoError(t, s.tell(t.Context(), func() {
		assert.Equal(t, beginning, s.core.State)
		assert.NotEmpty(t, s.chain.waiting)
	}))
}
