package terminal

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/readiness/status"
)

func TestARecoveryTellsItsStepAndHowLongItTakes(t *testing.T) {
	told := recovered(&status.Recovery{State: "Build", Reason: "there is room", Loss: "3 revisions are lost", Bytes: 1 << 20, Of: 3 << 20, Rate: 1 << 20, Seconds: 2})
	assert.Equal(t, []fact{
		{"recovery", "Build: there is room"}, {"", "3 revisions are lost"}, {"", "1.0 of 3.0 MiB, 1.0 MiB/s, 2s left"},
	}, told)
	assert.Empty(t, recovered(nil))
}
