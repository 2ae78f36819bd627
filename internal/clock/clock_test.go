package clock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/internal/clock"
)

func TestSleep_endsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		assert.NoError(t, clock.Sleep(ctx, 20*time.Second))
		assert.Equal(t, 20*time.Second, time.Since(start))
		assert.ErrorIs(t, clock.Sleep(ctx, time.Hour), context.DeadlineExceeded)
		assert.Equal(t, time.Minute, time.Since(start))
	})
}
