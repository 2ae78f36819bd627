// Package exitcode manages the results of a run: the exit status for the parent process, the exit record for the
// next start, and, for users, the crash note, the last-run note and the termination message.
//
// The exit record determines how thoroughly the next start validates the data. If the record is clean, only the
// structure is checked, so the record must never be written while etcd may still have the data open. The rules are
// documented on type Record. The notes never affect the validation.
//
// The lifecycle decides when the record and the notes are written or removed. Package main passes the status to
// os.Exit.
package exitcode

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
)

// A Code is the exit status of the process. The numbers are part of the documented interface and follow sysexits.h
// where possible.
type Code int

// Exit statuses of start-etcd. Zero is reserved for a clean stop that was requested.
const (
	Clean       Code = 0   // stopped cleanly on request
	Crashed     Code = 2   // a panic (Go uses the same status) or a fatal etcd error
	Usage       Code = 64  // invalid flag or environment variable
	ServerTaken Code = 69  // the wrapper's own server failed or could not start
	EtcdFailed  Code = 70  // etcd failed to start or stopped unexpectedly
	BadRecord   Code = 74  // the exit record could not be removed or written
	NotReady    Code = 75  // etcd did not become ready within --etcd-ready-timeout
	BadConfig   Code = 78  // the etcd configuration is invalid, or the requested operation is not possible
	OutOfTime   Code = 124 // the shutdown timed out
	forcedBase  Code = 128 // base for a second signal: 128 plus the signal number, as in a shell
)

// Exit statuses of the other commands, in addition to Usage. These statuses never appear in logs or termination
// messages. Some of the numbers are also used by start-etcd.
const (
	ToolFailed     Code = 1  // any other failure; etcdctl and etcdutl may also return statuses of their own
	NoAnswer       Code = 69 // status, defrag: no wrapper responds on the port
	NotTold        Code = 70 // status, defrag, --dump-fsm: the result cannot be read or printed
	MemberNotReady Code = 75 // status: the member is not ready

	StoreAway    Code = 69 // backup: the store cannot be used, or no wrapper responds
	BackupFailed Code = 70 // backup: the backups or the result are damaged
	ChecksFailed Code = 75 // backup prune: a safety check failed, so nothing was deleted
	NotKept      Code = 78 // backup export, verify, get and diff: the requested restore point does not exist

	CutShort Code = 130 // backup, restore, status: interrupted by Ctrl-C or SIGTERM
)

// SecondSignal returns the exit status for a stop that a second signal interrupted.
func SecondSignal(second syscall.Signal) Code { return forcedBase + Code(second) }

// String returns a short description of the status for log lines and messages.
func (c Code) String() string {
	if c > forcedBase {
		return fmt.Sprintf("forced by a second signal (%s)", syscall.Signal(c-forcedBase))
	}
	if words, ok := descriptions[c]; ok {
		return words
	}
	return fmt.Sprintf("status %d", int(c))
}

// A FinalError is an error that cannot be fixed by retrying. The run ends with the exit status Status.
type FinalError struct {
	Status Code
	Err    error
}

// Error implements error.
func (e *FinalError) Error() string { return e.Err.Error() }

// Unwrap returns the error without the status.
func (e *FinalError) Unwrap() error { return e.Err }

// StatusOf returns the status of the FinalError in err, or otherwise if err contains none.
func StatusOf(err error, otherwise Code) Code {
	if final, ok := errors.AsType[*FinalError](err); ok {
		return final.Status
	}
	return otherwise
}

// Codes returns all exit statuses of start-etcd in ascending order, except those for a second signal.
func Codes() []Code { return slices.Sorted(maps.Keys(descriptions)) }

var descriptions = map[Code]string{
	Clean:       "clean stop",
	Crashed:     "crash",
	Usage:       "invalid flag or environment variable",
	ServerTaken: "the wrapper's own server failed",
	EtcdFailed:  "etcd failed to start or stopped unexpectedly",
	BadRecord:   "the exit record could not be removed or written",
	NotReady:    "etcd did not become ready in time",
	BadConfig:   "invalid etcd configuration or impossible request",
	OutOfTime:   "the shutdown timed out",
}
