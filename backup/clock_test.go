package backup

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestClock_reportsJumpsForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var jump time.Duration
		c := newClock(func() time.Time { return time.Now().Add(jump) })
		time.Sleep(30 * 24 * time.Hour)
		assert.Empty(t, c.check(), "time passes")
		for _, ahead := range []time.Duration{8 * time.Hour, 0, -2 * time.Minute} {
			jump = ahead
			assert.Contains(t, c.check(), "this machine's clock jumped by ")
			time.Sleep(afterJump - time.Second)
			assert.NotEmpty(t, c.check())
			time.Sleep(time.Second)
			assert.Empty(t, c.check())
		}
		jump += 50 * time.Second
		assert.Empty(t, c.check(), "clocks are corrected")
	})
}
