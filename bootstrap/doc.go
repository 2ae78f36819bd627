// Package bootstrap decides whether data may be opened. It implements the client of the sidecar's HTTP API with its
// four status words, chooses the validation mode from the exit record, holds the locks of the volume and of the data
// directory, and stores the fetched configuration.
//
// Two packages below it read data and configuration: datadir validates a data directory, and etcdconf checks etcd's
// configuration. The lifecycle uses all three through its own small interfaces; only the command connects them.
package bootstrap
