// Package dataversion keeps the data readable for an older version of etcd. A backup-restore sidecar runs etcd 3.5
// on the same volume, and etcd 3.5 crashes on the first log entry that sets the cluster version to 3.6. If 3.5 is
// the wanted version, the package prevents entries that set the cluster version to 3.6:
//
//   - Announce, which must be called before etcd is started, makes the embedded etcd announce version 3.5. From the
//     first election on, the leader sets the cluster version to the lowest version that any member announces.
//   - If the data is already at 3.6, etcd cannot announce 3.5, because etcd crashes on data of a newer version. In this
//     case, a Keeper requests a downgrade, which etcd completes once every member has been restarted.
//
// While a downgrade is enabled, etcd rejects members without data. The Keeper therefore cancels the downgrade when a
// member is added, and the new member waits for the cancellation (AwaitVersion in recovery/peers).
package dataversion
