package harness

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestWatch_busyMachine(t *testing.T) {
	defer func(real func()) { measuring = real }(measuring)
	measuring = func() {} // disabled because the test simulates the machine's load
	synctest.Test(t, func(t *testing.T) {
		idle := StartWatch()
		pass(10*time.Second, 1)
		assert.Equal(t, 10*time.Second, idle.Duration())
		busy := StartWatch()
		pass(10*time.Second, 4)
		assert.Equal(t, 2500*time.Millisecond, busy.Duration(), "only the pace since the start counts")
		assert.Equal(t, 8*time.Second, idle.Duration())
	})
}

// pass advances the time as if measurements took several times their CPU time.
func pass(span time.Duration, slower int) {
	<-time.After(span)
	pace.Lock()
	defer pace.Unlock()
	pace.took, pace.worked = pace.took+time.Duration(slower)*stint, pace.worked+stint
}
