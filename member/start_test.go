package member

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/quorum"
)

func TestOnlyTheOnlyVoterOfAConfigurationThatIsAppliedNeedsNobody(t *testing.T) {
	t.Parallel()
	voters := func(ids ...uint64) quorum.MajorityConfig {
		c := quorum.MajorityConfig{}
		for _, id := range ids {
			c[id] = struct{}{}
		}
		return c
	}
	for what, c := range map[string]struct {
		change func(*raft.Status)
		leads  bool
	}{
		"the only voter":                   {func(*raft.Status) {}, true},
		"with learners":                    {func(s *raft.Status) { s.Config.Learners = voters(2, 3) }, true},
		"two voters":                       {func(s *raft.Status) { s.Config.Voters[0] = voters(1, 2) }, false},
		"removed":                          {func(s *raft.Status) { s.Config.Voters[0] = voters(2) }, false},
		"on the way from two to one":       {func(s *raft.Status) { s.Config.Voters[1] = voters(1, 2) }, false},
		"a log that is not applied":        {func(s *raft.Status) { s.Applied-- }, false},
		"nothing heard of the cluster yet": {func(s *raft.Status) { s.Commit, s.Applied = 0, 0 }, false},
	} {
		s := raft.Status{}
		s.ID, s.Commit, s.Applied = 1, 7, 7
		s.Config.Voters[0] = voters(1)
		c.change(&s)
		assert.Equal(t, c.leads, needsNobody(s), what)
	}
}
