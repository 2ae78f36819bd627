// Package clock pauses a goroutine until a time has passed or a context ends.
package clock

import (
	"context"
	"time"
)

// Sleep returns nil after a pause, and the error of ctx as soon as that ends.
func Sleep(ctx context.Context, pause time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pause):
		return nil
	}
}
