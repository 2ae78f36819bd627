// Package bootstrap decides whether etcd may open the data. The package contains the client for the sidecar's HTTP
// API, chooses the validation mode from the exit record, locks the volume and the data directory, and stores the
// fetched configuration.
//
// Package datadir validates a data directory, and package etcdconf checks the etcd configuration. Package lifecycle
// accesses all three packages through its own small interfaces, and the command connects them.
package bootstrap
