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
	"etcd-wrapper/backup/store/memory"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // unless set on the command line: these tests wait more than they compute
	os.Exit(m.Run())
}

// The request in flight at that moment succeeds or not, and its response is lost.
func TestKill_losesNothing(t *testing.T) {
	s := newStand(t)
	s.options.Interval = 20 * time.Millisecond
	for _, happens := range []bool{false, true} {
		for last := 1; s.died(last, happens) >= last; last++ {
		}
	}
}

// died runs the writer on an empty store until the given call, restarts it, and returns the number of calls of the first run.
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
		s.eventually(func(f Facts) bool { return f.Revision >= written || len(s.store.Calls()) >= last }, "it dies or goes on")
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
