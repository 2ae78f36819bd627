package restore

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"

	bolt "go.etcd.io/bbolt"

	"etcd-wrapper/internal/child"
)

const inspectionStack = 8 << 20 // bytes; pages that refer to each other in a circle end here and not at 1 GB

// Inspect opens a database as it is opened to be changed, and closes it. Where pages contradict each other bbolt panics in a
// goroutine of its own, or its stack overflows, which nobody can recover from: this is for a process of its own, the one that
// InspectInChild starts, of which it changes limits. What is an error here is one for Database, too, which says it.
func Inspect(path string) {
	debug.SetMaxStack(inspectionStack)
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err == nil {
		_ = db.Close() // nothing was written
	}
}

// InspectInChild returns what Options.Inspect can be: it runs `executable args...`, a command that is expected to call
// Inspect. That it panics is an ErrDamaged. The child is killed when ctx ends, and on Linux when this process dies.
func InspectInChild(executable string, args func(path string) []string) func(context.Context, string) error {
	return func(ctx context.Context, path string) error {
		ended, err := child.Run(ctx, executable, args(path)...)
		switch {
		case err != nil:
			return fmt.Errorf("cannot inspect it: %w", err)
		case ended.Status == 0:
			return nil
		case strings.HasPrefix(ended.Crash, "panic: "), ended.Crash == "fatal error: stack overflow":
			return fmt.Errorf("%w: its database cannot be read: %s", ErrDamaged, ended.Crash)
		default:
			return fmt.Errorf("cannot inspect it: %s", ended.Crash)
		}
	}
}
