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
// open the directory, and otherwise what is broken. Warnings are about damage that etcd can do without. It must end
// soon after ctx does. Verify is one, in this process.
type Validation = func(ctx context.Context, dataDir string, mode bootstrap.Mode) (warnings []string, err error)

// resultTTL bounds how long a verdict on unchanged data is reused: an error of the disk itself may disappear
// without a trace in the files.
const resultTTL = 10 * time.Minute

// Validator validates the data directory of a volume repeatedly. One goroutine at a time may use it.
type Validator struct {
	Run Validation // how a validation is run

	verdict error  // the last one against the data; nil if there is none
	state   string // what the verdict is about
	at      time.Time
}

// Validate returns what is wrong with the data directory. Data that have not changed since the last verdict against
// them are not read again. It logs the start of a validation, and its warnings.
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

// stateOf describes all files of a directory. The text differs if one was changed, which its change time shows. A directory
// that cannot be listed counts as an empty one.
func stateOf(dataDir string) string {
	var state strings.Builder
	_ = filepath.WalkDir(dataDir, func(path string, _ fs.DirEntry, err error) error {
		var info unix.Stat_t
		fmt.Fprintf(&state, "%q %v %v %d %v\n", path, err, unix.Lstat(path, &info), info.Ino, info.Ctim)
		return nil
	})
	return state.String()
}

// Exit statuses of RunValidation. Go's own for a panic is 2.
const (
	childValid  = 0
	childBroken = 1
)

const (
	maxReason     = 4 << 10 // characters of a result's reason
	maxWarnings   = 10      // of a result; each has a quarter of a reason's characters
	maxChildStack = 8 << 20 // bytes; pages that refer to each other in a circle end here and not at 1 GB
)

// childResult is the line of JSON with which a child ends.
type childResult struct {
	Valid    bool     `json:"valid"`
	Unable   bool     `json:"unable,omitempty"` // the reason is none against the data: they could not be looked at
	Reason   string   `json:"reason,omitempty"`
	Warnings []string `json:"warnings,omitempty"` // at most maxWarnings
}

// RunValidation validates the data directory, prints the result to stdout as one line of JSON and returns the exit status of
// the process: 0 if the directory is valid, 1 if it is not. It changes limits of the process, so it is for a process of
// its own, the one that ValidateInChild starts.
func RunValidation(ctx context.Context, dataDir string, mode bootstrap.Mode, stdout io.Writer) int {
	debug.SetMaxStack(maxChildStack)
	warnings, err := Verify(ctx, dataDir, mode)
	outcome := childResult{Valid: err == nil, Unable: IsTransient(err)}
	for _, warning := range warnings[:min(len(warnings), maxWarnings)] { // so that the line fits what is read of a child
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

// ValidateInChild returns a Validation that runs `executable args...` for each validation, a command that is expected to
// call RunValidation. A child that dies of a panic without a result makes the validation fail with the first line of the
// panic; one that cannot be run, or is ended by a signal, is ErrUnable. The child is killed when ctx is done, and on
// Linux when this process dies.
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

// resultOf turns the end of a child into warnings and an error. Status and line must agree.
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

// isResourceError reports whether the Go runtime gave up because it lacked something, such as memory or a thread. Bad data
// make it give up only where pages refer to each other in a circle, or where the disk does not return a page.
func isResourceError(crash string) bool {
	return strings.HasPrefix(crash, "fatal error: ") && crash != "fatal error: stack overflow" && crash != "fatal error: fault"
}
