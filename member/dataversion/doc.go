// Package dataversion keeps the data readable by an older version of etcd. A backup-restore sidecar runs etcd 3.5 on
// the same volume, and etcd 3.5 crashes on the first log entry that sets the cluster version to 3.6. If the wanted
// version is 3.5, the package prevents such entries:
//
//   - Announce, which must be called before etcd is started, makes the embedded etcd announce version 3.5. Starting
//     with the first election, the leader sets the cluster version to the lowest version announced by any member.
//   - If the data is already at 3.6, etcd cannot announce 3.5, because it would crash on data newer than the
//     announced version. Instead, a Keeper requests a downgrade, which completes once every member has been
//     restarted.
//
// While a downgrade is enabled, etcd rejects members without data. The Keeper therefore cancels the downgrade when a
// member is added, and the new member waits for the cancellation (AwaitVersion in recovery/peers).
package dataversion
