// Package datadir reads the data directory of an etcd member that is not running, and decides whether etcd may open it. It owns
// the knowledge of what etcd keeps there, and of how log, snapshots and database depend on each other.
//
// # The directory
//
// A member's data consist of three parts, all below DIR/member:
//
//   - The log (wal/*.wal) holds every entry that raft has accepted, in segments of 64 MiB. An entry is acknowledged to clients
//     only after the logs of a majority have flushed it.
//   - The database (snap/db) is a bbolt file with the keys, the members and the index of the last entry that it has applied. etcd
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
//   - every page and every revision of the database has its proper form;
//   - the versions, members and requests in the data are such that etcd 3.6 may run on them.
//
// etcd does not check most of this. It cuts a damaged log off and continues, creates a new member next to data that were moved, or
// fills an empty database from a log that starts after a restore. Each of these loses acknowledged writes without a word. Others
// make it panic, at every start.
//
// # Two readers
//
// Verify reads everything, in a separate process, because damaged pages can crash bbolt in a goroutine that nothing
// recovers. In the mode Sanity it checks the structure only, which suffices after a clean exit record. Recovery runs it
// through a Validator, which remembers a result against data until their files change. A result is a verdict on the
// data, or an error for which IsTransient is true: the disk could not be read, or the child was killed. Only a verdict
// may lead to data being replaced.
//
// Look is quick, since every start waits for it. The embedded etcd calls it right before it opens the data, whether or not a
// validation has passed: with a sidecar none of ours has run. It reads what the database records about itself, and the segments that
// etcd replays. Inspect, ClusterVersions, Members and Uncommitted are methods of its result, an Inspection.
//
// Both readers end in a refusal: a sentence with the file, the problem and the way out. docs/refusals.md lists them all, which a test
// verifies. A validation changes nothing. Inspect may move a member away that was killed before it stored anything, and SetPermissions
// changes permissions.
//
// # Torn or damaged
//
// The hardest question is what a damaged end of the log means. After a power loss the last records may be missing or partly zero, and
// that is harmless: etcd had not flushed them, so no client has an answer. After damage to the disk the same bytes were acknowledged.
// Both look alike, unless something follows the damage. So cutIn searches for records behind the place where the segment becomes
// unreadable. etcd flushes entries before it writes what comes after the hard state that follows them. If such a record exists, the
// entries before it were on the disk once.
//
// For example, a segment ends with
//
//	entry 7, entry 8, state (commit 7), entry 9, state (commit 8)
//
// and the first byte of entry 8 is damaged. The log can be read up to entry 7. Behind the damage are three intact records whose
// checksums continue one another. Entry 9 was written after the state that follows entry 8, so the flush of entry 8 had returned,
// and this member may have acknowledged it. Verify and Inspect refuse with "the log is damaged at position …, behind index 7". If
// instead the file ends within entry 8, nothing proves a flush, and etcd may cut the entry off.
//
// A database that is ahead of its log gives the second proof. A single member applies an entry only after its log has it, so
// the log was cut off. A follower of etcd 3.6 may apply an entry while its log is still being written; checkTail explains why such
// a member is refused anyway.
//
// # The files
//
// survey lists the directory, checks which files are there, and takes the fingerprint for the exit record. log, segment
// and database read one kind of file each, guarded against any content: files are mapped into memory, and a bad offset
// is a fault that becomes an error. verify decides for Verify, look and inspect decide for a start, and refusal has the
// messages. position serves recovery, which compares the data of several members.
//
// # What it does not do
//
// It does not repair anything, decide what becomes of broken data, or talk to other members. It cannot see a value that was changed and
// kept its form, because bbolt has no checksums of pages; nor that a plain etcd has cut a log off before.
package datadir

import (
	"fmt"
	"runtime/debug"
)

// checkInterval is the number of revisions or records that are read between two checks of the context.
const checkInterval = 1024

// recoverPanic runs a check and turns a panic into an error. That includes memory faults: files are mapped, a bad offset in them may
// point anywhere, and a disk that cannot be read shows up that way, too.
func recoverPanic(check func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("reading it panicked: %v", cause)
		}
	}()
	return check()
}
