// Package writer backs up a running etcd. A Writer captures changes, stores them in segments, and makes full
// snapshots on schedule and whenever the chain of segments cannot be extended. Backups never delay etcd's clients
// unless Options.Ack is set.
//
// # Idea
//
// The history of a generation is one sequence of objects. Each object is named after its position, which consists of
// its first revision and a counter for segments without rows. The end of an object determines the position of the
// next object, and an object is only created if its name is unused. No other lock is needed: if two writers upload
// at the same time, one of them fails, reads the other's object and continues after it.
//
// Each segment contains a digest of all rows before it, and a digest that also covers its own rows. A segment from
// another history therefore never fits, even if its name and revisions match.
//
// # Structure
//
// The writer is a state machine with an explicit table (table.go). Run's goroutine (the owner) owns the state machine
// and all other state. The owner never waits for the store: requests run in jobs, and the owner handles their results
// (driver.go). At most one request for the chain runs at a time. Each part of the state belongs to one type, and only
// the methods of that type modify it:
//
//   - remote tracks the store. Only remote.setHead confirms revisions.
//   - chain holds the position of the next segment and captures changes into the spool.
//   - uploads uploads the segments in the spool, and snapshots makes and uploads full snapshots.
//   - health records failures and delays requests. flushQueue contains the pending calls of Flush.
//
// Writer combines these parts, inspects the store (inspect.go), and turns the results into events.
//
// On each tick, the writer does whatever is due, in this order: inspect or check the store, upload a full snapshot,
// start a full snapshot, capture changes, upload a segment.
//
// # Invariants
//
//   - A segment is uploaded only to the end of the chain, and only if the end was read or written within the last
//     minute. Segments at older positions may have been merged and deleted.
//   - A revision is considered stored once the store has confirmed its segment and all earlier segments.
//     Facts.Revision is never later than the last stored revision.
//   - The lag is the age of the oldest revision that is not stored. Capturing a revision again does not reset its
//     age. A revision that remains unstored is reported as a problem even if no request fails.
//   - A segment is deleted from the spool only if its rows are in the store or in etcd's database. Segments that
//     belong to other data are preserved.
//   - Times within a generation never decrease, even if a clock is set back.
//   - A full snapshot within a chain is uploaded after the segments before it. A full snapshot that starts a chain
//     becomes valid only when an empty segment at the end of the previous sequence points to it, because a chain must
//     not start after a restore has ended the generation.
//
// # Example
//
// etcd is at revision 10, and the end of the chain in the store is position 11.0. When a client puts a key, the owner
// captures revision 11 into the spool within one interval, and the tail of the chain moves to 12.0. A job uploads
// segment 11.0, and one of the following happens:
//
//   - The upload succeeds. The chain in the store ends at 12.0, and Facts.Revision is 11.
//   - The store does not respond. The segment remains in the spool, the failure is reported as a problem together
//     with the time of the next attempt, and changes are captured less often. etcd may be compacted because the rows
//     are in the spool.
//   - The name is taken. The event "collided" leads to the state Aligning, in which the writer reads the end of the
//     chain. If the rows are the same, revision 11 is stored; otherwise, the rows after the end of the chain are
//     captured again. If the other segment ends the generation, etcd is closed.
//   - etcd was compacted at revision 11 before the capture. The rows are gone and the chain cannot be extended, so the
//     writer starts a new chain with a full snapshot (state Opening).
//
// # Checks
//
// A writer does not read back its uploads. Instead, the writer checks every ten seconds whether the segment that was
// newest at the previous check still exists, which also detects deletions before newer segments. During shutdown, the
// writer repeats this check and reads the end of the chain before Flush reports success. If the last segments are
// missing, their rows are captured again. If a segment before other segments is missing, a full snapshot starts a new
// chain.
//
// # Shutdown
//
// After etcd is closed, package backup creates a second Writer for the closed database, with the first Writer as
// Previous and without a schedule. The second Writer's Flush returns once everything is stored. A member that was not
// the writer sets SegmentsOnly: it uploads the changes that the writer may have missed and never starts a chain.
//
// # Acknowledgements
//
// If Options.Ack is set, clients wait for the store (package ack). A reply that starts waiting wakes the owner, which
// captures changes immediately if no segment is queued. Changes made during an upload go into the next segment.
// Before and after each step, the owner reports to the gate which revision is stored and which waiting requests are
// covered by a stored capture. Failed uploads are retried within a second.
//
// # Limits
//
// The package does not restore, test, merge or delete backups. Package relation determines how data relates to a
// store. The caller of Run decides when the writer stops.
package writer
