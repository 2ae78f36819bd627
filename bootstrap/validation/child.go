package validation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/internal/child"
)

// Exit statuses of RunChild. Go's own for a panic is 2.
const (
	childValid  = 0
	childBroken = 1
)

const (
	maxReason     = 4 << 10 // characters of a verdict's reason
	maxWarnings   = 10      // of a verdict; each has a quarter of a reason's characters
	maxChildStack = 8 << 20 // bytes; pages that refer to each other in a circle end here and not at 1 GB
)

// verdict is the line of JSON with which a child ends.
type verdict struct {
	Valid    bool     `json:"valid"`
	Unable   bool     `json:"unable,omitempty"` // the reason is none against the data: they could not be looked at
	Reason   string   `json:"reason,omitempty"`
	Warnings []string `json:"warnings,omitempty"` // at most maxWarnings
}

// RunChild validates the data directory, prints the verdict to stdout as one line of JSON and returns the exit status of
// the process: 0 if the directory is valid, 1 if it is not. It changes limits of the process, so it is for a process of
// its own, the one that InChild starts.
func RunChild(ctx context.Context, dataDir string, mode bootstrap.Mode, stdout io.Writer) int {
	debug.SetMaxStack(maxChildStack)
	warnings, err := datadir.Verify(ctx, dataDir, mode)
	outcome := verdict{Valid: err == nil, Unable: datadir.SaysNothing(err), Warnings: bounded(warnings)}
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

// InChild returns a Func that runs `executable args...` for each validation, a command that is expected to call
// RunChild. A child that dies of a panic without a verdict makes the validation fail with the first line of the panic; one
// that cannot be run, or is ended by a signal, is datadir.ErrUnable. The child is killed when ctx ends, and on Linux when this process dies.
func InChild(executable string, args func(dataDir string, mode bootstrap.Mode) []string) Func {
	return func(ctx context.Context, dataDir string, mode bootstrap.Mode) ([]string, error) {
		ended, err := child.Run(ctx, executable, args(dataDir, mode)...)
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("validation of %s was stopped: %w", dataDir, context.Cause(ctx))
		case err != nil:
			return nil, fmt.Errorf("%w: cannot run the validation: %w", datadir.ErrUnable, err)
		default:
			return judge(ended)
		}
	}
}

// judge makes warnings and an error of how a child ended. Only a status and a line that agree count as a verdict.
func judge(ended child.Ended) (warnings []string, _ error) {
	var outcome verdict
	readable := ended.Said(&outcome)
	switch {
	case readable && outcome.Valid && ended.Status == childValid:
		return outcome.Warnings, nil
	case readable && outcome.Unable && ended.Status == childBroken:
		return outcome.Warnings, fmt.Errorf("%w: %s", datadir.ErrUnable, outcome.Reason)
	case readable && !outcome.Valid && ended.Status == childBroken:
		return outcome.Warnings, errors.New(outcome.Reason)
	case ended.Status < 0:
		return nil, fmt.Errorf("%w: the validation was ended by a %s", datadir.ErrUnable, ended.Crash)
	case starved(ended.Crash):
		return nil, fmt.Errorf("%w: the validation ended: %s", datadir.ErrUnable, ended.Crash)
	case ended.Status == 0:
		return nil, errors.New("validation ended without a verdict")
	default:
		return nil, datadir.Crashed(ended.Crash)
	}
}

// starved tells whether the Go runtime gave up for want of something, such as memory or a thread. Over what it reads it gives up
// only where pages refer to each other in a circle, or where the disk does not give a page.
func starved(crash string) bool {
	return strings.HasPrefix(crash, "fatal error: ") && crash != "fatal error: stack overflow" && crash != "fatal error: fault"
}
