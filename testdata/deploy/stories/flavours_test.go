package stories

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOneMemberWithASidecar(t *testing.T) {
	w := newWorld(t)
	w.apply("deploy/sidecar")
	w.awaitReady(1)
	w.greet()
	assert.True(t, w.greeted())
	assert.Contains(t, w.asked("etcd-main-0", "status"), "etcd-main-0: Serving, ready")
}

func TestThreeMembersWithSidecars(t *testing.T) {
	w := newWorld(t)
	w.apply("deploy/sidecar-ha")
	w.secret("etcd-main-backup-credentials", map[string]string{"region": "eu-west-1"})
	w.awaitReady(3)
	w.greet()
	assert.ElementsMatch(t, []string{"etcd-main-0", "etcd-main-1", "etcd-main-2"}, w.voters())
}

// The volume, its exit record and the members' names are the same in both flavours.
func TestAMemberMovesFromTheSidecarToStandaloneAndBack(t *testing.T) {
	w := newWorld(t)
	w.apply("deploy/sidecar")
	w.awaitReady(1)
	w.greet()
	for _, variant := range []string{"standalone", "sidecar"} {
		w.apply("deploy/" + variant)
		w.awaitReady(1)
		require.True(t, w.greeted(), "after moving to %s", variant)
	}
	assert.NoError(t, contains(w.log("etcd-main-0"), "sanity"), "each took over from an orderly end")
}
