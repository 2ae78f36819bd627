// Package runtime implements the interfaces of the lifecycle. It connects bootstrap, the embedded etcd, the readiness
// monitor and the records of a run, which do not know each other.
//
// The command creates one Runtime per run and connects it to the wrapper's server before the lifecycle starts.
// Afterwards the lifecycle calls its methods one at a time. Methods that only report may be called from any
// goroutine.
package runtime

import (
	"cmp"
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
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/member"
	"etcd-wrapper/member/kubernetes"
	"etcd-wrapper/member/maintenance"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/certificates"
	"etcd-wrapper/readiness/metrics"
	"etcd-wrapper/readiness/status"
	"etcd-wrapper/recovery"
)

// A Server is the wrapper's own server, as far as etcd's configuration affects it.
type Server interface {
	UseHTTP()
	UseTLS(certFile, keyFile string) error // fails only if the files are currently unusable
}

// Parts are the components that a Runtime works with.
type Parts struct {
	Server   Server
	Crash    func(reason error)         // called after etcd has crashed
	Backups  *backup.Backups            // nil without a store
	Recovery *recovery.Recovery         // nil with a sidecar
	Leases   *kubernetes.Leases         // nil without --kubernetes=leases
	Unwanted func(context.Context) bool // reports whether the StatefulSet no longer includes the member; nil without --kubernetes=replicas

	RootPassword string // password of etcd's root user in a new cluster; empty without --root-password-file
}

// A Runtime implements the lifecycle's interfaces for its volume, its member and its server.
type Runtime struct {
	flags        *commandline.StartEtcd
	log          zerolog.Logger
	counts       *metrics.Metrics
	volume       *bootstrap.Volume
	record       *exitcode.Record
	note         *exitcode.CrashNote
	monitor      *readiness.Monitor
	certificates *certificates.Files
	gate         maintenance.Gate // held by readers of the whole database
	parts        Parts            // set before the lifecycle starts

	began          time.Time
	lastRun        *lastRun
	config         *etcdconf.Checked
	warned         []byte                   // the configuration whose warnings were logged last
	configWarnings atomic.Pointer[[]string] // warnings about the configuration
	etcd           atomic.Pointer[member.Member]
	memberID       atomic.Value // set to a string once etcd is ready
	endMonitor     func()       // waits until the monitor has ended; nil before etcd has started
	durations      durations
	closed         closed
}

// New returns the runtime of a run, and reads how the last run on the volume ended. It changes nothing.
func New(flags *commandline.StartEtcd, counts *metrics.Metrics, log zerolog.Logger) *Runtime {
	r := &Runtime{
		flags:   flags,
		log:     log,
		counts:  counts,
		volume:  bootstrap.NewVolume(flags.VolumeDir),
		record:  exitcode.NewRecord(flags.RecordPath()),
		note:    exitcode.NewCrashNote(flags.CrashNotePath()),
		monitor: readiness.NewMonitor(log),
		began:   time.Now(),
		certificates: certificates.New(map[string]string{
			certificates.EtcdClient: flags.EtcdCertPath,
			certificates.SidecarCA:  flags.SidecarCAPath,
		}, log),
	}
	r.lastRun = newLastRun(flags, r.record, r.note, log)
	return r
}

// ForLifecycle returns the interfaces that the lifecycle takes, with a sidecar whose calls are counted.
func (r *Runtime) ForLifecycle(sidecar lifecycle.Sidecar) lifecycle.Runtime {
	return lifecycle.Runtime{
		Sidecar: &sidecarMetrics{Sidecar: sidecar, counts: r.counts, silent: r.flags.Standalone}, Volume: r, Record: r.record, Member: r, Server: r,
		Mode:        func() (bootstrap.Mode, string) { return bootstrap.ModeAfter(r.record, datadir.ChangedSince) },
		LeaveReason: r.note.Leave,
	}
}

// Gate returns the lock that separates readers of the whole database from its defragmentation.
func (r *Runtime) Gate() *maintenance.Gate { return &r.gate }

// Connect sets the components. Call it before the lifecycle starts; it may be called again.
func (r *Runtime) Connect(parts Parts) { r.parts = parts }

