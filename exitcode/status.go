// Package exitcode owns what a run leaves behind for those who come after it: the exit status for whoever started the
// process, the exit record on the volume for the next start, and the crash note and termination message for people.
//
// It decides nothing about the lifecycle; lifecycle says when something is removed or written, the command carries the
// status to the one os.Exit.
package exitcode

import (
	"fmt"
	"syscall"
)

// Status is the exit status of the process. The numbers follow sysexits.h where that has a word for it, so that they
// mean the same to other tools, and are part of the program's documented interface.
type Status int

// Every status the program ends with. Zero is reserved for a stop that was asked for and was clean.
const (
	Clean       Status = 0   // a stop was asked for and everything ended in order
	Crashed     Status = 2   // a panic (it is Go's own status for one), a failure that etcd calls fatal, or the end of the own listener
	Usage       Status = 64  // a flag or an environment variable is wrong
	ServerTaken Status = 69  // the wrapper's own port cannot be served
	EtcdFailed  Status = 70  // etcd did not start, or stopped without being asked to
	BadRecord   Status = 74  // the exit record could not be removed or written
	NotReady    Status = 75  // etcd was not ready within --etcd-ready-timeout
	BadConfig   Status = 78  // etcd's configuration is invalid
	OutOfTime   Status = 124 // the stop did not end within its budget
	forcedBase  Status = 128 // plus the number of the second signal, as shells do it
)

// Forced is the status of a stop that was cut short by a second signal.
func Forced(second syscall.Signal) Status { return forcedBase + Status(second) }

// String describes the status in a few words, for logs.
func (s Status) String() string {
	if s > forcedBase {
		return fmt.Sprintf("forced by a second signal (%s)", syscall.Signal(s-forcedBase))
	}
	if words, ok := descriptions[s]; ok {
		return words
	}
	return fmt.Sprintf("status %d", int(s))
}

var descriptions = map[Status]string{
	Clean:       "clean stop",
	Crashed:     "crash",
	Usage:       "wrong flag or environment variable",
	ServerTaken: "the wrapper's own port cannot be served",
	EtcdFailed:  "etcd did not start, or stopped unasked",
	BadRecord:   "the exit record could not be removed or written",
	NotReady:    "etcd was not ready in time",
	BadConfig:   "etcd's configuration is invalid",
	OutOfTime:   "the stop did not end within its budget",
}
