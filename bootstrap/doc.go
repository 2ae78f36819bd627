// Package bootstrap decides whether data may be opened: it knows the sidecar's HTTP API and its four status words, chooses the
// validation mode from the exit record, holds the locks of volume and data, and stores the configuration that was fetched.
//
// What reads the data and the configuration lies below it: datadir judges a data directory, etcdconf checks etcd's
// configuration. The lifecycle reaches them through small interfaces of its own; only the command wires them.
package bootstrap
