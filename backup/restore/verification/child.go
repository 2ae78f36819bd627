package verification

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/internal/child"
)

// Exit statuses of RunChild. Go's own for a panic is 2.
const (
	childJudged = 0
	childUnable = 1
)

const (
	maxReason  = 4 << 10 // characters of a result's reason, and of an error
	gcPercent  = 25      // memory matters more than time
	childStack = 8 << 20 // bytes; pages that refer to each other in a circle end here and not at 1 GB
)

// answer is the result of a child, a line of JSON.
type answer struct {
	Result *archive.Result `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// RunChild verifies a backup, prints the result to stdout as one line of JSON and returns the exit status. It changes limits and priority
// of the process, so it needs its own, which InChild starts.
func RunChild(ctx context.Context, a *archive.Archive, job Job, scratch string, stdout io.Writer) int {
	child.Yield()
	debug.SetGCPercent(gcPercent)
	debug.SetMaxStack(childStack)
	result, err := Verify(ctx, a, job, scratch)
	told := answer{Result: &result}
	if err != nil {
		told = answer{Error: fmt.Sprintf("%.*s", maxReason, err)}
	}
	result.Why = fmt.Sprintf("%.*s", maxReason, result.Why)
	if json.NewEncoder(stdout).Encode(told) != nil || err != nil {
		return childUnable
	}
	return childJudged
}

// InChild returns a function that runs `executable args...` to verify what lies at the end of a path, a command that is
// expected to call RunChild. A child that panics could not bring the backup back, which is a result; so is one whose stack
// overflows, of pages that refer to each other in a circle. One that ends without a word otherwise, by a signal for
// example, is an error. The child is killed when ctx ends, and on Linux when this process dies.
func InChild(executable string, args func(Job) []string) func(context.Context, archive.Path) (archive.Result, error) {
	return func(ctx context.Context, path archive.Path) (archive.Result, error) {
		began := time.Now()
		job := Job{Generation: path.Full.Generation, Full: path.Full.Name(), Revision: path.Revision}
		ended, err := child.Run(ctx, executable, args(job)...)
		if err != nil {
			return archive.Result{}, fmt.Errorf("cannot verify the backup of revision %d: %w", path.Revision, err)
		}
		var told answer
		switch readable := ended.Said(&told); {
		case readable && ended.Status == childJudged && told.Result != nil:
			return *told.Result, nil
		case readable && ended.Status == childUnable && told.Error != "":
			return archive.Result{}, childError(told.Error)
		case strings.HasPrefix(ended.Crash, "panic: "), ended.Crash == "fatal error: stack overflow":
			return archive.Result{
				Cluster: path.Full.Cluster, Generation: job.Generation, Full: job.Full, Revision: job.Revision,
				Segments: path.Revision != path.Full.Revision, Outcome: archive.Failed, Why: "bringing it back crashed: " + ended.Crash,
				At: began, Seconds: time.Since(began).Seconds(),
			}, nil
		default:
			return archive.Result{}, fmt.Errorf("cannot verify the backup of revision %d: the process ended without a result: %s", path.Revision, ended.Crash)
		}
	}
}

// childError is the message of a child.
type childError string

func (e childError) Error() string { return string(e) }
