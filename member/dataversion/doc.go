// Package dataversion keeps what etcd stores readable for an older etcd. A backup-restore sidecar runs etcd 3.5 on the
// same volume, and 3.5 dies on the first entry of a log that says that the cluster runs at 3.6. So with a wanted version
// of 3.5 nothing ever says so:
//
//   - Announce has the embedded etcd present itself to its cluster as 3.5, before it is opened. The leader takes the
//     lowest version that a member announces for the cluster's, from the first election on.
//   - Data that run at 3.6 already forbid that, because etcd dies on data that are newer than itself. There the Keeper
//     asks for etcd's own downgrade. etcd ends it by itself as soon as every member has been started again.
//
// While a downgrade is asked for, etcd turns members without data away. The Keeper therefore lets go of it as soon as one
// was added, and AwaitPeers lets the new member wait until that was done.
package dataversion
