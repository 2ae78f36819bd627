package harness

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestWatch_busyMachine(t *testing.T) {
	defer func(real func()) { startSampling = real }(startSampling)
	startSampling = func() {} // the test itself adds samples to simulate a busy machine
	synctest.Test(t, func(t *testing.T) {
		idle := StartWatch()
		pass(10*time.Second, 1)
		assert.Equal(t, 10*time.Second, idle.Duration())
		busy := StartWatch()
		pass(10*time.Second, 4)
		assert.Equal(t, 2500*time.Millisecond, busy.Duration(), "only samples taken since the start count")
		assert.Equal(t, 8*time.Second, idle.Duration())
	})
}

// pass advances the time and adds a sample that took slowdown times its CPU time.
func pass(span time.Duration, slowdown int) {
	<-time.After(span)
	samples.Lock()
	defer samples.Unlock()
	samples.elapsed, samples.cpu = samples.elapsed+time.Duration(slowdown)*sampleTime, samples.cpu+sampleTime
}
