package recovery_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// told returns a ledger of a key that was put at revision 5, perhaps put again, and deleted at 9.
func told() (l *ledger, first, perhaps, last *attempt) {
	l = newLedger()
	first, perhaps, last = l.attempt("k", false, 0), l.attempt("k", false, 0), l.attempt("k", true, 0)
	l.acknowledge(first, 5)
	l.acknowledge(last, 9)
	return l, first, perhaps, last
}

// holding returns the content if an attempt was the last, at a revision.
func holding(a *attempt, revision int64) found {
	have := found{beside + "k": {Value: []byte(a.token), ModRevision: revision}}
	if !a.deletes {
		have["k"] = &mvccpb.KeyValue{Value: []byte(a.token), ModRevision: revision}
	}
	return have
}

func TestLedger_acceptsValidResults(t *testing.T) {
	l, first, _, _ := told()
	wrong, undone := l.settle(holding(first, 5), 6, true)
	assert.Empty(t, wrong)
	assert.Equal(t, 1, undone)

	l, _, perhaps, last := told()
	wrong, _ = l.settle(holding(perhaps, 7), 8, true)
	assert.Empty(t, wrong)
	assert.EqualValues(t, 7, perhaps.revision, "now it is known")
	assert.True(t, last.never)

	l, _, _, last = told()
	wrong, undone = l.settle(holding(last, 9), 9, true)
	assert.Empty(t, wrong)
	assert.Zero(t, undone)

	l, _, _, _ = told()
	wrong, _ = l.settle(found{}, 4, true)
	assert.Empty(t, wrong)
}

// What is not seen here would not be seen in the chaos either.
func TestLedger_findsViolations(t *testing.T) {
	for name, test := range map[string]struct {
		have    func(first, perhaps, last *attempt) found
		at      int64
		message string
	}{
		"lost":            {func(_, _, _ *attempt) found { return found{} }, 6, "was acknowledged at revision 5"},
		"rolled back":     {func(first, _, _ *attempt) found { return holding(first, 5) }, 9, "was acknowledged after it"},
		"from the future": {func(_, _, last *attempt) found { return holding(last, 9) }, 8, "undone or never done"},
		"made up":         {func(_, _, _ *attempt) found { return holding(&attempt{token: "x"}, 5) }, 4, "nobody wrote"},
		"another time":    {func(first, _, _ *attempt) found { return holding(first, 6) }, 6, "as of 6"},
		"not deleted": {func(first, _, last *attempt) found {
			return found{beside + "k": holding(last, 9)[beside+"k"], "k": holding(first, 5)["k"]}
		}, 9, "has deleted it"},
		"half": {func(first, _, _ *attempt) found {
			return found{beside + "k": holding(first, 5)[beside+"k"]}
		}, 6, "half of the transaction"},
		"a stranger": {func(first, _, _ *attempt) found {
			have := holding(first, 5)
			have["stranger"] = &mvccpb.KeyValue{}
			return have
		}, 6, "stranger was never written"},
	} {
		l, first, perhaps, last := told()
		wrong, _ := l.settle(test.have(first, perhaps, last), test.at, true)
		require.Len(t, wrong, 1, name)
		assert.Contains(t, wrong[0], test.message, name)
	}
}

func TestLedger_findsUndoneWrites(t *testing.T) {
	l, first, perhaps, _ := told()
	wrong, _ := l.settle(holding(first, 5), 6, true)
	require.Empty(t, wrong)
	wrong, _ = l.settle(holding(perhaps, 7), 1000, true)
	require.Len(t, wrong, 1)
	assert.Contains(t, wrong[0], "undone or never done")
}
