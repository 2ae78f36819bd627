package stories

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOneMember(t *testing.T) {
	w := newWorld(t)
	w.apply("deploy/standalone")
	w.awaitReady(1)
	w.greet()
	assert.True(t, w.greeted())
	assert.Contains(t, w.asked("etcd-main-0", "status"), "etcd-main-0: Serving, ready")
}

func TestThreeMembers(t *testing.T) {
	w := newWorld(t)
	w.apply("deploy/standalone-ha")
	w.awaitReady(3)
	w.greet()
	assert.ElementsMatch(t, []string{"etcd-main-0", "etcd-main-1", "etcd-main-2"}, w.voters())
	nodes := map[string]bool{}
	for name, pod := range w.pods() {
		nodes[pod.Spec.NodeName] = true
		assert.Contains(t, w.asked(name, "status"), name+": Serving, ready")
	}
	assert.Len(t, nodes, 3, "each is on a node of its own")
}
