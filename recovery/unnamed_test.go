package recovery

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/exitcode"
)

func TestAMemberOfSeveralThatAreNotNamedIsLeftAsItIs(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.member.Alone = false
	require.NoError(t, w.run())
	w.spoil()
	err := w.run()
	require.ErrorContains(t, err, "the others would not")
	assert.Equal(t, exitcode.EtcdFailed, w.statusOf(err))
}

// A discovery service knows who they are, and would have the cluster begun anew.
func TestAnEmptyMemberOfSeveralThatAreNotNamedBeginsNoClusterASecondTime(t *testing.T) {
	w := newWorld(t)
	w.member.Alone = false
	require.NoError(t, w.run(), "nothing was ever kept")
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	w.emptyStore()
	w.used()
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	for _, never := range []bool{false, true} {
		w.options.Never = never
		err := w.run()
		require.ErrorContains(t, err, "is cluster "+ours+"'s")
		require.ErrorContains(t, err, "was founded before")
		require.ErrorContains(t, err, "name all members in initial-cluster")
		assert.Equal(t, exitcode.EtcdFailed, w.statusOf(err))
		assert.NoDirExists(t, w.member.DataDir)
	}

	w.member.Joins = true
	require.NoError(t, w.run(), "etcd joins the one that exists")
	w.member.Joins, w.options.Archive = false, nil
	require.NoError(t, w.run(), "nobody knows of another one")
}
