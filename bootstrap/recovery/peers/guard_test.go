package peers

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// etcd counts each connection twice that a member had when it was sent a snapshot, and takes one away when it ends.
func TestAConnectionOverWhichNothingComesIsNoneAfterAMinute(t *testing.T) {
	w := newTown(t)
	for i, step := range []struct {
		after time.Duration
		bytes int
		free  bool
	}{
		{0, 100, false},
		{30 * time.Second, 100, false},
		{20 * time.Second, 101, false}, // something came
		{20 * time.Second, 101, false},
		{50 * time.Second, 101, false},
		{10 * time.Second, 101, true},
		{10 * time.Second, 102, false},
	} {
		w.now = w.now.Add(step.after)
		w.fakes[0].metrics = connectedTo(0xc0, own, 1) + fmt.Sprintf("etcd_network_peer_received_bytes_total{From=\"%x\"} %d\n", own, step.bytes)
		assert.Equal(t, step.free, w.ask().InTheWay == nil, "step %d", i)
	}
}
