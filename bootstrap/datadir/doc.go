// Package datadir reads the data directory of a stopped etcd member and decides whether etcd may open it. The package
// knows all files of a member and how the log, the snapshots and the database depend on each other.
//
// # The directory
//
// The data of a member consists of three parts in DIR/member:
//
//   - The log (wal/*.wal) contains all entries that raft has accepted, in segments of 64 MiB. etcd acknowledges an
//     entry to a client only after a majority of members has synced it to the log.
//   - The database (snap/db) is a bbolt file with the keys, the members and the index of the last applied entry.
//     etcd commits the database every 100 ms, so after a crash it lags behind the log, and etcd replays the missing
//     entries.
//   - Snapshots (snap/*.snap) contain the raft configuration at one entry. At startup, etcd replays the log from the
//     newest snapshot. etcd deletes segments that end before the snapshot some time later.
//
// # Invariants
//
// etcd serves all acknowledged writes only if
//
//   - the log contains all applied entries and all entries that are known to be committed;
//   - the log reaches back to the newest readable snapshot, without a missing segment or a damaged record;
//   - the log and the database belong to the same cluster and to the configured member;
//   - all pages and revisions in the database are well-formed;
//   - etcd 3.6 supports the versions, members and requests in the data.
//
// etcd itself checks very few of these conditions. Without these checks, acknowledged writes could be lost silently:
// etcd truncates a damaged log and continues, creates a new member if the data was moved, and replays the log of a
// restored database into an empty one. If other conditions are violated, etcd panics on every start.
//
// # Verify and Look
//
// Verify reads all data and must run in a separate process: on damaged pages, bbolt can panic in one of its own
// goroutines, where the panic cannot be recovered. In Sanity mode, Verify checks only the structure, which is enough
// after a clean exit. Recovery calls Verify through a Validator, which remembers an error until a file changes. If
// IsTransient returns true, the error does not mean that the data is bad: the disk could not be read, or the child
// process was killed. Recovery never replaces data because of a transient error.
//
// Look must be fast, because every start waits for it. The embedded etcd calls Look right before it opens the data,
// even after a validation, because Verify does not run if there is a sidecar. Look reads the metadata of the
// database and the segments that etcd replays. The result of Look is an Inspection with the methods Inspect,
// ClusterVersions, Members and Uncommitted.
//
// The errors from Verify and Inspect name the file, the problem and the way to recover. docs/refusals.md lists all
// error messages, and a test keeps the list complete. Validation never changes the data. Inspect may move the
// directory of a member that was killed before it stored anything, and SetPermissions changes permissions.
//
// # Torn or damaged
//
// The hardest decision is how to treat damage at the end of the log. After a power failure, the last records may be
// missing or partly zero. Losing records in a power failure is harmless because etcd had not synced them, so no
// client has received a response. If a disk error damaged the last records, however, their entries may have been
// acknowledged. A power failure and a disk error can be told apart only if there are records after the damage, so
// cutIn searches for records after the position where the segment becomes unreadable. etcd syncs entries before it
// writes any record after the next hard state, so a record after that hard state proves that the entries had
// reached the disk.
//
// For example, a segment ends with
//
//	entry 7, entry 8, state (commit 7), entry 9, state (commit 8)
//
// and the first byte of entry 8 is damaged. The log is readable up to entry 7. The damage is followed by three
// intact records whose checksums continue one another. Entry 9 was written after the state that follows entry 8, so
// entry 8 was synced and this member may have acknowledged it. Verify and Inspect return the error "WAL segment … is
// damaged at position …, after index 7". If the file ends within entry 8 instead, nothing proves that the entry was
// synced, and etcd may drop it.
//
// If the database of a single member is ahead of the log, the log was truncated, because a single member applies an
// entry only after writing it to the log. A follower running etcd 3.6 may apply an entry while the log is still being
// written. The comment on checkTail explains why a follower whose database is ahead is rejected as well.
//
// # Files
//
// survey.go lists the directory, checks which files exist, and takes the fingerprint for the exit record. log.go,
// segment.go and database.go each read one kind of file. These files are mapped into memory: if a bad offset in a
// damaged file causes a memory fault, the fault is converted to an error. verify.go implements Verify, look.go and
// inspect.go implement the checks before each start, and refusal.go contains the messages. position.go compares the
// data of different members for recovery.
//
// # Limits
//
// The package does not repair data, decide what happens to broken data, or contact other members. The package cannot
// detect a corrupted value that is still well-formed, because bbolt pages have no checksums, or a log that was
// truncated by plain etcd.
package datadir

import (
	"fmt"
	"runtime/debug"
)

// checkInterval is the number of revisions or records read between two checks of the context.
const checkInterval = 1024

// recoverPanic runs a check and converts panics to errors. Memory faults are converted as well, because a bad offset
// in a mapped file may point anywhere, and reading a mapped file from a faulty disk causes a fault.
func recoverPanic(check func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic while reading: %v", cause)
		}
	}()
	return check()
}
