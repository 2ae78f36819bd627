// Package maintenance keeps a member's database small without anybody noticing: it defragments it when that is worth the pause,
// one member of the cluster at a time, and lifts the alarm NOSPACE when there is room again.
//
// etcd's defragmentation copies the database while every read and write of that member waits, a few seconds for each
// gigabyte in use. So a Keeper asks, in this order: is it worth it (decide.go), does anybody read the whole database (package
// gate), is it this member's turn in the cluster (turn.go), and can somebody else lead (leader.go). While it runs, the
// member is not ready, and clients that know how to try again are sent to another member (requests.go). A defragmentation
// that a client asks for goes the same way, as far as that is the cluster's business and not the client's own.
//
// Package member makes one Keeper for each etcd, hands its interceptors to etcd, and runs it between the member's being
// ready and its close.
package maintenance
