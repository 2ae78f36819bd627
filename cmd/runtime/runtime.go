// Package runtime implements the interfaces that the lifecycle uses. It connects packages that do not import each
// other: bootstrap, the embedded etcd, the readiness monitor and the records of a run.
//
// Package main creates one Runtime per run and connects it to the wrapper's server before the lifecycle starts. The
// lifecycle then calls the methods of the Runtime one at a time. The methods that only report state are safe for
// concurrent use.
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

// A Server is the part of the wrapper's own server that depends on etcd's configuration.
type Server interface {
	UseHTTP()
	UseTLS(certFile, keyFile string) error // fails only if the certificate files cannot be used
}

// Parts are the components that a Runtime uses.
type Parts struct {
	Server   Server
	Crash    func(reason error)         // called if etcd crashes; ends the lifecycle
	Backups  *backup.Backups            // nil without a store
	Recovery *recovery.Recovery         // nil with a sidecar
	Leases   *kubernetes.Leases         // nil without --kubernetes=leases
	Unwanted func(context.Context) bool // reports whether scaling down the StatefulSet has removed this member; nil without --kubernetes=replicas

	RootPassword string // password for etcd's root user in a new cluster; empty without --root-password-file
}

// A Runtime implements the interfaces of the lifecycle for its volume, member and server.
type Runtime struct {
	flags        *commandline.StartEtcd
	log          zerolog.Logger
	counts       *metrics.Metrics
	volume       *bootstrap.Volume
	record       *exitcode.Record
	note         *exitcode.CrashNote
	monitor      *readiness.Monitor
	certificates *certificates.Files
	gate         maintenance.Gate // prevents a defragmentation while the entire database is being read
	parts        Parts            // set before the lifecycle starts

	began          time.Time
	lastRun        *lastRun
	config         *etcdconf.Checked
	warned         []byte                   // configuration for which warnings were last logged
	configWarnings atomic.Pointer[[]string] // warnings about the configuration
	etcd           atomic.Pointer[member.Member]
	memberID       atomic.Value // a string, set once etcd is ready
	endMonitor     func()       // stops the monitor and waits for it; nil before etcd has been started
	durations      durations
	closed         closed
}

// New returns the Runtime for a run. New reads how the last run on the volume ended, but does not change anything.
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

// ForLifecycle returns the implementations of the interfaces that the lifecycle uses. ForLifecycle wraps sidecar so
// that its calls are counted.
func (r *Runtime) ForLifecycle(sidecar lifecycle.Sidecar) lifecycle.Runtime {
	return lifecycle.Runtime{
		Sidecar: &sidecarMetrics{Sidecar: sidecar, counts: r.counts, silent: r.flags.Standalone}, Volume: r, Record: r.record, Member: r, Server: r,
		Mode:        func() (bootstrap.Mode, string) { return bootstrap.ModeAfter(r.record, datadir.ChangedSince) },
		LeaveReason: r.note.Leave,
	}
}

// Gate returns the lock that prevents a defragmentation while the whole database is being read.
func (r *Runtime) Gate() *maintenance.Gate { return &r.gate }

// Connect sets the components. Connect must be called before the lifecycle starts, and may be called more than once.
func (r *Runtime) Connect(parts Parts) { r.parts = parts }

// crash ends the lifecycle because etcd has crashed.
func (r *Runtime) crash(reason error) {
	r.parts.Crash(bootstrap.ExplainError(reason, r.flags.VolumeDir))
}

// LastCrash returns the reason why the last run crashed, or an empty string if it did not crash.
func (r *Runtime) LastCrash() string {
	if last := r.lastRun.ended(); last.class == status.ExitCrash {
		return last.reason
	}
	return ""
}

// Monitor returns the readiness monitor of the member.
func (r *Runtime) Monitor() *readiness.Monitor { return r.monitor }

// Lock implements lifecycle.Volume. The reason for a crash can only be recorded while the volume is locked.
func (r *Runtime) Lock() error {
	if err := r.volume.Lock(); err != nil {
		r.lastRun.markBlocked()
		return err
	}
	r.lastRun.start() // must run before the previous crash note is removed
	if err := r.note.Arm(r.lastRun.ended().loops); err != nil {
		r.log.Warn().Err(err).Msg("cannot write to the crash note: the reason for a crash would be lost")
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

// Finish records how the run ended, and removes the crash note if the run did not crash or time out. Finish must not be
// called before the lifecycle has ended.
func (r *Runtime) Finish(outcome lifecycle.Outcome) {
	defer r.lastRun.end(outcome)
	var err error
	switch outcome.Status { //nolint:exhaustive // default handles all other statuses
	case exitcode.Crashed:
	case exitcode.OutOfTime:
		err = leaveDump(r.note, outcome)
	default:
		err = r.note.Discard()
	}
	if err != nil {
		r.log.Warn().Err(err).Msg("cannot update the crash note")
	}
}

// A sidecarMetrics counts the calls to a sidecar and the results of initializations. The lifecycle makes one status
// or initialization request at a time, but may fetch the configuration concurrently.
type sidecarMetrics struct {
	lifecycle.Sidecar
	counts *metrics.Metrics
	silent bool           // the sidecar is part of this process, so there are no requests to count
	asked  bootstrap.Mode // mode of the initialization in progress; empty if there is none
}

// Status implements lifecycle.Sidecar. An initialization ends when the sidecar reports its result, or when the
// sidecar restarts and the result is lost.
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
