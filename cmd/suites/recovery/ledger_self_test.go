package recovery_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// exampleLedger returns a ledger with three attempts to change the same key: a put that was acknowledged at revision
// 5, a put whose outcome is unknown, and a deletion that was acknowledged at revision 9.
func exampleLedger() (l *ledger, first, uncertain, last *attempt) {
	l = newLedger()
	first, uncertain, last = l.attempt("k", false, 0), l.attempt("k", false, 0), l.attempt("k", true, 0)
	l.acknowledge(first, 5)
	l.acknowledge(last, 9)
	return l, first, uncertain, last
}

// contentAfter returns etcd's contents if the given attempt was the last one to take effect, at the given revision.
func contentAfter(a *attempt, revision int64) contents {
	have := contents{markPrefix + "k": {Value: []byte(a.token), ModRevision: revision}}
	if !a.deletes {
		have["k"] = &mvccpb.KeyValue{Value: []byte(a.token), ModRevision: revision}
	}
	return have
}

func TestLedger_acceptsValidResults(t *testing.T) {
	l, first, _, _ := exampleLedger()
	wrong, undone := l.verify(contentAfter(first, 5), 6, true)
	assert.Empty(t, wrong)
	assert.Equal(t, 1, undone)

	l, _, uncertain, last := exampleLedger()
	wrong, _ = l.verify(contentAfter(uncertain, 7), 8, true)
	assert.Empty(t, wrong)
	assert.EqualValues(t, 7, uncertain.revision, "verify records the revision of the attempt")
	assert.True(t, last.failed)

	l, _, _, last = exampleLedger()
	wrong, undone = l.verify(contentAfter(last, 9), 9, true)
	assert.Empty(t, wrong)
	assert.Zero(t, undone)

	l, _, _, _ = exampleLedger()
	wrong, _ = l.verify(contents{}, 4, true)
	assert.Empty(t, wrong)
}

// verify must find all kinds of violations, because the chaos tests rely on the ledger.
func TestLedger_findsViolations(t *testing.T) {
	for name, test := range map[string]struct {
		have    func(first, uncertain, last *attempt) contents
		at      int64
		message string
	}{
		"lost":                    {func(_, _, _ *attempt) contents { return contents{} }, 6, "was acknowledged at revision 5"},
		"rolled back":             {func(first, _, _ *attempt) contents { return contentAfter(first, 5) }, 9, "was acknowledged later"},
		"later than the revision": {func(_, _, last *attempt) contents { return contentAfter(last, 9) }, 8, "rolled back or never took effect"},
		"unknown value":           {func(_, _, _ *attempt) contents { return contentAfter(&attempt{token: "x"}, 5) }, 4, "unknown value"},
		"different revision":      {func(first, _, _ *attempt) contents { return contentAfter(first, 6) }, 6, "but has revision 6"},
		"not deleted": {func(first, _, last *attempt) contents {
			return contents{markPrefix + "k": contentAfter(last, 9)[markPrefix+"k"], "k": contentAfter(first, 5)["k"]}
		}, 9, "deleted the key"},
		"half of a transaction": {func(first, _, _ *attempt) contents {
			return contents{markPrefix + "k": contentAfter(first, 5)[markPrefix+"k"]}
		}, 6, "only half of the transaction"},
		"unknown key": {func(first, _, _ *attempt) contents {
			have := contentAfter(first, 5)
			have["unknown"] = &mvccpb.KeyValue{}
			return have
		}, 6, "unknown was never written"},
	} {
		l, first, uncertain, last := exampleLedger()
		wrong, _ := l.verify(test.have(first, uncertain, last), test.at, true)
		require.Len(t, wrong, 1, name)
		assert.Contains(t, wrong[0], test.message, name)
	}
}

func TestLedger_findsUndoneWrites(t *testing.T) {
	l, first, uncertain, _ := exampleLedger()
	wrong, _ := l.verify(contentAfter(first, 5), 6, true)
	require.Empty(t, wrong)
	wrong, _ = l.verify(contentAfter(uncertain, 7), 1000, true)
	require.Len(t, wrong, 1)
	assert.Contains(t, wrong[0], "rolled back or never took effect")
}
