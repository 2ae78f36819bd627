// Package runtime is everything the lifecycle acts on: it puts bootstrap, the embedded etcd, the readiness monitor and what
// a run leaves behind together, none of which knows of the others, and fits them to the lifecycle's interfaces.
//
// The command makes one World for a run and connects it to the wrapper's server before the lifecycle begins. From then on
// the lifecycle calls its methods, one after the other; what a World tells of itself may be asked from any goroutine.
package runtime

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/backup"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/internal/gate"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/member"
	"etcd-wrapper/member/leases"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/certificates"
	"etcd-wrapper/readiness/metrics"
	"etcd-wrapper/recovery"
)

// Server is the wrapper's own server, as far as etcd's configuration decides how it speaks.
type Server interface {
	UsePlain()
	UseTLS(certFile, keyFile string) error // fails only if the files cannot be used now
}

// World implements the lifecycle's interfaces for its volume, its member and its server.
type World struct {
	flags    *commandline.StartEtcd
	log      zerolog.Logger
	counts   *metrics.Metrics
	volume   *bootstrap.Volume
	record   *exitcode.Record
	note     *exitcode.CrashNote
	monitor  *readiness.Monitor
	server   Server             // set before the lifecycle begins
	crash    func(error)        // set before the lifecycle begins
	backups  *backup.Backups    // nil without a store; set before the lifecycle begins
	recovery *recovery.Recovery // nil with a sidecar; set before the lifecycle begins
	leases   *leases.Leases     // nil without --leases; set before the lifecycle begins
	closed   closed             // how etcd was closed, for the backups' last look
	unstored error              // what they could not bring then
	gate     gate.Gate          // for who reads the whole database

	began        time.Time
	past         *past
	memberID     atomic.Value // a string, once etcd is ready
	durations    durations
	certificates *certificates.Files
	config       *etcdconf.Checked
	warned       []byte // the configuration whose oddities were named last
	etcd         *member.Member
	opening      atomic.Pointer[member.Member] // the same, for readers

	stopMonitor context.CancelFunc
	monitored   chan struct{}
}

// New returns the world of one run and looks at how the last one on the volume ended. It changes nothing.
func New(flags *commandline.StartEtcd, counts *metrics.Metrics, log zerolog.Logger) *World {
	w := &World{
		flags:   flags,
		log:     log,
		counts:  counts,
		volume:  bootstrap.NewVolume(flags.VolumeDir),
		record:  exitcode.NewRecord(flags.RecordPath()),
		note:    exitcode.NewCrashNote(flags.CrashNotePath()),
		monitor: readiness.NewMonitor(log),
		began:   time.Now(),
		certificates: certificates.New(map[string]string{
			certificates.WrapperServer: flags.WrapperCertPath,
			certificates.EtcdClient:    flags.EtcdCertPath,
			certificates.SidecarCA:     flags.SidecarCAPath,
		}, log),
	}
	w.past = newPast(flags, w.record, w.note, log)
	return w
}

// ForLifecycle is the world as the lifecycle takes it, with a sidecar whose calls are counted.
func (w *World) ForLifecycle(sidecar lifecycle.Sidecar) lifecycle.World {
	return lifecycle.World{
		Sidecar: &countedSidecar{Sidecar: sidecar, counts: w.counts}, Volume: w, Record: w.record, Member: w, Server: w,
		Mode:        func() (bootstrap.Mode, string) { return bootstrap.ModeAfter(w.record, datadir.ChangedSince) },
		LeaveReason: w.note.Leave,
	}
}

// Connect gives the world what can only be made when it is there: the wrapper's server, and whom to tell that etcd has
// crashed. Call it once, before the lifecycle begins.
func (w *World) Connect(server Server, crash func(reason error)) {
	w.server = server
	w.crash = func(reason error) { crash(bootstrap.Advised(reason, w.flags.VolumeDir)) }
}

// Gate is where those who read the whole database tell of it, so that it is not defragmented meanwhile.
func (w *World) Gate() *gate.Gate { return &w.gate }

// WorksWith tells the world what makes backups, what decides about the data before etcd opens them, and what renews leases;
// nil where nothing does. Call it once, before the lifecycle begins.
func (w *World) WorksWith(backups *backup.Backups, recoverer *recovery.Recovery, renewed *leases.Leases) {
	w.backups, w.recovery, w.leases = backups, recoverer, renewed
}

// Monitor watches the member while it runs, and answers for its readiness.
func (w *World) Monitor() *readiness.Monitor { return w.monitor }

// Lock implements lifecycle.Volume. Once the volume is held, a crash has a place to leave its reason.
func (w *World) Lock() error {
	if err := w.volume.Lock(); err != nil {
		w.past.waits()
		return err
	}
	w.past.begin() // before the note of a crash is put away
	if err := w.note.Arm(w.past.ended().loops); err != nil {
		w.log.Warn().Err(err).Msg("a crash would leave no reason behind")
	}
	return nil
}

// Probe implements lifecycle.Volume.
func (w *World) Probe() error { return w.volume.Probe() }

// Logs implements lifecycle.Volume.
func (w *World) Logs() []string { return w.volume.Logs() }

// LockData implements lifecycle.Volume.
func (w *World) LockData() error { return w.volume.LockData(w.config.Etcd.Dir) }

// Expose implements lifecycle.Server.
func (w *World) Expose() error {
	if w.flags.WrapperCertPath != "" {
		return nil
	}
	cert, key, ok := w.config.ServerCertificate()
	if !ok {
		w.server.UsePlain()
		return nil
	}
	if err := w.server.UseTLS(cert, key); err != nil {
		return bootstrap.CertificateError{Cause: err}
	}
	return nil
}

// Settle puts away what only a crash needs. Call it when the lifecycle has ended.
func (w *World) Settle(outcome lifecycle.Outcome) {
	defer w.past.end(outcome)
	var err error
	switch outcome.Status { //nolint:exhaustive // of all others there is nothing more to tell
	case exitcode.Crashed:
	case exitcode.OutOfTime:
		err = leaveDump(w.note, outcome)
	default:
		err = w.note.Discard()
	}
	if err != nil {
		w.log.Warn().Err(err).Msg("the crash note could not be settled")
	}
}