// crash ends the lifecycle because etcd has crashed.
func (r *Runtime) crash(reason error) {
	r.parts.Crash(bootstrap.ExplainError(reason, r.flags.VolumeDir))
}

// LastCrash returns the reason why the last run crashed, or an empty string if it did not.
func (r *Runtime) LastCrash() string {
	if last := r.lastRun.ended(); last.class == status.ExitCrash {
		return last.reason
	}
	return ""
}

// Monitor returns the monitor of the member's readiness.
func (r *Runtime) Monitor() *readiness.Monitor { return r.monitor }

// Lock implements lifecycle.Volume. Once the volume is locked, a crash can record its reason there.
func (r *Runtime) Lock() error {
	if err := r.volume.Lock(); err != nil {
		r.lastRun.markBlocked()
		return err
	}
	r.lastRun.start() // must happen before the note of a crash is removed
	if err := r.note.Arm(r.lastRun.ended().loops); err != nil {
		r.log.Warn().Err(err).Msg("the reason of a crash could not be recorded")
	}
	return nil
}

// Probe implements lifecycle.Volume.
func (r *Runtime) Probe() error { return r.volume.Probe() }

// Logs implements lifecycle.Volume.
func (r *Runtime) Logs() []string { return r.volume.Logs() }

// LockData implements lifecycle.Volume.
func (r *Runtime) LockData() error { return r.volume.LockData(r.config.Etcd.Dir) }

// Expose implements lifecycle.Server.
func (r *Runtime) Expose() error {
	cert, key, ok := r.config.ServerCertificate()
	if !ok {
		r.parts.Server.UseHTTP()
		return nil
	}
	if err := r.parts.Server.UseTLS(cert, key); err != nil {
		return bootstrap.Mark(err, bootstrap.ErrCertificates)
	}
	return nil
}

// Finish removes the files that only a crash needs. Call it when the lifecycle has ended.
func (r *Runtime) Finish(outcome lifecycle.Outcome) {
	defer r.lastRun.end(outcome)
	var err error
	switch outcome.Status { //nolint:exhaustive // all others have left their reason already
	case exitcode.Crashed:
	case exitcode.OutOfTime:
		err = leaveDump(r.note, outcome)
	default:
		err = r.note.Discard()
	}
	if err != nil {
		r.log.Warn().Err(err).Msg("the crash note could not be updated")
	}
}

// A sidecarMetrics counts the calls to a sidecar and how its initializations end. The lifecycle requests the status
// and initializations one after the other, but may fetch the configuration at the same time.
type sidecarMetrics struct {
	lifecycle.Sidecar
	counts *metrics.Metrics
	silent bool           // the sidecar is part of this process, so no requests are logged
	asked  bootstrap.Mode // mode of the running initialization; empty if none was requested
}

// Status implements lifecycle.Sidecar. An initialization ends with a result, or when a restarted sidecar has
// forgotten it.
func (c *sidecarMetrics) Status(ctx context.Context) (word bootstrap.InitializationStatus, err error) {
	defer c.count("status", time.Now(), &err)
	word, err = c.Sidecar.Status(ctx)
	result, ended := map[bootstrap.InitializationStatus]metrics.Result{
		bootstrap.New: metrics.Lost, bootstrap.Successful: metrics.Successful, bootstrap.Failed: metrics.Failed,
	}[word]
	if err == nil && ended && (word != bootstrap.New || c.asked != "") {
		c.counts.Initialization(cmp.Or(string(c.asked), metrics.Unrequested), result)
		c.asked = ""
	}
	return word, err
}

func (c *sidecarMetrics) count(call string, began time.Time, err *error) {
	if !c.silent {
		c.counts.Request(call, time.Since(began), *err)
	}
}

// Trigger implements lifecycle.Sidecar.
func (c *sidecarMetrics) Trigger(ctx context.Context, mode bootstrap.Mode) (err error) {
	defer c.count("trigger", time.Now(), &err)
	if err = c.Sidecar.Trigger(ctx, mode); err == nil {
		c.asked = mode
	}
	return err
}

// Config implements lifecycle.Sidecar.
func (c *sidecarMetrics) Config(ctx context.Context) (yaml []byte, err error) {
	defer c.count("config", time.Now(), &err)
	return c.Sidecar.Config(ctx)
}
