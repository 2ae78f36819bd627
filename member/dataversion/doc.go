// Package dataversion keeps what etcd stores readable for an older etcd. A backup-restore sidecar runs etcd 3.5 on the
// same volume, and 3.5 dies on the first log entry that sets the cluster's version to 3.6. With a wanted version of
// 3.5 no such entry is written:
//
//   - Announce makes the embedded etcd present itself to its cluster as 3.5, before it is opened. The leader takes the
//     lowest version that a member announces for the cluster's, from the first election on.
//   - With data at 3.6 that is impossible, because etcd dies on data that are newer than itself. There the Keeper
//     requests etcd's own downgrade. etcd ends it by itself as soon as every member has been started again.
//
// While a downgrade is enabled, etcd rejects members without data. The Keeper therefore cancels it as soon as one was
// added, and the new member waits until that was done (AwaitVersion in recovery/peers).
package dataversion
