// Package datadir reads the data directory of an etcd member that is not running, and decides whether etcd may open
// it. It knows the files that etcd keeps there, and how log, snapshots and database depend on each other.
//
// # The directory
//
// A member's data consists of three parts, all below DIR/member:
//
//   - The log (wal/*.wal) holds every entry that raft has accepted, in segments of 64 MiB. An entry is acknowledged to clients
//     only after the logs of a majority have flushed it.
//   - The database (snap/db) is a bbolt file with the keys, the members and the index of the last applied entry. etcd
//     commits it every 100 ms, so after a crash it lags behind the log, and etcd replays the difference.
//   - Snapshots (snap/*.snap) hold raft's configuration at one entry. A start replays the log from the newest snapshot, and etcd
//     deletes the segments before it some time later.
//
// # What must hold
//
// A start serves all acknowledged writes only if
//
//   - the log reaches at least as far as the database has applied, and as far as an entry is known to be committed;
//   - the log reaches back to the newest snapshot that can be read, without a missing segment or a damaged record;
//   - log and database belong to the same cluster, and to the member that the configuration names;
//   - every page and every revision of the database is well-formed;
//   - etcd 3.6 supports the versions, members and requests in the data.
//
// etcd checks little of this. It truncates a damaged log and continues, creates a new member next to data that was
// moved, or fills an empty database from a log that starts after a restore. Each of these silently loses
// acknowledged writes. Other violations make it panic at every start.
//
// # Two readers
//
// Verify reads everything, in a separate process, because damaged pages can crash bbolt in a goroutine whose panics
// cannot be recovered. In mode Sanity it checks only the structure, which suffices after a clean exit record.
// Recovery runs it through a Validator, which remembers a verdict against data until its files change. A result is
// a verdict on the data, or an error for which IsTransient is true: the disk could not be read, or the child was
// killed. Only a verdict may lead to data being replaced.
//
// Look is quick, because every start waits for it. The embedded etcd calls it right before it opens the data, even
// after a validation, because with a sidecar Verify has not run. It reads the values that the database records
// about itself, and the segments that etcd replays. Inspect, ClusterVersions, Members and Uncommitted are methods
// of its result, an Inspection.
//
// Both readers refuse data with a sentence that names the file, the problem and the way out. docs/refusals.md lists
// all of them, as a test verifies. A validation changes nothing. Inspect may move away a member that was killed
// before it stored anything, and SetPermissions changes permissions.
//
// # Torn or damaged
//
// The hardest question is what a damaged end of the log means. After a power loss the last records may be missing
// or partly zero. That is harmless: etcd had not flushed them, so no client has received an answer. If the disk has
// damaged the same records, they may have been acknowledged. Both cases look alike unless something follows the
// damage, so cutIn searches for records after the place where the segment becomes unreadable. etcd flushes entries
// before it writes any record after the hard state that follows them. If such a record exists, the entries before
// it were once on the disk.
//
// For example, a segment ends with
//
//	entry 7, entry 8, state (commit 7), entry 9, state (commit 8)
//
// and the first byte of entry 8 is damaged. The log can be read up to entry 7. The damage is followed by three
// intact records whose checksums continue one another. Entry 9 was written after the state that follows entry 8, so
// the flush of entry 8 had returned, and this member may have acknowledged it. Verify and Inspect refuse with "the
// log is damaged at position …, behind index 7". If instead the file ends within entry 8, nothing proves a flush,
// and etcd may drop the entry.
//
// A database that is ahead of its log gives the second proof. A single member applies an entry only after its log
// has it, so the log was truncated. A follower of etcd 3.6 may apply an entry while its log is still being written;
// checkTail explains why such a member is refused anyway.
//
// # The files
//
// survey.go lists the directory, checks which files exist, and takes the fingerprint for the exit record. log.go,
// segment.go and database.go each read one kind of file. Files are mapped into memory, and any content is handled:
// a bad offset causes a fault, which becomes an error. verify.go implements Verify, look.go and inspect.go the
// checks at a start, and refusal.go has the messages. position.go serves recovery, which compares the data of
// several members.
//
// # What it does not do
//
// It does not repair anything, decide what happens to broken data, or contact other members. It cannot detect a
// changed value that is still well-formed, because bbolt has no checksums of pages, nor that a plain etcd has
// truncated the log before.
package datadir

import (
	"fmt"
	"runtime/debug"
)

// checkInterval is the number of revisions or records that are read between two checks of the context.
const checkInterval = 1024

// recoverPanic runs a check and turns a panic into an error. It also does so for memory faults: files are mapped into
// memory, so a bad offset may point anywhere, and an unreadable disk causes a fault, too.
func recoverPanic(check func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("reading it panicked: %v", cause)
		}
	}()
	return check()
}
