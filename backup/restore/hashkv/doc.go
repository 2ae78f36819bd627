// Package hashkv computes etcd's HashKV of a database file that no etcd has open. A backup that was brought back is
// compared that way with what its etcd said of itself, while that etcd lived.
//
// etcd's hash goes over the rows up to a revision, in their order. Of the rows at or below the compaction it leaves out
// those that a compaction at that revision would delete, so that members agree that have not all finished compacting.
// etcd asks its index which rows these are. Here nothing of the size of the index is held: a bit for each row says
// whether it is kept, and a bounded table finds the newest row of each key, one part of the keys after the other.
package hashkv
