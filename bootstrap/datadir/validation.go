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

// A Validation validates the etcd data directory at dataDir as deeply as mode requires. It returns nil if etcd may
// open the directory, and an error that names the problem otherwise. Warnings are about damage that etcd tolerates.
// It must end soon after ctx does. Verify is a Validation that runs in this process.
type Validation = func(ctx context.Context, dataDir string, mode bootstrap.Mode) (warnings []string, err error)

// resultTTL limits how long a verdict on unchanged data is reused: a read error of the disk may disappear without
// changing a file.
const resultTTL = 10 * time.Minute

// A Validator validates the data directory of a volume repeatedly. Only one goroutine at a time may use it.
type Validator struct {
	Run Validation // runs a validation

	verdict error  // last error found in the data; nil if there is none
	state   string // state of the data at that verdict
	at      time.Time
}

// Validate returns the problem of the data directory, or nil. It does not read data again that is unchanged since the
// last verdict against it. It logs the start of a validation and its warnings.
func (v *Validator) Validate(ctx context.Context, dataDir string, mode bootstrap.Mode, log zerolog.Logger) error {
	state := string(mode) + " " + stateOf(dataDir)
	if v.verdict != nil && v.state == state && time.Since(v.at) <= resultTTL {
		return v.verdict
	}
	log.Info().Msg("validation starts")
	warnings, err := v.Run(ctx, dataDir, mode)
	for _, warning := range warnings {
		log.Warn().Msg(warning)
	}
	v.verdict = nil
	if err != nil && !IsTransient(err) {
		err = fmt.Errorf("data directory %s is corrupt or cannot be used: %w", dataDir, err)
		v.verdict, v.state, v.at = err, state, time.Now()
	}
	return err
}

// stateOf describes all files of a directory, including their change times, so any change of a file changes the text.
// A directory that cannot be listed counts as empty.
func stateOf(dataDir string) string {
	var state strings.Builder
	_ = filepath.WalkDir(dataDir, func(path string, _ fs.DirEntry, err error) error {
		var info unix.Stat_t
		fmt.Fprintf(&state, "%q %v %v %d %v\n", path, err, unix.Lstat(path, &info), info.Ino, info.Ctim)
		return nil
	})
	return state.String()
}

// Exit statuses of RunValidation. Go exits with 2 after a panic.
const (
	childValid  = 0
	childBroken = 1
)

const (
	maxReason     = 4 << 10 // maximum length of the reason in a result
	maxWarnings   = 10      // maximum per result; each warning may have a quarter of the length of a reason
	maxChildStack = 8 << 20 // in bytes; circular pages would fill Go's default of 1 GB
)

// childResult is the last line that a child prints, as JSON.
type childResult struct {
	Valid    bool     `json:"valid"`
	Unable   bool     `json:"unable,omitempty"` // the data could not be read, so the reason does not speak against it
	Reason   string   `json:"reason,omitempty"`
	Warnings []string `json:"warnings,omitempty"` // at most maxWarnings
}

// RunValidation validates the data directory, prints the result to stdout as one line of JSON and returns the exit
// status: 0 if the directory is valid, 1 if it is not. It changes limits of the process, so it must run in the
// separate process that ValidateInChild starts.
func RunValidation(ctx context.Context, dataDir string, mode bootstrap.Mode, stdout io.Writer) int {
	debug.SetMaxStack(maxChildStack)
	warnings, err := Verify(ctx, dataDir, mode)
	outcome := childResult{Valid: err == nil, Unable: IsTransient(err)}
	for _, warning := range warnings[:min(len(warnings), maxWarnings)] { // the output of a child is limited
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

// ValidateInChild returns a Validation that runs `executable args...`, a command that calls RunValidation. If the
// child panics and prints no result, the validation fails with the first line of the panic. If the child cannot be
// started or is ended by a signal, the error is ErrUnable. The child is killed when ctx is done, and on Linux also
// when this process dies.
func ValidateInChild(executable string, args func(dataDir string, mode bootstrap.Mode) []string) Validation {
	return func(ctx context.Context, dataDir string, mode bootstrap.Mode) ([]string, error) {
		ended, err := child.Run(ctx, executable, args(dataDir, mode)...)
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("validation of %s was stopped: %w", dataDir, context.Cause(ctx))
		case err != nil:
			return nil, fmt.Errorf("%w: cannot run the validation: %w", ErrUnable, err)
		default:
			return resultOf(ended)
		}
	}
}

// resultOf returns the warnings and the error of a child that has ended. Its exit status and its result must agree.
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
		return nil, fmt.Errorf("%w: the validation ended: %s", ErrUnable, ended.Crash)
	case ended.Status == childValid:
		return nil, errors.New("validation ended without a result")
	default:
		return nil, CrashError(ended.Crash)
	}
}

// isResourceError reports whether the Go runtime gave up because a resource was missing, such as memory or a thread.
// Bad data causes only two such fatal errors: a stack overflow, if pages refer to each other in a circle, and a
// fault, if the disk does not return a page.
func isResourceError(crash string) bool {
	return strings.HasPrefix(crash, "fatal error: ") && crash != "fatal error: stack overflow" && crash != "fatal error: fault"
}
