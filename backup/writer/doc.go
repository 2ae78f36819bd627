// Package writer backs up a running etcd: it captures what changes, stores it in segments, makes full snapshots by schedule and whenever
// a chain cannot be extended, and merges small segments into larger ones. Nothing here delays etcd's clients, except with Options.Ack.
//
// # Idea
//
// The history of a generation is one sequence of objects. The name of an object is its position: the first revision that is not covered
// yet, and a counter of the segments without rows at that revision. The next position follows from the object before, and an object is
// created only if the name is free. So a taken name is the only lock: of two concurrent writers, one loses, reads what the other
// has stored, and continues after it.
//
// Each segment contains the digest of all rows before it and after it. A segment of another history therefore never fits, even if its name
// and its revisions do.
//
// # Structure
//
// The behavior is a state machine with an explicit table (table.go). One goroutine, that of Run, owns the machine and everything else. It
// never waits for the store: requests run in jobs, at most one about the chain at a time, and a job's result is handled by the owner
// (driver.go). Each part of the state belongs to one value, which has the actions that change it:
//
//   - remote holds what is known of the store. remote.setHead is the one place where revisions become confirmed.
//   - chain holds the position of the next segment and captures changes into the spool.
//   - uploads stores the segments of the spool, and snapshots makes and stores full snapshots.
//   - health records what fails, and delays requests. flushQueue holds the waiting calls of Flush.
//
// Writer connects them: it inspects the store (inspect.go) and turns what it finds into events.
//
// A tick does what is due, in this order: inspect the store or check it, store a full snapshot, start one, capture, store a segment, merge.
//
// # Invariants
//
//   - A segment is put only at the position where the chain ends, and only while that position was seen within the last minute. An older
//     position may have been merged and deleted.
//   - A revision counts as stored once the store has confirmed its segment and all segments before it. Facts never report more than that.
//   - The lag is the age of the oldest revision that is not stored, however often it was captured, dropped and captured again. A revision
//     that stays unstored without any failure is a problem of its own.
//   - Nothing is deleted from the spool before the store has it or the database still has it. Segments of other data are preserved.
//   - Times within a generation never decrease, even if a clock is set back.
//   - A full snapshot within a chain is stored after the segments before it. One that starts a chain counts only once an empty segment at the
//     position where the sequence continued points to it: otherwise a chain could start next to the end of its generation.
//
// # Example
//
// etcd is at revision 10 and the store ends at position 11.0. A client puts a key. Within the interval the owner captures revision 11 into
// the spool; the tail of the chain is now 12.0. A job puts segment 11.0.
//
//   - The put succeeds: the store ends at 12.0, and Facts.Revision is 11.
//   - The store does not answer: the segment stays in the spool, the failure becomes a problem with the time of the next attempt, and captures
//     continue, less often. etcd may compact, since the spool has the rows.
//   - The name is taken: the owner reads that segment. If it has the same rows, 11 is stored. Otherwise the event "collided" leads to the
//     state Aligning, which reads the end of the chain and captures again from there. If the segment ends the generation, etcd is closed.
//   - etcd was compacted at 11 before the capture: the rows are gone, so the chain is broken. The state Opening makes a full snapshot, which
//     starts another chain.
//
// # Checks
//
// A writer reads nothing back while all goes well, so every ten seconds it checks whether the segment that was the newest at the check before
// still exists. Objects deleted since are then missing, even if newer segments follow. A stop repeats this check and reads the end of the
// chain before Flush reports success. If the end is gone, its rows are captured again; if a hole remains, a full snapshot starts another
// chain.
//
// # Stops
//
// When etcd is closed, package backup creates a second Writer for the closed database, with the first one as Previous. It has the same table,
// but no schedule. Flush returns once everything is stored. A member that did not write the backups sets SegmentsOnly: it stores what the
// writer may have missed, and never starts a chain.
//
// # Acknowledgements
//
// With Options.Ack clients wait for the store (package ack). A reply that starts to wait wakes the owner, which captures at once if nothing is
// queued; what changes during an upload is the next segment. Before and after each step it confirms what is stored: the revision, and the last
// request that was made before a capture of everything. Failed uploads are repeated within a second.
//
// # Limits
//
// The package does not restore, test or delete backups, except for segments that were merged. It does not decide how the data relate to the
// store: package relation does. It does not know when etcd stops.
package writer
