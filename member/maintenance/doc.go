// Package maintenance keeps the database of a member small. A Maintainer defragments the database when this is worth
// the pause, one member of the cluster at a time, and disarms the NOSPACE alarm once there is enough space.
//
// # Overview
//
// bbolt never returns pages to the file system. After many deletes or compactions, the file consists mostly of free
// pages, and etcd compares the size of the file, not of its content, with the quota. A defragmentation copies the data
// in use to a new file, which takes a few seconds per gigabyte and blocks all reads and writes of the member. Before
// each defragmentation, a Maintainer therefore answers four questions:
//
//  1. Is a defragmentation worthwhile and possible? (decide.go) The decision depends on the Threshold, the expected pause, the free
//     space on the volume, the alarms, and the quorum of the other members.
//  2. Is the whole database being read? (requests.go) A defragmentation holds all locks of the database while it is
//     waiting for open read transactions, so a single slow reader would block the member. A Gate prevents readers and
//     defragmentations from overlapping.
//  3. Is it this member's turn? (claims.go) Members take turns by means of leases with reserved IDs.
//  4. Can another member become the leader? (defragment.go) A leader transfers leadership before it is defragmented.
//
// While the database is blocked, the member is not ready, and clients that support retries are redirected to another
// member (requests.go). If a client requests a defragmentation, the first and the last question are skipped: the
// client decides whether a defragmentation is worthwhile, and leadership is not transferred.
//
// # Claims
//
// Members communicate only through the raft log. A claim is a lease without keys. The lease ID of a claim contains a
// kind, a nonce and the last digits of the member ID. Claims reach all members in the same order and expire
// automatically if a member crashes. Unlike a key, a claim does not change the revision, does not trigger watches and
// needs no user. The interceptors reject client requests with reserved lease IDs, except requests from administrators
// that mark a learner for promotion.
//
// # Invariants
//
//   - At most one member defragments at a time. A member first claims the turn and then checks for other claims. If two members
//     claim the turn at the same time, at least one of them sees the other claim and revokes its own.
//   - No defragmentation runs while the database is being read, or while a snapshot is being sent to another member.
//   - A defragmentation for the threshold or by command starts only if the other members have a quorum without this one.
//   - Writes are paused for at most two seconds during a leadership transfer, even if the transfer fails.
//   - Run does not return during a defragmentation, because a defragmentation cannot be interrupted and etcd must not
//     be closed before it has finished.
//
// The NOSPACE alarm is an exception to the first invariant, because etcd does not grant any leases while the alarm
// is raised. The members that raised the alarm take turns in time slots instead. If the clocks of these members
// differ, two defragmentations may overlap, which is acceptable because writes are rejected anyway.
//
// # Example
//
// A cluster has members 1, 2 and 3, and member 1 is the leader. After a large compaction, each database file is 8 GiB
// in size, of which 2 GiB are in use, and the threshold is one half. Each member requests a turn. Member 1 lets the
// other members go first and waits for two intervals. Member 2 goes before member 3 because its ID is lower. Member 2
// acquires the turn, redirects its clients, gives running requests 250 ms to finish and defragments its database.
// During the defragmentation, member 2 renews its claim, which would expire after 10 s if member 2 crashed. Once
// member 2 has applied the entries that were committed in the meantime, it releases the turn, and member 3 follows.
// Then member 1 announces a handover to the member with the most complete log, for example member 2. Each member
// pauses new writes, waits for its running writes and confirms the pause. When leadership has been transferred, writes
// resume with member 2 as the leader, and member 1 defragments its database as a follower.
//
// # Limitations
//
// The package does not compact revisions, which is the job of etcd's auto-compaction or the API server. The package
// neither raises the quota nor disarms the CORRUPT alarm. After a failed defragmentation, a Maintainer does nothing
// until the next check.
//
// Package member creates a Maintainer for each etcd, adds its interceptors to etcd's gRPC server, and calls Run once
// the member is ready.
package maintenance
