package dataversion

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEvaluate(t *testing.T) {
	t.Parallel()
	newcomer := []string{"member 8e9e05c52164694d, which was added and has not started yet"}
	for _, c := range []struct {
		name   string
		wanted Version
		facts  facts
		action action
		phase  string
		reason string
	}{
		{"nothing before the cluster has a version", Of3_5, facts{leader: true}, nothing, Waiting, "not decided"},
		{"nothing below what is wanted", Of3_5, facts{cluster: Version{3, 4}, storage: Of3_5, leader: true}, nothing, Kept, "runs at 3.4"},
		{"nothing at what is wanted", Of3_5, facts{cluster: Of3_5, storage: Of3_5, leader: true}, nothing, Kept, "runs at 3.5"},
		{"nothing with members of 3.5, which keep the cluster there", Of3_5, facts{cluster: Of3_5, storage: Of3_5, newcomers: newcomer, leader: true}, nothing, Kept, "runs at 3.5"},
		{"the leader asks for the downgrade", Of3_5, facts{cluster: Of3_6, storage: Of3_6, leader: true}, enable, Lowering, "has to be able to read"},
		{"only the leader does", Of3_5, facts{cluster: Of3_6, storage: Of3_6}, nothing, Waiting, "leader has to request"},
		{"not while a member joins", Of3_5, facts{cluster: Of3_6, storage: Of3_6, leader: true, newcomers: newcomer}, nothing, Waiting, "8e9e05c52164694d"},
		{"not twice", Of3_5, facts{cluster: Of3_6, storage: Of3_6, downgrade: Of3_5, leader: true}, nothing, Lowering, "was requested"},
		{"not again while the storage is converted", Of3_5, facts{cluster: Of3_5, storage: Of3_6, downgrade: Of3_5, leader: true}, nothing, Lowering, "convert"},
		{"it is held", Of3_5, facts{cluster: Of3_5, storage: Of3_5, downgrade: Of3_5, leader: true}, nothing, Holding, "holds the cluster"},
		{"and let go of for a new member", Of3_5, facts{cluster: Of3_5, storage: Of3_5, downgrade: Of3_5, leader: true, newcomers: newcomer}, cancelDowngrade, LettingGo, "8e9e05c52164694d"},
		{"by a follower too", Of3_5, facts{cluster: Of3_5, storage: Of3_5, downgrade: Of3_5, newcomers: newcomer}, cancelDowngrade, LettingGo, "no new member"},
		{"before it was carried out too", Of3_5, facts{cluster: Of3_6, storage: Of3_6, downgrade: Of3_5, newcomers: newcomer}, cancelDowngrade, LettingGo, "no new member"},
		{"whatever is wanted", Of3_6, facts{cluster: Of3_5, storage: Of3_5, downgrade: Of3_5, newcomers: newcomer}, cancelDowngrade, LettingGo, "no new member"},
		{"whoever asked for it", Of3_5, facts{cluster: Of3_5, storage: Of3_5, downgrade: Version{3, 4}, newcomers: newcomer}, cancelDowngrade, LettingGo, "no new member"},
		{"somebody else's downgrade is left alone", Of3_5, facts{cluster: Of3_5, storage: Of3_5, downgrade: Version{3, 4}, leader: true}, nothing, Foreign, "3.4"},
		{"the leader ends one that keeps it from rising", Of3_6, facts{cluster: Of3_5, storage: Of3_5, downgrade: Of3_5, leader: true}, cancelDowngrade, Rising, "3.6 is wanted"},
		{"only the leader ends it", Of3_6, facts{cluster: Of3_5, storage: Of3_5, downgrade: Of3_5}, nothing, Waiting, "leader has to end"},
		{"it rises by itself", Of3_6, facts{cluster: Of3_5, storage: Of3_5, leader: true}, nothing, Waiting, "when every member"},
		{"it has risen", Of3_6, facts{cluster: Of3_6, storage: Of3_6, leader: true}, nothing, Kept, "runs at 3.6"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := evaluate(c.wanted, c.facts)
			require.Equal(t, c.action, d.action)
			require.Equal(t, c.phase, d.phase)
			require.Contains(t, d.reason, c.reason)
		})
	}
}
