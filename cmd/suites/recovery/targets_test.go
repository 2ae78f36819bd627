package recovery_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/cmd/suites/harness"
)

// TestRestoreTargets_outsideTheWindow asks for targets beyond both, which move nothing, and then for the first revision that is kept.
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
		"revision:0":                              {64, "is not a revision"},
		"revision:-1":                             {64, "is not a revision"},
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
		assert.Equal(t, before, l.files(), "nothing is moved")
	}
	l.StartReady(fmt.Sprintf("--restore-to=revision:%d", chain.From), "--restore-id=first").Shutdown()
	assert.Equal(t, chain.From, l.generations()[1].ParentRevision)
}

func at(when time.Time) string { return "time:" + when.UTC().Format(time.RFC3339) }

// TestForgottenSigningKey_losesNothing has a member sign with a new key, and then trust the old one alone: what is signed with the new
// one is not damaged, so that nothing older is restored.
func TestForgottenSigningKey_losesNothing(t *testing.T) {
	t.Parallel()
	p, d, former, present := harness.NewStandalonePod(t, nil), newDepot(t), formattest.NewKeys(t), formattest.NewKeys(t)
	p.Flags = append(p.Flags, d.flag())
	both := formattest.JoinFiles(t, former.TrustedKeys, present.TrustedKeys)
	keys := func(signing, trusted string) []string {
		return []string{"--backup-signing-key=" + signing, "--backup-trusted-keys=" + trusted}
	}
	for _, test := range []struct{ value, signing string }{{"old", former.SigningKey}, {"new", present.SigningKey}} {
		run := p.StartReady(keys(test.signing, both)...)
		p.Put("key", test.value)
		run.Shutdown()
		run.AwaitLine(harness.Line{"message": "backups: all acknowledged writes are in the store"})
	}
	breakDatabase(p)
	p.ExpectTerminationMessage()
	require.Equal(t, 70, p.Start(keys(former.SigningKey, former.TrustedKeys)...).Exit(harness.Patience))
	message, err := os.ReadFile(p.TerminationMessage())
	require.NoError(t, err)
	for _, text := range []string{"gen/000001/segment/", "not signed by a key of --backup-trusted-keys", "add the key to the file", "nothing was moved"} {
		assert.Contains(t, string(message), text)
	}
	assert.Empty(t, preservedCopies(p))
	assert.Empty(t, unfinishedFiles(p))
	assert.Len(t, d.generations(), 1)

	p.StartReady(keys(former.SigningKey, both)...)
	assert.Equal(t, "new", p.Get("key"))
}
