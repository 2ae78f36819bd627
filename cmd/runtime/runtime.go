// Package runtime is everything the lifecycle acts on: it puts bootstrap, the embedded etcd, the readiness monitor and what
// a run leaves behind together, none of which knows of the others, and fits them to the lifecycle's interfaces.
//
// The command makes one Runtime for a run and connects it to the wrapper's server before the lifecycle begins. From then on
// the lifecycle calls its methods, one after the other; what a Runtime says about itself may be asked from any goroutine.
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

// Server is the wrapper's own server, as far as etcd's configuration decides how it speaks.
type Server interface {
	UsePlain()
	UseTLS(certFile, keyFile string) error // fails only if the files cannot be used now
}

// Runtime implements the lifecycle's interfaces for its volume, its member and its server.
type Runtime struct {
	flags    *commandline.StartEtcd
	log      zerolog.Logger
	counts   *metrics.Metrics
	volume   *bootstrap.Volume
	record   *exitcode.Record
	note     *exitcode.CrashNote
	monitor  *readiness.Monitor
	server   Server                     // set before the lifecycle begins
	crash    func(error)                // set before the lifecycle begins
	backups  *backup.Backups            // nil without a store; set before the lifecycle begins
	recovery *recovery.Recovery         // nil with a sidecar; set before the lifecycle begins
	leases   *kubernetes.Leases         // nil without --leases; set before the lifecycle begins
	unwanted func(context.Context) bool // nil without --follow-replicas; the same
	closed   closed                     // how etcd was closed, for the backups' last look
	unstored error                      // what they could not bring then
	gate     maintenance.Gate           // for who reads the whole database

	began        time.Time
	lastRun      *lastRun
	memberID     atomic.Value // a string, once etcd is ready
	durations    durations
	certificates *certificates.Files
	config       *etcdconf.Checked
	warned       []byte                   // the configuration whose oddities were named last
	oddities     atomic.Pointer[[]string] // of the configuration, for readers
	etcd         *member.Member
	opening      atomic.Pointer[member.Member] // the same, for readers

	stopMonitor context.CancelFunc
	monitored   chan struct{}
}

// New returns the runtime of one run and looks at how the last one on the volume ended. It changes nothing.
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
			certificates.WrapperServer: flags.WrapperCertPath,
			certificates.EtcdClient:    flags.EtcdCertPath,
			certificates.SidecarCA:     flags.SidecarCAPath,
		}, log),
	}
	r.lastRun = newLastRun(flags, r.record, r.note, log)
	return r
}

// ForLifecycle is the runtime as the lifecycle takes it, with a sidecar whose calls are counted.
func (r *Runtime) ForLifecycle(sidecar lifecycle.Sidecar) lifecycle.Runtime {
	return lifecycle.Runtime{
		Sidecar: &countedSidecar{Sidecar: sidecar, counts: r.counts, silent: r.flags.Standalone}, Volume: r, Record: r.record, Member: r, Server: r,
		Mode:        func() (bootstrap.Mode, string) { return bootstrap.ModeAfter(r.record, datadir.ChangedSince) },
		LeaveReason: r.note.Leave,
	}
}

// Connect gives the runtime what can only be made when it is there: the wrapper's server, and what to call when etcd has
// crashed. Call it once, before the lifecycle begins.
func (r *Runtime) Connect(server Server, crash func(reason error)) {
	r.server = server
	r.crash = func(reason error) { crash(bootstrap.Advised(reason, r.flags.VolumeDir)) }
}

// Gate is the lock that keeps readers of the whole database and its defragmentation apart.
func (r *Runtime) Gate() *maintenance.Gate { return &r.gate }

// WorksWith sets what makes backups, what decides about the data before etcd opens them, what renews leases, and what tells whether
// a member is wanted; nil where nothing does. Call it once, before the lifecycle begins.
func (r *Runtime) WorksWith(backups *backup.Backups, recoverer *recovery.Recovery, renewed *kubernetes.Leases, unwanted func(context.Context) bool) {
	r.backups, r.recovery, r.leases, r.unwanted = backups, recoverer, renewed, unwanted
}

