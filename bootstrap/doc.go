// Package bootstrap is the way towards the data: it knows the sidecar's HTTP API and its four status words, chooses the
// validation mode from the exit record, holds the volume's lock and stores the configuration that was fetched.
//
// Everything else about the data lives below it, in packages of their own: the in-process stand-in for the sidecar
// (standalone), the check of etcd's configuration (etcdconf), what reads and judges a data directory (datadir), the embedded
// etcd itself (member) and what keeps it small (upkeep), backups, and what brings data back (recovery). The lifecycle package
// reaches them through small interfaces of its own; only the command wires them.
package bootstrap
