package recovery_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// TestRestoreTargets_outsideTheWindow requests restores to revisions and times for which there are no backups. Such
// starts must fail without changing the data. A restore to the first revision in the store must succeed.
func TestRestoreTargets_outsideTheWindow(t *testing.T) {
	t.Parallel()
	l := newStoredMember(t)
	history, err := l.archive().History(t.Context())
	require.NoError(t, err)
	chain := history.Newest().Chains[0]
	window := fmt.Sprintf("revisions %d to %d (", chain.From, chain.To)
	for target, test := range map[string]struct {
		status  int
		message string
	}{
		"revision:0":                              {64, "is not a valid revision"},
		"revision:-1":                             {64, "is not a valid revision"},
		at(time.Now().Add(time.Hour)):             {64, "is in the future"},
		at(chain.Begin.Add(-time.Second)):         {78, window},
		fmt.Sprintf("revision:%d", chain.To+1):    {78, window},
		fmt.Sprintf("revision:%d", int64(1)<<62):  {78, window},
		fmt.Sprintf("revision:%d", chain.To+1000): {78, window},
	} {
		before := l.files()
		run := l.Start("--restore-to="+target, "--restore-id=edge")
		require.Equal(t, test.status, run.Exit(harness.Patience), target)
		assert.NotEmpty(t, run.Log.FindText(test.message), target)
		assert.Equal(t, before, l.files(), "the data is not moved")
	}
	l.StartReady(fmt.Sprintf("--restore-to=revision:%d", chain.From), "--restore-id=first").Shutdown()
	assert.Equal(t, chain.From, l.generations()[1].ParentRevision)
}

func at(when time.Time) string { return "time:" + when.UTC().Format(time.RFC3339) }
