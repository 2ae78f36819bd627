package backups_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// Auto-compaction must not remove changes before they have been captured, even if the store is unreachable and the
// backup interval is as long as the interval between compactions. Otherwise, the chain would end at a gap.
func TestAutoCompaction_leavesNoGap(t *testing.T) {
	t.Parallel()
	m := &member{Pod: harness.NewStandalonePod(t, map[string]any{"auto-compaction-retention": "1s"}), depot: newDepot(t)}
	m.Flags = append(m.Flags, m.flag(), "--recover=never", "--backup-interval=1s")
	run := m.StartReady()
	run.AwaitStored(m.write("key", "in the store"))
	rename(t, m.mount, m.mount+".away")
	before, last := len(m.compactions(run)), int64(0)
	harness.Eventually(t, "etcd has compacted a few times", func() bool {
		last = m.write("key", fmt.Sprint("written while the store is unreachable ", last))
		return len(m.compactions(run)) > before+3
	})
	rename(t, m.mount+".away", m.mount)
	run.AwaitStored(last)
	run.Shutdown()
	assert.Empty(t, run.Log.FindText("the chain cannot be extended"))
	require.Len(t, m.requireSound(t), 1, "the chain has no gap")
}

func (m *member) compactions(run *harness.Run) []string {
	m.T.Helper()
	return run.Log.FindText("completed auto periodic compaction")
}
