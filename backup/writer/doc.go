// Package writer backs up a running etcd: it captures changes, stores them in segments, and makes full snapshots by
// schedule and whenever the chain of segments cannot be extended. It never delays etcd's clients, except with
// Options.Ack.
//
// # Idea
//
// The history of a generation is one sequence of objects. An object is named by its position: its first revision,
// and a counter for segments without rows. Each object determines the position of the next one, and an object is
// created only if its name is free. That is the only lock: if two writers upload at the same time, one of them
// fails, reads the other's object and continues after it.
//
// Each segment contains a digest of all rows before it and a digest that includes its own rows. A segment of
// another history never fits, even if its name and its revisions do.
//
// # Structure
//
// The behavior is a state machine with an explicit table (table.go). The goroutine of Run owns the machine and all
// other state. It never waits for the store: requests run in jobs, and the owner handles their results (driver.go).
// At most one request about the chain runs at a time. Each part of the state belongs to one value, whose methods
// change it:
//
//   - remote tracks the store. Revisions become confirmed only in remote.setHead.
//   - chain holds the position of the next segment and captures changes into the spool.
//   - uploads stores the segments of the spool, and snapshots makes and stores full snapshots.
//   - health records failures and delays requests. flushQueue holds the waiting calls of Flush.
//
// Writer connects them: it inspects the store (inspect.go) and turns the results into events.
//
// A tick does the following if it is due, in this order: inspect or check the store, store a full snapshot, start
// one, capture, store a segment.
//
// # Invariants
//
//   - A segment is uploaded only to the end of the chain, and only if the end was read or written within the last minute. Segments at older
//     positions may have been merged and deleted.
//   - A revision counts as stored once the store has confirmed its segment and all segments before it. Facts never report more than that.
//   - The lag is the age of the oldest revision that is not stored. Capturing a revision again does not reset it. A revision that stays
//     unstored although no request fails is reported as a problem.
//   - A segment is deleted from the spool only if the store or etcd's database has its rows. Segments of other data are preserved.
//   - Times within a generation never decrease, even if a clock is set back.
//   - A full snapshot within a chain is stored after the segments before it. A full snapshot that starts a chain counts only once an empty
//     segment at the end of the previous sequence points to it. Otherwise a chain could start after a restore has ended the generation.
//
// # Example
//
// etcd is at revision 10 and the store ends at position 11.0. A client puts a key. Within the interval the owner
// captures revision 11 into the spool, and the tail of the chain moves to 12.0. A job uploads segment 11.0.
//
//   - The upload succeeds: the store ends at 12.0, and Facts.Revision is 11.
//   - The store does not answer: the segment stays in the spool, the failure is reported as a problem with the time of the next attempt, and
//     captures continue less often. etcd may compact, since the spool has the rows.
//   - The name is taken: the event "collided" leads to the state Aligning, which reads the end of the chain. If the rows are the same,
//     revision 11 is stored; otherwise the rows after that end are captured again. If the segment ends the generation, etcd is closed.
//   - etcd was compacted at 11 before the capture: the rows are gone, so the chain cannot be extended. The state Opening makes a full
//     snapshot, which starts another chain.
//
// # Checks
//
// A writer does not read its uploads back. Every ten seconds it checks whether the segment that was the newest one
// at the previous check still exists, which also detects deletions before newer segments. A stop repeats this check
// and reads the end of the chain before Flush reports success. If the last segments are gone, their rows are
// captured again. If a segment before others is gone, a full snapshot starts another chain.
//
// # Stops
//
// When etcd is closed, package backup creates a second Writer for the closed database, with the first one as
// Previous and without a schedule. Its Flush returns once everything is stored. A member that did not write the
// backups sets SegmentsOnly: it uploads what the writer may have missed and never starts a chain.
//
// # Acknowledgements
//
// With Options.Ack, clients wait for the store (package ack). A reply that starts to wait wakes the owner, which
// captures immediately if nothing is queued. Changes during an upload go to the next segment. Before and after each
// step the owner confirms the stored revision, and the last request that preceded a stored capture of everything.
// Failed uploads are repeated within a second.
//
// # Limits
//
// The package does not restore, test, merge or delete backups. Package relation decides how the data relates to the
// store. It does not know when etcd stops.
package writer