// DiedOf is what the last run on the volume crashed of; empty if it did not.
func (r *Runtime) DiedOf() string {
	if last := r.lastRun.ended(); last.class == status.ExitCrash {
		return last.reason
	}
	return ""
}

// Monitor watches the member while it runs, and answers for its readiness.
func (r *Runtime) Monitor() *readiness.Monitor { return r.monitor }

// Lock implements lifecycle.Volume. Once the volume is held, a crash has a place to leave its reason.
func (r *Runtime) Lock() error {
	if err := r.volume.Lock(); err != nil {
		r.lastRun.waits()
		return err
	}
	r.lastRun.begin() // before the note of a crash is put away
	if err := r.note.Arm(r.lastRun.ended().loops); err != nil {
		r.log.Warn().Err(err).Msg("a crash would leave no reason behind")
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
	if r.flags.WrapperCertPath != "" {
		return nil
	}
	cert, key, ok := r.config.ServerCertificate()
	if !ok {
		r.server.UsePlain()
		return nil
	}
	if err := r.server.UseTLS(cert, key); err != nil {
		return bootstrap.CertificateError{Cause: err}
	}
	return nil
}

// Settle puts away what only a crash needs. Call it when the lifecycle has ended.
func (r *Runtime) Settle(outcome lifecycle.Outcome) {
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
		r.log.Warn().Err(err).Msg("the crash note could not be settled")
	}
}

// countedSidecar counts the calls to a sidecar and how its initializations end. The machine asks for the status and for
// initializations one after the other; a configuration may be fetched meanwhile.
type countedSidecar struct {
	lifecycle.Sidecar
	counts *metrics.Metrics
	silent bool           // it is a stand-in in this process: no request goes anywhere
	asked  bootstrap.Mode // for the initialization that runs; empty if none was asked for
}

// Status implements lifecycle.Sidecar.
func (c *countedSidecar) Status(ctx context.Context) (bootstrap.InitializationStatus, error) {
	began := time.Now()
	word, err := c.Sidecar.Status(ctx)
	c.count("status", time.Since(began), err)
	if err == nil {
		c.heard(word)
	}
	return word, err
}

// heard counts what ended: by a result, or because a sidecar that was restarted has forgotten it.
func (c *countedSidecar) heard(word bootstrap.InitializationStatus) {
	switch {
	case word == bootstrap.New && c.asked != "":
		c.ended(metrics.Lost)
	case word == bootstrap.Successful:
		c.ended(metrics.Successful)
	case word == bootstrap.Failed:
		c.ended(metrics.Failed)
	}
}

func (c *countedSidecar) count(call string, took time.Duration, err error) {
	if !c.silent {
		c.counts.Request(call, took, err)
	}
}

func (c *countedSidecar) ended(result metrics.Result) {
	c.counts.Initialization(cmp.Or(string(c.asked), metrics.Unrequested), result)
	c.asked = ""
}

// WhyFailed implements lifecycle.FailureReporter for a sidecar that does; another one says nothing.
func (c *countedSidecar) WhyFailed() error {
	if explainer, is := c.Sidecar.(lifecycle.FailureReporter); is {
		return explainer.WhyFailed()
	}
	return nil
}

// Trigger implements lifecycle.Sidecar.
func (c *countedSidecar) Trigger(ctx context.Context, mode bootstrap.Mode) error {
	began := time.Now()
	err := c.Sidecar.Trigger(ctx, mode)
	c.count("trigger", time.Since(began), err)
	if err == nil {
		c.asked = mode
	}
	return err
}

// Config implements lifecycle.Sidecar.
func (c *countedSidecar) Config(ctx context.Context) ([]byte, error) {
	began := time.Now()
	yaml, err := c.Sidecar.Config(ctx)
	c.count("config", time.Since(began), err)
	return yaml, err
}
