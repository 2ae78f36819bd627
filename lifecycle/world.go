package lifecycle

import (
	"context"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
)

// Sidecar is what answers for the data directory: etcd-backup-restore over HTTP, or the in-process stand-in for it.
type Sidecar interface {
	// Status says where initialization stands. A verdict is told once.
	Status(ctx context.Context) (bootstrap.InitializationStatus, error)
	// Trigger asks for an initialization, which then runs in the background.
	Trigger(ctx context.Context, mode bootstrap.Mode) error
	// Config returns etcd's configuration as YAML.
	Config(ctx context.Context) ([]byte, error)
}

// Explainer is a Sidecar that knows why its last initialization failed.
type Explainer interface {
	// WhyFailed is the reason, one sentence that names the file; nil if there is none or it is not known.
	WhyFailed() error
}

// Final is a reason that no further try can change: the run ends with that exit status. Clean means that one can.
type Final interface {
	error
	Status() exitcode.Code
}

// Volume is what the exit record and the data lie on.
type Volume interface {
	// Lock takes the volume's lock, or fails at once; bootstrap.ErrVolumeBusy says that another process holds it.
	Lock() error
	// Probe fails with bootstrap.ErrDataInUse while an etcd has a database on the volume open, whoever started it.
	Probe() error
	// Logs are the directories on the volume that hold a log of etcd's.
	Logs() []string
	// LockData takes the lock of the data directory that the configuration names, or fails at once, with
	// bootstrap.ErrDataInUse if another process holds it. With any other error etcd goes on without the lock.
	LockData() error
}

// Record is the exit record. Its methods are durable when they return.
type Record interface {
	Remove() error
	Restore() error
	Write(word exitcode.Word) error
	// Forfeit removes it for good: from now on Restore and Write leave none behind.
	Forfeit() error
	Forfeited() bool
}

// Member is the embedded etcd.
type Member interface {
	// Configure stores and checks the configuration. Its error says, in one sentence, what etcd cannot run with; it is
	// bootstrap.ErrCertificates if only certificate files are at fault, which may be in their place a moment later.
	Configure(yaml []byte) error
	// Open starts etcd and returns once it has joined its cluster, or with the reason why it will not. When ctx ends it
	// returns at once; etcd itself is then Close's to end.
	Open(ctx context.Context) error
	// Watch returns when etcd has stopped by itself, with the reason, or when ctx ends.
	Watch(ctx context.Context) error
	// Close ends what Open started, in order, and returns when nothing of etcd runs any more. An error means that etcd
	// was not closed in order. opened says whether etcd ever touched the data, or they were found unfit for it.
	Close() (opened bool, err error)
}

// Server is the wrapper's own server.
type Server interface {
	// Expose serves /readyz with the certificate that the configuration names, if it names one. Its error is
	// bootstrap.ErrCertificates if that can't be used now.
	Expose() error
}

// World is everything the machine acts on. All fields are required.
type World struct {
	Sidecar Sidecar
	Volume  Volume
	Record  Record
	Member  Member
	Server  Server
	// Mode chooses the validation mode from the last exit and says why.
	Mode func() (mode bootstrap.Mode, reason string)
	// LeaveReason keeps the reason of a crash for people.
	LeaveReason func(reason string) error
}
