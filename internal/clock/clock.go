// Package clock pauses a goroutine for a time or until a context ends.
package clock

import (
	"context"
	"time"
)

// Sleep returns nil after the pause, or ctx's error if ctx is done first.
func Sleep(ctx context.Context, pause time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pause):
		return nil
	}
}
