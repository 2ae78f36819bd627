// Package leases renews the Kubernetes leases of a member and of its cluster's backups, for the operator's tools, which look
// there: how long ago a member was seen, whether it leads, and how far the backups are. A backup-restore sidecar renews the
// same leases in the same way; this package is for a member without one.
//
// It asks nothing of etcd and nothing waits for it: one goroutine asks the API server, each time within a few seconds, and
// what goes wrong is told and tried again. The command makes one Leases for a run, begins it when etcd has become ready and
// ends it before etcd is closed.
package leases
