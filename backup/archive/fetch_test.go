package archive_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/seal/sealtest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

func TestWhatIsCutOffIsReadOnFromThere(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	w.segment(500)
	w.store.Inject(
		memory.Fault{Op: memory.Get, Prefix: "gen/000001/full", Times: 1}, // the manifest
		memory.Fault{Op: memory.Get, Prefix: "gen/000001/full", Times: 1, Cut: 100},
		memory.Fault{Op: memory.Get, Prefix: "gen/000001/full", Times: 1, Err: memory.ErrUnreachable},
		memory.Fault{Op: memory.Get, Prefix: "gen/000001/segment", Times: 1}, // the end of the chain
		memory.Fault{Op: memory.Get, Prefix: "gen/000001/segment", Times: 2, Cut: 1000},
	)
	before := len(w.store.Calls())
	assert.Equal(t, revisions(11, 500), w.restore(archive.Target{}).revisions)
	assert.GreaterOrEqual(t, len(w.store.Calls())-before, 5)
}

func TestAConnectionThatIsLostAgainAndAgainIsNoMatterAsLongAsSomethingArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t, &seal.Keys{})
		full := *w.head().Full
		w.store.Inject(memory.Fault{Op: memory.Get, Times: 30, Cut: 1}) // more often than a store that is away would be asked
		snapshot, err := read(t, w.Archive, full)
		require.NoError(t, err)
		assert.Equal(t, snapshotOf(database(10)), snapshot)
	})
}

// What has taken hours so far need not be fetched again because the store is away for a minute.
func TestWhatHasComeIsWorthWaitingForTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t, &seal.Keys{})
		full := *w.head().Full
		away := func(times int) {
			w.store.Inject(memory.Fault{Op: memory.Get, Times: 1, Cut: 1}, memory.Fault{Op: memory.Get, Times: times, Err: memory.ErrUnreachable})
		}
		begun := time.Now()
		away(11)
		snapshot, err := read(t, w.Archive, full)
		require.NoError(t, err)
		assert.Equal(t, snapshotOf(database(10)), snapshot)
		assert.Greater(t, time.Since(begun), time.Minute)
		away(13)
		_, err = read(t, w.Archive, full)
		assert.ErrorIs(t, err, memory.ErrUnreachable)
		assert.Less(t, time.Since(begun), 5*time.Minute)
	})
}

func TestAStoreThatStaysAwayIsGivenUp(t *testing.T) {
	for _, away := range []error{memory.ErrUnreachable, memory.ErrThrottled, memory.ErrDenied} {
		synctest.Test(t, func(t *testing.T) {
			w := begin(t, &seal.Keys{})
			full := *w.head().Full
			w.store.Inject(memory.Fault{Op: memory.Get, Err: away})
			begun := time.Now()
			_, err := read(t, w.Archive, full)
			assert.ErrorIs(t, err, away)
			assert.Less(t, time.Since(begun), time.Minute)
			if errors.Is(away, store.ErrUnavailable) {
				assert.Greater(t, time.Since(begun), 5*time.Second, "but not at once")
			}
		})
	}
}
