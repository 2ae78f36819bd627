package member_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Two of three stop together, the leader among them, as when a StatefulSet is scaled from three to one.
func TestClose_unwantedMembersLeave(t *testing.T) {
	t.Parallel()
	members := three(t)
	stays, client := members[1], members[1].client(t)
	_, err := client.Put(soon(t), "key", "before")
	require.NoError(t, err)
	closed := make(chan error, 2)
	for _, b := range []*bench{members[0], members[2]} {
		b.unwanted.Store(true)
		go func() {
			_, err := b.Close()
			closed <- err
		}()
	}
	for range 2 {
		require.NoError(t, <-closed)
	}
	left, err := client.MemberList(soon(t))
	require.NoError(t, err)
	require.Len(t, left.Members, 1)
	assert.Equal(t, stays.config.Name, left.Members[0].Name)
	_, err = client.Put(soon(t), "key", "after")
	require.NoError(t, err, "it is its own quorum")
	for _, b := range []*bench{members[0], members[2]} {
		assert.Contains(t, b.log.String(), "has left its cluster")
	}
}

func TestClose_wantedMemberStays(t *testing.T) {
	t.Parallel()
	members := three(t)
	_, err := members[0].Close()
	require.NoError(t, err)
	list, err := members[1].client(t).MemberList(soon(t))
	require.NoError(t, err)
	assert.Len(t, list.Members, 3)
}

// A cluster is not ended by its last member.
func TestClose_lastMemberStays(t *testing.T) {
	b := newBench(t, t.TempDir()+"/new.etcd")
	require.NoError(t, b.Open(soon(t)))
	b.unwanted.Store(true)
	opened, err := b.Close()
	require.NoError(t, err)
	assert.True(t, opened)
	assert.NotContains(t, b.log.String(), "fewer members")
}
