package writer

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store/memory"
)

// checked returns a stand whose next check verifies the last stored segment.
func checked(t *testing.T) *stand {
	s := startedStand(t)
	for i := range 3 {
		s.awaitStored(s.put("a", fmt.Sprint(i)))
	}
	s.do(func() { s.remote.checkpoint = s.remote.lastStored() })
	return s
}

func (s *stand) check() { s.do(func() { s.pace.check = 0 }) }

// Checks are frequent, so a check must take no more than one request.
func TestWriter_checksWithOneRequest(t *testing.T) {
	s := checked(t)
	require.NoError(t, s.Flush(t.Context()))
	before := len(s.store.Calls())
	s.do(func() {
		s.pace.check = 0
		s.remote.checkStored()
		s.pace.check = patience
	})
	s.eventually(func(Facts) bool { return len(s.store.Calls()) > before }, "the store is checked")
	s.do(func() {})
	assert.Len(t, s.store.Calls(), before+1)
}

// An inspection may end during a check of the store. The check must still detect that the generation was deleted.
func TestWriter_checksTheOwnerAfterAnInspection(t *testing.T) {
	s := checked(t)
	const name = "gen/000001/generation.json"
	require.NoError(t, s.store.Delete(t.Context(), name))
	s.do(func() {
		s.remote.ownerVerified = time.Time{}
		s.remote.checkStored()
		s.remote.checkpoint = format.Position{}
	})
	require.Eventually(t, func() bool {
		_, exists := s.store.Content(name)
		return exists
	}, patience/2, poll, "the generation is created again")
}

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // unless -parallel is set, because the tests mostly wait
	os.Exit(m.Run())
}

// When the process is killed, the request in flight may or may not take effect, and its response is lost.
func TestKill_losesNothing(t *testing.T) {
	s := newStand(t)
	s.options.Interval = 20 * time.Millisecond
	for _, happens := range []bool{false, true} {
		for last := 1; s.died(last, happens) >= last; last++ {
		}
	}
}

// died runs the writer on an empty store, kills it at the given call to the store, restarts it, and returns the
// number of calls before the kill.
func (s *stand) died(last int, happens bool) int {
	s.Helper()
	s.store = memory.New()
	if happens {
		s.store.Inject(memory.Fault{After: last - 1, Times: 1, Hang: true, ReplyLost: true})
	}
	s.store.Inject(memory.Fault{After: last - 1, Hang: true})
	s.options.SpoolDir = filepath.Join(s.TempDir(), "spool")
	s.run()
	var confirmed int64
	for i := range 4 {
		written := s.put("a", fmt.Sprint(last, i))
		s.eventually(func(f Facts) bool { return f.Revision >= written || len(s.store.Calls()) >= last }, "the revision is stored, or the writer is killed")
		confirmed = max(confirmed, s.Facts().Revision)
	}
	calls := len(s.store.Calls())
	s.end()
	s.store.ClearFaults()
	found, err := s.backups().Find(s.Context(), archive.Target{})
	if confirmed > 0 {
		require.NoError(s, err)
		assert.GreaterOrEqual(s, found.Revision, confirmed, "what was stored is there, call %d", last)
	}
	s.run()
	written := s.put("a", "afterwards")
	s.requireWhole()
	s.end()
	assert.GreaterOrEqual(s, s.Facts().Revision, written)
	s.requireNothingLoose()
	return calls
}
