package verification

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/internal/child"
)

// Exit statuses of RunChild. Go itself exits with 2 after a panic.
const (
	childCompleted = 0
	childUnable    = 1
)

const (
	maxReason  = 4 << 10 // characters of a result's reason, and of an error
	gcPercent  = 25      // low, because memory matters more than time
	childStack = 8 << 20 // bytes; cyclic pages overflow this stack early, and not the default of 1 GB
)

// childOutput is the line of JSON that a child prints.
type childOutput struct {
	Result *archive.Result `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// RunChild verifies a backup, prints the result to stdout as one line of JSON and returns the exit status. It changes
// limits and the priority of its process, which should be one that InChild started.
func RunChild(ctx context.Context, a *archive.Archive, job Job, scratch string, stdout io.Writer) int {
	child.LowerPriority()
	debug.SetGCPercent(gcPercent)
	debug.SetMaxStack(childStack)
	result, err := Verify(ctx, a, job, scratch)
	output := childOutput{Result: &result}
	if err != nil {
		output = childOutput{Error: fmt.Sprintf("%.*s", maxReason, err)}
	}
	result.Why = fmt.Sprintf("%.*s", maxReason, result.Why)
	if json.NewEncoder(stdout).Encode(output) != nil || err != nil {
		return childUnable
	}
	return childCompleted
}

// InChild returns a function that runs `executable args...` to verify the end of a path. The command is expected to
// call RunChild. A child that panics, or whose stack overflows because of cyclic pages, could not restore the backup:
// that is a result. A child that ends without output for another reason, such as a signal, is an error. The child is
// killed when ctx is done, and on Linux when this process dies.
func InChild(executable string, args func(Job) []string) func(context.Context, archive.Path) (archive.Result, error) {
	return func(ctx context.Context, path archive.Path) (archive.Result, error) {
		started := time.Now()
		job := Job{Generation: path.Full.Generation, Full: path.Full.Name(), Revision: path.Revision}
		ended, err := child.Run(ctx, executable, args(job)...)
		if err != nil {
			return archive.Result{}, fmt.Errorf("cannot verify the backup of revision %d: %w", path.Revision, err)
		}
		var output childOutput
		switch readable := ended.Decode(&output); {
		case readable && ended.Status == childCompleted && output.Result != nil:
			return *output.Result, nil
		case readable && ended.Status == childUnable && output.Error != "":
			return archive.Result{}, errors.New(output.Error)
		case strings.HasPrefix(ended.Crash, "panic: "), ended.Crash == "fatal error: stack overflow":
			result := newResult(path, archive.Failed)
			result.Why, result.At, result.Seconds = "restoring it crashed: "+ended.Crash, started, time.Since(started).Seconds()
			return result, nil
		default:
			return archive.Result{}, fmt.Errorf("cannot verify the backup of revision %d: the process ended without a result: %s", path.Revision, ended.Crash)
		}
	}
}
