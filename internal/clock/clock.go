// Package clock provides a sleep that can be interrupted by a context.
package clock

import (
	"context"
	"time"
)

// Sleep returns nil after the pause, or ctx.Err() if ctx is done first.
func Sleep(ctx context.Context, pause time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pause):
		return nil
	}
}
