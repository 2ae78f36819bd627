package datadir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/internal/child"
)

// A Validation validates the data directory at dataDir in the given mode. The error is nil if etcd may open the
// directory. Otherwise, the error describes the problem. The warnings describe damage that etcd tolerates. A
// Validation must return soon after ctx is done. Verify is a Validation that runs in the calling process.
type Validation = func(ctx context.Context, dataDir string, mode bootstrap.Mode) (warnings []string, err error)

// resultTTL limits how long an error is reused for unchanged data, because a disk read error can disappear without
// any file changing.
const resultTTL = 10 * time.Minute

// A Validator validates the same data directory repeatedly. Validators are not safe for concurrent use.
type Validator struct {
	Run Validation

	verdict error  // result of the last validation if it rejected the data, otherwise nil
	state   string // mode and state of the files at the time of the verdict
	at      time.Time
}

// Validate validates the data directory and logs the warnings. If the data has not changed since the last error,
// Validate returns the same error without reading the data again.
func (v *Validator) Validate(ctx context.Context, dataDir string, mode bootstrap.Mode, log zerolog.Logger) error {
	state := string(mode) + " " + stateOf(dataDir)
	if v.verdict != nil && v.state == state && time.Since(v.at) <= resultTTL {
		return v.verdict
	}
	log.Info().Msg("starting validation")
	warnings, err := v.Run(ctx, dataDir, mode)
	for _, warning := range warnings {
		log.Warn().Msg(warning)
	}
	v.verdict = nil
	if err != nil && !IsTransient(err) {
		err = fmt.Errorf("data directory %s is corrupt or unusable: %w", dataDir, err)
		v.verdict, v.state, v.at = err, state, time.Now()
	}
	return err
}

// stateOf describes all files in a directory, including their change times, so the result changes with every change
// to a file. A directory that cannot be listed counts as empty.
func stateOf(dataDir string) string {
	var state strings.Builder
	_ = filepath.WalkDir(dataDir, func(path string, _ fs.DirEntry, err error) error {
		var info unix.Stat_t
		fmt.Fprintf(&state, "%q %v %v %d %v\n", path, err, unix.Lstat(path, &info), info.Ino, info.Ctim)
		return nil
	})
	return state.String()
}

// Exit statuses of RunValidation. The exit status of a panic is 2.
const (
	childValid  = 0
	childBroken = 1
)

const (
	maxReason     = 4 << 10 // maximum length of the reason in a result
	maxWarnings   = 10      // maximum number of warnings; each one is limited to a quarter of maxReason
	maxChildStack = 8 << 20 // in bytes; with Go's default of 1 GB, circular pages would exhaust the memory
)

// childResult is the JSON on the last line of a child's output.
type childResult struct {
	Valid    bool     `json:"valid"`
	Unable   bool     `json:"unable,omitempty"` // the data could not be read
	Reason   string   `json:"reason,omitempty"`
	Warnings []string `json:"warnings,omitempty"` // at most maxWarnings
}

// RunValidation validates the data directory, prints the result to stdout as one line of JSON, and returns the exit
// status: 0 if the directory is valid, otherwise 1. RunValidation must run in the process started by
// ValidateInChild, because it changes process limits.
func RunValidation(ctx context.Context, dataDir string, mode bootstrap.Mode, stdout io.Writer) int {
	debug.SetMaxStack(maxChildStack)
	warnings, err := Verify(ctx, dataDir, mode)
	outcome := childResult{Valid: err == nil, Unable: IsTransient(err)}
	// child.Run truncates long output, so the number and the length of the warnings are limited.
	for _, warning := range warnings[:min(len(warnings), maxWarnings)] {
		outcome.Warnings = append(outcome.Warnings, fmt.Sprintf("%.*s", maxReason/4, warning))
	}
	if err != nil {
		outcome.Reason = fmt.Sprintf("%.*s", maxReason, err)
	}
	if err := json.NewEncoder(stdout).Encode(outcome); err != nil || !outcome.Valid {
		return childBroken
	}
	return childValid
}

// ValidateInChild returns a Validation that runs `executable args...`, which must call RunValidation. If the child
// panics without printing a result, the error is the first line of the panic. If the child cannot be started or is
// killed by a signal, the error is ErrUnable. The child is killed when ctx is done and, on Linux, when this process
// dies.
func ValidateInChild(executable string, args func(dataDir string, mode bootstrap.Mode) []string) Validation {
	return func(ctx context.Context, dataDir string, mode bootstrap.Mode) ([]string, error) {
		ended, err := child.Run(ctx, executable, args(dataDir, mode)...)
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("validation of %s was cancelled: %w", dataDir, context.Cause(ctx))
		case err != nil:
			return nil, fmt.Errorf("%w: cannot run the validation: %w", ErrUnable, err)
		default:
			return resultOf(ended)
		}
	}
}

// resultOf returns the warnings and the error of a child. A printed result counts only if the exit status matches it.
func resultOf(ended child.Ended) (warnings []string, _ error) {
	var outcome childResult
	switch {
	case ended.Decode(&outcome) && outcome.Valid && ended.Status == childValid:
		return outcome.Warnings, nil
	case !outcome.Valid && outcome.Reason != "" && ended.Status == childBroken:
		if outcome.Unable {
			return outcome.Warnings, fmt.Errorf("%w: %s", ErrUnable, outcome.Reason)
		}
		return outcome.Warnings, errors.New(outcome.Reason)
	case ended.Status < 0, isResourceError(ended.Crash):
		return nil, fmt.Errorf("%w: the validation process exited: %s", ErrUnable, ended.Crash)
	case ended.Status == childValid:
		return nil, errors.New("the validation process exited without a result")
	default:
		return nil, CrashError(ended.Crash)
	}
}

// isResourceError reports whether the Go runtime exited because it ran out of a resource, such as memory or
// threads. Bad data causes only two fatal errors: a stack overflow if pages form a cycle, and a fault if the disk
// cannot read a page.
func isResourceError(crash string) bool {
	return strings.HasPrefix(crash, "fatal error: ") && crash != "fatal error: stack overflow" && crash != "fatal error: fault"
}
