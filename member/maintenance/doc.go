// Package maintenance keeps the database of a member small. When it is worth the pause, a Maintainer defragments the
// database, one member of the cluster at a time. It also disarms the NOSPACE alarm once there is enough space.
//
// # Overview
//
// bbolt never returns pages to the file system. After many deletes or compactions, the file consists mostly of free
// pages, but etcd compares the quota with the size of the file rather than that of its content. A defragmentation
// copies the data in use to a new file. This takes a few seconds per gigabyte, during which the member serves neither
// reads nor writes. A Maintainer therefore asks four questions before each defragmentation:
//
//  1. Is a defragmentation worthwhile and possible? (decide.go) The decision depends on the Threshold, the expected
//     pause, the free space on the volume, the alarms, and the quorum of the other members.
//  2. Is the whole database being read? (requests.go) A defragmentation holds all of the database's locks while it
//     waits for open read transactions, so a single slow reader would block the member. A Gate prevents readers and
//     defragmentations from overlapping.
//  3. Is it this member's turn? (claims.go) Members take turns, using leases with reserved IDs.
//  4. Can another member become the leader? (defragment.go) A leader transfers its leadership before it defragments.
//
// While the database is blocked, the member is not ready, and clients that support retries are redirected to another
// member (requests.go). If a client requests a defragmentation, the first and the last question are skipped: the
// client decides whether a defragmentation is worthwhile, and leadership is not transferred.
//
// # Claims
//
// Members communicate only through the raft log. A claim is a lease without keys whose ID contains a kind, a nonce
// and the last digits of the member ID. Claims reach all members in the same order, and expire automatically if a
// member crashes. Unlike a key, a claim does not change the revision, trigger watches or require a user. The
// interceptors reject client requests with reserved lease IDs, unless an administrator is marking a learner for
// promotion.
//
// # Invariants
//
//   - At most one member defragments at a time. A member first claims the turn and then checks for other claims. If
//     two members claim the turn at the same time, at least one of them sees the other claim and revokes its own.
//   - No defragmentation runs while the whole database is being read, or while a snapshot is being sent to another
//     member.
//   - Unless a client requested it, a defragmentation starts only if the other members have a quorum without this
//     one.
//   - Writes are paused for at most two seconds during a leadership transfer, even if the transfer fails.
//   - Run does not return during a defragmentation, which cannot be interrupted and must finish before etcd is
//     closed.
//
// The NOSPACE alarm is an exception to the first invariant, because etcd does not grant any leases while the alarm
// is raised. The members that raised the alarm take turns in time slots instead. If the clocks of these members
// differ, two defragmentations may overlap, which is acceptable because writes are rejected anyway.
//
// # Example
//
// A cluster has members 1, 2 and 3, and member 1 is the leader. After a large compaction, each database file is 8
// GiB, of which 2 GiB are in use, and the threshold is one half. Each member requests a turn. As the leader, member 1
// lets the other members go first and waits for two intervals. Member 2 goes before member 3, because its ID is
// lower. Member 2 acquires the turn, redirects its clients, gives active requests 250 ms to finish, and defragments
// its database. During the defragmentation, member 2 renews its claim, which would expire after 10 s if member 2
// crashed. Once member 2 has applied the entries that were committed in the meantime, it gives up the turn, and
// member 3 follows. Then member 1 announces a handover to the member with the most complete log, say member 2. Each
// member holds back new writes, waits for writes in progress to finish, and confirms the pause. Once leadership has
// been transferred, writes resume with member 2 as the leader, and member 1 defragments its database as a follower.
//
// # Limitations
//
// The package does not compact revisions; that is up to etcd's auto-compaction or the API server. It neither raises
// the quota nor disarms the CORRUPT alarm. After a failed defragmentation, a Maintainer does not retry until the next
// check.
//
// Package member creates a Maintainer for each Member, adds its interceptors to etcd's gRPC server, and calls Run once
// the member is ready.
package maintenance
