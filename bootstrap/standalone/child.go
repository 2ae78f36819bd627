package standalone

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
)

// Exit statuses of RunChild. Go's own for a panic is 2.
const (
	childValid  = 0
	childBroken = 1
)

const (
	maxChildOutput = 64 << 10               // bytes kept of each of a child's output streams
	maxReason      = 4 << 10                // characters of a verdict's reason
	maxWarnings    = 10                     // of a verdict; each has a quarter of a reason's characters
	maxCrashReason = 256                    // characters quoted of a crash
	childWait      = 200 * time.Millisecond // between killing a child and giving up on its output
	maxChildStack  = 8 << 20                // bytes; pages that refer to each other in a circle end here and not at 1 GB
)

// verdict is the line of JSON with which a child ends.
type verdict struct {
	Valid    bool     `json:"valid"`
	Reason   string   `json:"reason,omitempty"`
	Warnings []string `json:"warnings,omitempty"` // at most maxWarnings
}

// RunChild validates the data directory, prints the verdict to stdout as one line of JSON and returns the exit status of
// the process: 0 if the directory is valid, 1 if it is not. It changes limits of the process, so it is for a process of
// its own, the one that InChild starts.
func RunChild(ctx context.Context, dataDir string, mode bootstrap.Mode, stdout io.Writer) int {
	debug.SetMaxStack(maxChildStack)
	warnings, err := datadir.Verify(ctx, dataDir, mode)
	outcome := verdict{Valid: err == nil, Warnings: bounded(warnings)}
	if err != nil {
		outcome.Reason = fmt.Sprintf("%.*s", maxReason, err)
	}
	if err := json.NewEncoder(stdout).Encode(outcome); err != nil || !outcome.Valid {
		return childBroken
	}
	return childValid
}

// bounded keeps a verdict's line within what is read of a child.
func bounded(warnings []string) []string {
	kept := make([]string, 0, maxWarnings)
	for _, warning := range warnings[:min(len(warnings), maxWarnings)] {
		kept = append(kept, fmt.Sprintf("%.*s", maxReason/4, warning))
	}
	return kept
}

// InChild returns a VerifyFunc that runs `executable args...` for each validation, a command that is expected to call
// RunChild. A child that dies without a verdict, by a panic or a signal, makes the validation fail with the first line of
// the panic. The child is killed when ctx ends, and on Linux when this process dies.
func InChild(executable string, args func(dataDir string, mode bootstrap.Mode) []string) VerifyFunc {
	return func(ctx context.Context, dataDir string, mode bootstrap.Mode) ([]string, error) {
		var stdout, stderr head
		child := exec.CommandContext(ctx, executable, args(dataDir, mode)...)
		child.Stdout, child.Stderr, child.WaitDelay = &stdout, &stderr, childWait
		bindToParent(child)

		// Linux binds the child to the thread that started it, so the thread has to stay for as long as the child does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := child.Run()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("validation of %s was stopped: %w", dataDir, context.Cause(ctx))
		}
		return judge(child.ProcessState.ExitCode(), err, stdout.kept, stderr.kept)
	}
}

// judge makes warnings and an error of how a child ended. Only a status and a line that agree count as a verdict.
func judge(status int, err error, stdout, stderr []byte) (warnings []string, _ error) {
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		return nil, fmt.Errorf("cannot run the validation: %w", err)
	}
	outcome, readable := lastVerdict(stdout)
	switch {
	case readable && outcome.Valid && status == childValid:
		return outcome.Warnings, nil
	case readable && !outcome.Valid && status == childBroken:
		return outcome.Warnings, errors.New(outcome.Reason)
	case exited == nil:
		return nil, errors.New("validation ended without a verdict")
	default:
		return nil, datadir.Crashed(fmt.Sprintf("%.*s", maxCrashReason, crashReason(stderr, exited)))
	}
}

func lastVerdict(stdout []byte) (outcome verdict, readable bool) {
	stdout = bytes.TrimSpace(stdout)
	line := stdout[bytes.LastIndexByte(stdout, '\n')+1:]
	err := json.Unmarshal(line, &outcome)
	return outcome, err == nil
}

// crashReason finds the line in which the Go runtime says why it gave up; what stands before it may be anything.
func crashReason(stderr []byte, exited *exec.ExitError) string {
	for line := range strings.Lines(string(stderr)) {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return strings.TrimSpace(line)
		}
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(stderr)), "\n")
	if first == "" {
		first = exited.String()
	}
	return first
}

// head is a writer that keeps the first maxChildOutput bytes and swallows the rest.
type head struct{ kept []byte }

func (h *head) Write(p []byte) (int, error) {
	room := maxChildOutput - len(h.kept)
	h.kept = append(h.kept, p[:min(len(p), room)]...)
	return len(p), nil
}
