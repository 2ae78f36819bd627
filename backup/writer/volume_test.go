package writer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store/memory"
)

func TestWhatIsDamagedInTheSpoolIsTakenFromTheDatabaseAgain(t *testing.T) {
	s := begun(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrUnreachable})
	for i := range 3 {
		s.put("a", fmt.Sprint(i))
		s.BeforeCompaction(t.Context())
	}
	s.eventually(func(Facts) bool { return s.waits() >= 3 }, "they wait")
	waiting, err := filepath.Glob(filepath.Join(s.options.SpoolDir, "segments", "*"))
	require.NoError(t, err)
	path := waiting[len(waiting)-1]
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	content[len(content)-5] ^= 1
	require.NoError(t, os.WriteFile(path, content, 0o600))
	s.store.Heal()
	require.NoError(t, s.Flush(t.Context()))
	s.requireChains(1)
	s.requireAllKept()
}

// The volume may be full, or become read-only.
func TestAVolumeThatTakesNothingKeepsNoSegmentFromTheStore(t *testing.T) {
	s := begun(t)
	making := filepath.Join(s.options.SpoolDir, "making")
	require.NoError(t, os.RemoveAll(making))
	for i := range 5 {
		s.awaitStored(s.put("a", fmt.Sprint(i)))
	}
	_, err := s.FullNow(t.Context(), "asked for")
	require.ErrorContains(t, err, "cannot write to the spool")
	s.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrUnreachable})
	for i := range 5 {
		s.put("b", fmt.Sprint(i))
		s.BeforeCompaction(t.Context())
	}
	s.eventually(func(f Facts) bool { return f.Trouble != nil && s.waits() == 1 }, "one waits in memory, and the rest in etcd")
	s.store.Heal()
	require.NoError(t, s.Flush(t.Context()))
	s.requireChains(1)
	s.requireAllKept()
	require.NoError(t, os.Mkdir(making, 0o700))
	_, err = s.FullNow(t.Context(), "asked for")
	require.NoError(t, err)
	s.eventually(func(f Facts) bool { return f.Trouble == nil }, "it is over")
}

func TestAFullSpoolIsSaidAndEndsTheChainOnlyWithACompaction(t *testing.T) {
	for name, compacts := range map[string]bool{"compacted": true, "not compacted": false} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			s.options.SpoolLimit = 3000
			s.run()
			s.awaitStored(s.put("a", "1"))
			s.store.Inject(memory.Fault{Err: memory.ErrUnreachable})
			for s.Facts().Trouble == nil || !strings.Contains(s.Facts().Trouble.Text, "spool is full") {
				require.NoError(t, t.Context().Err())
				s.put("a", "2")
				s.BeforeCompaction(t.Context())
			}
			last := s.put("a", "3")
			if compacts {
				s.compact(last)
			}
			s.store.Heal()
			s.awaitStored(last)
			require.NoError(t, s.Flush(t.Context()))
			s.requireAllKept()
			if compacts {
				s.requireChains(2)
			} else {
				s.requireChains(1)
			}
		})
	}
}
