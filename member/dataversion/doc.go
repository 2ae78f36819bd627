// Package dataversion keeps the data readable for an older version of etcd. A backup-restore sidecar runs etcd 3.5
// on the same volume, and etcd 3.5 crashes on the first log entry that sets the cluster version to 3.6. If the
// wanted version is 3.5, no such entry is written:
//
//   - Announce makes the embedded etcd present itself to its cluster as 3.5. It is called before etcd is opened. The
//     leader sets the cluster version to the lowest version that any member announces, from the first election on.
//   - If the data is already at 3.6, that is impossible, because etcd crashes on data that is newer than itself. In this
//     case the Keeper requests etcd's own downgrade, which etcd completes once every member has been restarted.
//
// While a downgrade is enabled, etcd rejects members without data. The Keeper therefore cancels the downgrade as
// soon as a member is added, and the new member waits for the cancellation (AwaitVersion in recovery/peers).
package dataversion
