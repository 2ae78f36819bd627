// Package exitcode owns what a run leaves behind: the exit status for the parent process, the exit record on the
// volume for the next start, and, for users, the crash note, the note of the last run and the termination message.
//
// The exit record determines how deeply the next start validates the data. With a clean record it checks only the
// structure, so the record must never be written while an etcd may still have the data open; see Record for the
// rules. The notes never affect that decision.
//
// The lifecycle decides when records and notes are written or removed, and the command passes the status to os.Exit.
package exitcode

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
)

// Code is the exit status of the process. The numbers follow sysexits.h where it defines a suitable one, and are part
// of the program's documented interface.
type Code int

// The statuses of start-etcd. Zero is reserved for a clean stop that was requested.
const (
	Clean       Code = 0   // a stop was requested and everything ended in order
	Crashed     Code = 2   // a panic, for which Go uses the same status, or a failure that etcd calls fatal
	Usage       Code = 64  // a flag or an environment variable is wrong
	ServerTaken Code = 69  // the wrapper's own port cannot be served, or can no longer be served
	EtcdFailed  Code = 70  // etcd did not start, or stopped unexpectedly
	BadRecord   Code = 74  // the exit record could not be removed or written
	NotReady    Code = 75  // etcd was not ready within --etcd-ready-timeout
	BadConfig   Code = 78  // etcd's configuration is invalid, or the request cannot be met
	OutOfTime   Code = 124 // the stop did not end within its budget
	forcedBase  Code = 128 // plus the number of the second signal, as in shells
)

// Statuses of the other commands, which may also end with Usage. They appear in no log and no termination message.
// Some have the same number as a status of start-etcd.
const (
	ToolFailed     Code = 1  // etcdctl, etcdutl or defrag failed; etcdctl and etcdutl define the number
	NoAnswer       Code = 69 // status, defrag: no wrapper answers on the port
	NotTold        Code = 70 // status, defrag, --dump-fsm: the result cannot be read or printed
	MemberNotReady Code = 75 // status: the member is not ready

	StoreAway    Code = 69 // backup: the store cannot be used, or no wrapper answers
	BackupFailed Code = 70 // backup: the backups, or the result, are damaged
	InDoubt      Code = 75 // backup prune: nothing is deleted while a check fails
	NotKept      Code = 78 // backup export, verify, get and diff: the requested restore point is not kept

	CutShort Code = 130 // backup, restore, status: Ctrl-C or SIGTERM
)

// SecondSignal is the status of a stop that was cut short by a second signal.
func SecondSignal(second syscall.Signal) Code { return forcedBase + Code(second) }

// String describes the status in a few words, for logs.
func (c Code) String() string {
	if c > forcedBase {
		return fmt.Sprintf("forced by a second signal (%s)", syscall.Signal(c-forcedBase))
	}
	if words, ok := descriptions[c]; ok {
		return words
	}
	return fmt.Sprintf("status %d", int(c))
}

// A FinalError is an error that a retry cannot fix: the run ends with Status.
type FinalError struct {
	Status Code
	Err    error
}

// Error implements error.
func (e *FinalError) Error() string { return e.Err.Error() }

// Unwrap returns the error without the status.
func (e *FinalError) Unwrap() error { return e.Err }

// StatusOf returns the status of a FinalError in err, or otherwise if there is none.
func StatusOf(err error, otherwise Code) Code {
	if final, ok := errors.AsType[*FinalError](err); ok {
		return final.Status
	}
	return otherwise
}

// Codes returns all statuses of a run in ascending order, except those of a second signal.
func Codes() []Code { return slices.Sorted(maps.Keys(descriptions)) }

var descriptions = map[Code]string{
	Clean:       "clean stop",
	Crashed:     "crash",
	Usage:       "wrong flag or environment variable",
	ServerTaken: "the wrapper's own port cannot be served",
	EtcdFailed:  "etcd did not start, or stopped by itself",
	BadRecord:   "the exit record could not be removed or written",
	NotReady:    "etcd was not ready in time",
	BadConfig:   "etcd's configuration or a request cannot be used",
	OutOfTime:   "the stop did not end within its budget",
}
