package member

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/quorum"
	"go.etcd.io/raft/v3/tracker"
)

func TestIsOnlyVoter(t *testing.T) {
	t.Parallel()
	const self, other = 1, 2
	set := func(members ...uint64) quorum.MajorityConfig {
		voters := quorum.MajorityConfig{}
		for _, member := range members {
			voters[member] = struct{}{}
		}
		return voters
	}
	for name, test := range map[string]struct {
		voters   quorum.JointConfig
		learners quorum.MajorityConfig
		etcd     uint64 // number of committed entries that etcd has not applied
		raft     uint64 // number of committed entries that raft has not applied
		alone    bool
	}{
		"the only voter":                       {quorum.JointConfig{set(self)}, nil, 0, 0, true},
		"with a learner":                       {quorum.JointConfig{set(self)}, set(other), 0, 0, true},
		"the log may bring another voter":      {quorum.JointConfig{set(self)}, nil, 1, 0, false},
		"raft is behind etcd":                  {quorum.JointConfig{set(self)}, nil, 0, 1, false},
		"two voters":                           {quorum.JointConfig{set(self, other)}, nil, 0, 0, false},
		"another one leaves":                   {quorum.JointConfig{set(self), set(self, other)}, nil, 0, 0, false},
		"another one comes":                    {quorum.JointConfig{set(self, other), set(self)}, nil, 0, 0, false},
		"a learner itself":                     {quorum.JointConfig{set(other)}, set(self), 0, 0, false},
		"it was removed":                       {quorum.JointConfig{set(other)}, nil, 0, 0, false},
		"it was removed, and no voter is left": {quorum.JointConfig{set()}, nil, 0, 0, false},
		"raft has ended":                       {quorum.JointConfig{}, nil, 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status := raft.Status{Config: tracker.Config{Voters: test.voters, Learners: test.learners}}
			status.ID, status.Commit, status.Applied = self, 7, 7-test.raft
			assert.Equal(t, test.alone, isOnlyVoter(status.Commit-test.etcd, status))
		})
	}
}

// The log of a restored member ends with a snapshot, so etcd has no entries to apply.
func TestIsOnlyVoter_restoredMember(t *testing.T) {
	t.Parallel()
	const self = 1
	status := raft.Status{Config: tracker.Config{Voters: quorum.JointConfig{{self: {}}}}}
	status.ID, status.Commit = self, 1
	assert.False(t, isOnlyVoter(0, status), "before raft has taken the snapshot over")
	status.Applied = 1
	assert.True(t, isOnlyVoter(0, status))
	status.Commit, status.Applied = 2, 2
	assert.False(t, isOnlyVoter(0, status), "etcd has not applied what came behind it")
}
