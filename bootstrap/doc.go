// Package bootstrap decides whether data may be opened. It knows the sidecar's HTTP API and its four status words,
// chooses the validation mode from the exit record, holds the locks of the volume and of the data directory, and
// stores the fetched configuration.
//
// Two packages below it read data and configuration: datadir judges a data directory, etcdconf checks etcd's
// configuration. The lifecycle reaches all three through small interfaces of its own; only the command wires them.
package bootstrap
