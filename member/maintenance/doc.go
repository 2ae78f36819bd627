// Package maintenance keeps the database of a member small: it defragments the database when that is worth the pause,
// one member of the cluster at a time, and disarms the alarm NOSPACE once there is room again.
//
// # The idea
//
// bbolt never returns pages to the volume. After many deletes or compactions the file consists mostly of free pages,
// and etcd compares the size of the file, not its content, with the quota. Defragmentation copies what is in use to a
// new file, a few seconds per gigabyte. Until it ends, every read and write of that member blocks. A Maintainer
// therefore answers four questions, in this order:
//
//  1. Is it worth it, and is anything in the way? (decide.go) The Threshold, the expected pause, the room on the volume, the alarms and
//     the quorum of the other members decide.
//  2. Does anything read the whole database? (gate.go) A defragmentation holds all locks of the database while it waits for open read
//     transactions, so one slow reader would block the member. Readers and defragmentations exclude each other with a Gate.
//  3. Is it this member's turn? (claims.go) Members take turns with leases that have reserved IDs.
//  4. Can another member lead? (handover.go) The leader moves leadership before it defragments, so that the cluster keeps a leader.
//
// While the database blocks, the member is not ready, and clients that retry on their own are redirected to another
// member (requests.go). A defragmentation that a client requests takes the same way, without the questions that are
// the client's to answer: whether it is worth it, and which member leads.
//
// # Claims
//
// Members have no channel of their own: they talk through the raft log. A claim is a lease without keys whose ID holds
// a kind, a nonce and the end of the member's ID. It reaches every member in the same order, expires on its own when
// its owner dies, changes no revision, wakes no watcher and needs no user. The interceptors reject clients' requests
// with these IDs, except an administrator's that marks a learner for promotion.
//
// # Invariants
//
//   - At most one member defragments at a time. A member grants its claim of the turn first and then checks for others: of two
//     members that claim it together, at least one sees the other and revokes its own claim.
//   - No defragmentation runs while the database is read, or while a snapshot is sent to another member.
//   - For the threshold or on command, a defragmentation starts only if the other members have a quorum without this one.
//   - Writes are held for at most two seconds while leadership moves, whether it moves or not.
//   - Run returns only after a running defragmentation has ended: nothing can interrupt it, and etcd must not be closed under it.
//
// NOSPACE is the exception to the first: etcd grants no lease while the alarm is raised. The members that raised it
// take turns by the clock instead. Two of them may overlap when clocks differ, which costs little while writes are
// refused anyway.
//
// # Example
//
// A cluster has members 1, 2 and 3, and 1 leads. After a large compaction all three files are 8 GiB with 2 GiB in use,
// and the threshold asks for half. Each member requests a turn. Member 1 leads, so it gives the others two intervals
// to go first. Of 2 and 3, the one with the lower ID goes first: 2 acquires the turn, redirects its clients, waits 250
// ms for their requests and defragments. It renews its claim meanwhile; if it crashed, the claim would expire after 10
// s. When it has applied what was committed in the meantime, it releases the turn, and 3 follows. Then 1 picks the
// member whose log is most complete, for example 2, and announces the handover. Each member holds new writes, waits
// for its own running ones and confirms. Leadership moves, the writes continue with 2, and 1 defragments as a
// follower.
//
// # What it does not do
//
// It does not compact: that is for etcd's auto-compaction or the API server. It does not raise the quota. It never
// disarms CORRUPT. It does not retry a failed defragmentation before the next check.
//
// Package member creates one Maintainer for each etcd, hands its interceptors to etcd, and calls Run once the member
// is ready.
package maintenance
