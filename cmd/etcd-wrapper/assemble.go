package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/rs/zerolog"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/writer"
	"etcd-wrapper/backup/writer/ack"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/cmd/backups"
	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/cmd/report"
	"etcd-wrapper/cmd/runtime"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/internal/disk"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/member/kubernetes"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/metrics"
	"etcd-wrapper/readiness/page"
	"etcd-wrapper/readiness/status"
	"etcd-wrapper/recovery"
	"etcd-wrapper/recovery/peers"
)

// parts holds the components of a run of start-etcd, or the reason why they could not be created.
type parts struct {
	driver    *lifecycle.Driver // nil if a component could not be created
	runtime   *runtime.Runtime
	report    *report.Report
	announcer announcer
	outcome   lifecycle.Outcome // exit status and reason if driver is nil
	end       []func()          // functions that stop the components, in order of creation
}

// assemble creates the components in dependency order and starts the wrapper's own server. assemble neither contacts
// other processes nor changes the volume; parts.run does both.
func (c *startCommand) assemble(log zerolog.Logger) *parts {
	if err := bootstrap.NewVolume(c.VolumeDir).Check(); errors.Is(err, syscall.EROFS) {
		return failed(exitcode.BadRecord, err)
	} else if err != nil {
		return failed(exitcode.Usage, err)
	}
	settings, schedule, rootPassword, err := c.readFiles()
	if err != nil {
		return failed(exitcode.Usage, err)
	}
	for _, warning := range settings.Keys.Warnings() {
		log.Warn().Msg(warning)
	}
	counts := metrics.New()
	rt := runtime.New(&c.StartEtcd, counts, log)
	kept := c.backups(settings, schedule, rt.Gate(), log)
	reach := peers.NewOptions(c.EtcdCertPath, c.EtcdKeyPath, rootPassword)
	recoverer := c.recovery(settings, kept, rt.LastCrash, reach, counts, log)
	account, pod, err := c.pod()
	if err != nil {
		return failed(exitcode.Usage, err)
	}
	connected := runtime.Parts{Backups: kept, Recovery: recoverer, RootPassword: rootPassword}
	if slices.Contains(c.Kubernetes, "leases") {
		options := kubernetes.LeaseOptions{Account: account, Cluster: pod.Set, Member: rt.LeaseOfMember, Log: log}
		if kept != nil {
			options.Backups = rt.LeaseOfBackups
		}
		connected.Leases = kubernetes.NewLeases(options)
	}
	if slices.Contains(c.Kubernetes, "replicas") {
		connected.Unwanted = replicaCheck(account, pod, log)
	}
	sidecar, end, err := c.sidecar(recoverer)
	if err != nil {
		return failed(configStatus(err), err)
	}
	happened, endEvents := c.events(account, log)
	driver := lifecycle.NewDriver(lifecycle.Options{
		Runtime: rt.ForLifecycle(sidecar), Log: log, ReadyTimeout: c.EtcdReadyTimeout,
	})
	p := &parts{driver: driver, runtime: rt, report: report.New(driver, rt, wrapperVersion(), podName())}
	p.announcer = p.announce(log, c.LogFormat == "console")
	stopServer, status, err := c.serve(log, p, connected, c.routes(p.report, counts, kept, log))
	if err != nil {
		p.announcer.end()
		return failed(status, err)
	}
	p.end = []func(){end, stopServer, endEvents, c.watch(log, p, happened), p.announcer.end}
	return p
}

// readFiles reads the files named by flags. Each error names the flag.
func (c *startCommand) readFiles() (settings backups.Settings, schedule backup.Schedule, rootPassword string, err error) {
	settings, err = backups.Read(c.Backups)
	if err == nil {
		err = settings.Keys.CheckSigning()
	}
	if err == nil {
		rootPassword, err = readRootPassword(c.RootPasswordFile)
	}
	if err == nil {
		schedule, err = backup.ParseSchedule(c.Backups.FullSchedule)
	}
	return settings, schedule, rootPassword, err
}

// maxPassword is the maximum length in bytes of a password that bcrypt accepts.
const maxPassword = 72

// readRootPassword returns the content of --root-password-file without the trailing line break, or an empty string if
// the flag is not set.
func readRootPassword(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	content, err := disk.Read(path, maxPassword+2)
	password := strings.TrimRight(string(content), "\r\n")
	if err == nil && (password == "" || len(password) > maxPassword) {
		err = fmt.Errorf("the password has %d bytes, but etcd accepts 1 to %d", len(password), maxPassword)
	}
	if err != nil {
		return "", fmt.Errorf("--root-password-file: %s: %w", path, err)
	}
	return password, nil
}

// sidecar returns the component that validates the data directory and a function that closes it.
func (c *startCommand) sidecar(recoverer *recovery.Recovery) (lifecycle.Sidecar, func(), error) {
	if recoverer != nil {
		document, err := c.etcdConfig().Load()
		if err == nil && c.Backups.Ack == commandline.AckStored { // fail early, because recovery would wait for other members first
			// An error is not reported yet, because the certificates may not exist yet.
			if checked, failed := etcdconf.Parse(document.YAML); failed == nil {
				err = runtime.CheckAck(c.Backups.Ack, checked.Etcd)
			}
		}
		if err != nil { // an invalid configuration file cannot be fixed by retrying
			return nil, nil, fmt.Errorf("--etcd-config-file: %w", err)
		}
		return recoverer, recoverer.Close, nil
	}
	client, err := bootstrap.NewClient(bootstrap.ClientOptions{
		HostPort: c.SidecarHostPort, TLS: c.SidecarTLS, CAPath: c.SidecarCAPath,
	})
	return client, func() {}, err
}

// watch logs changes, updates the termination message and announces when the member is ready, until end is called.
func (c *startCommand) watch(log zerolog.Logger, p *parts, happened func(status.TimelineEvent)) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() {
		p.report.Watch(ctx, log, func() {
			if err := c.message.Prepare(p.report.KilledMessage(c.CrashNotePath())); err != nil {
				log.Debug().Err(err).Msg("cannot prepare the termination message in case the process is killed")
			}
		}, func(h status.TimelineEvent) {
			if h.Kind == "readiness" && h.Health == status.HealthOK {
				p.announcer.ready()
			}
			happened(h)
		})
	})
	return func() {
		cancel()
		watching.Wait()
	}
}

// podName returns the value of POD_NAME, or the host name if it is not set. In a pod without host networking, the
// host name is the pod's name.
func podName() string {
	name := os.Getenv("POD_NAME")
	if name == "" {
		name, _ = os.Hostname()
	}
	return name
}

func failed(status exitcode.Code, err error) *parts {
	return &parts{outcome: lifecycle.Outcome{Status: status, Reason: err.Error()}}
}

// configStatus returns the exit status for an invalid configuration or flag.
func configStatus(err error) exitcode.Code {
	if errors.Is(err, etcdconf.ErrUnusable) {
		return exitcode.BadConfig
	}
	return exitcode.Usage
}

// shortMessage returns the termination message of a run that failed before the lifecycle started.
func shortMessage(outcome lifecycle.Outcome) string {
	return fmt.Sprintf("%s: %s\n", outcome.Status, outcome.Reason)
}

// openRequests is the part of a message that says what happens to requests that are still open at the exit.
const openRequests = "open requests may be cut off"

// serve starts the wrapper's own server, with TLS if etcd is expected to use TLS.
func (c *startCommand) serve(log zerolog.Logger, p *parts, connected runtime.Parts, routes map[string]http.Handler) (func(), exitcode.Code, error) {
	server, err := readiness.Listen(readiness.Options{
		Address: c.Address(), Phase: p.report.Phase, Stop: p.stop,
		Defragment: p.runtime.Defragment,
		Routes:     routes, Log: log,
	}, p.runtime.Monitor())
	if err != nil {
		return nil, exitcode.ServerTaken, fmt.Errorf("%w; stop the process that is using the port, or set another --etcd-wrapper-port", err)
	}
	connected.Server, connected.Crash = server, p.driver.Crash
	p.runtime.Connect(connected)
	if !c.ExpectsTLS() { // an assumption until etcd's configuration is known
		server.UseHTTP()
	} else if err := server.UseTemporary(); err != nil {
		return nil, exitcode.ServerTaken, err
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(); err != nil {
			p.driver.ListenerLost(err)
		}
	})
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			log.Info().Err(err).Msg(openRequests)
		}
		serving.Wait()
	}, exitcode.Clean, nil
}

// stop starts a graceful stop, as SIGTERM does.
func (p *parts) stop() {
	p.announcer.stop()
	p.driver.Stop()
}

// routes returns additional handlers for the wrapper's server.
func (c *startCommand) routes(about *report.Report, counts *metrics.Metrics, kept *backup.Backups, log zerolog.Logger) map[string]http.Handler {
	states := make([]string, len(lifecycle.States))
	for i, state := range lifecycle.States {
		states[i] = string(state.Name)
	}
	served := map[string]http.Handler{
		"GET /{$}":              page.Handler(lifecycle.Overview(), lifecycle.Diagram.JSON()),
		"GET /statemachine.svg": page.Diagram(lifecycle.Diagram.SVG()),
		"GET /lifecycle":        status.Handler(about.Source()),
		"GET /metrics":          counts.Handler(about.Document, states),
	}
	var backend backups.Backend
	if kept != nil {
		backend = kept
	}
	maps.Copy(served, backups.Routes(backups.FlagsOf(c.Backups, c.VolumeDir), backend, log))
	return served
}

// Directories on the volume: the spool for segments that have not been uploaded, and the scratch directory for
// restore tests.
const (
	spoolDir  = "backup.spool"
	verifyDir = "backup.verify"
)

// backups creates the backup component, or returns nil if there is no store.
func (c *startCommand) backups(settings backups.Settings, schedule backup.Schedule, readers writer.Gate, log zerolog.Logger) *backup.Backups {
	if settings.Store == nil {
		return nil
	}
	var gate *ack.Gate
	if c.Backups.Ack == commandline.AckStored {
		gate = ack.NewGate()
	}
	return backup.New(backup.Options{
		Ack: gate, Store: settings.Store, Keys: settings.Keys, Interval: *c.Backups.Interval, Schedule: schedule, Policy: settings.Policy,
		SpoolDir: filepath.Join(c.VolumeDir, spoolDir), SpoolLimit: int64(c.Backups.SpoolLimit), Log: log, Gate: readers,
		Verify: verifyBackupInChild(settings.Flags, filepath.Join(c.VolumeDir, verifyDir)), ScratchDir: filepath.Join(c.VolumeDir, verifyDir),
	})
}

// pod returns the service account and the pod that --kubernetes requires. The error names the flag that is invalid.
func (c *startCommand) pod() (account kubernetes.Account, pod kubernetes.Pod, err error) {
	if len(c.Kubernetes) == 0 {
		return account, pod, nil
	}
	if account, err = kubernetes.NewAccount(); err != nil {
		return account, pod, fmt.Errorf("--kubernetes: %w", err)
	}
	pod, err = kubernetes.ParsePod(podName())
	if err != nil && !slices.Equal(c.Kubernetes, []string{"events"}) { // posting Events works without a StatefulSet
		return account, pod, fmt.Errorf("--kubernetes: %w; set POD_NAME", err)
	}
	return account, pod, nil
}

// replicaCheck returns a function that reports whether the StatefulSet has been scaled down so far that this member
// no longer belongs to it.
func replicaCheck(account kubernetes.Account, pod kubernetes.Pod, log zerolog.Logger) func(context.Context) bool {
	server := kubernetes.NewServer(account)
	return func(ctx context.Context) bool {
		removed, err := server.IsScaledDown(ctx, pod)
		if err != nil {
			log.Warn().Err(err).Str("statefulset", pod.Set).Msg("cannot read the StatefulSet's replicas; this member remains in the cluster")
		}
		return removed
	}
}

// recovery returns the component that restores lost or damaged data from a store or from other members. recovery
// returns nil in a pod with a sidecar, because the sidecar restores the data.
func (c *startCommand) recovery(settings backups.Settings, kept *backup.Backups, died func() string, reach peers.Options, counts *metrics.Metrics, log zerolog.Logger) *recovery.Recovery {
	if !c.Standalone {
		return nil
	}
	options := recovery.Options{
		Config:    c.etcdConfig(),
		VolumeDir: c.VolumeDir, Never: c.Recovery.Recover == "never", Request: c.request(), Validate: verifyInChild(), Inspect: inspectInChild(), Log: log,
		Died: died,
		Lost: func(dataDir string) bool {
			last, _ := exitcode.ReadLastRun(c.LastRunPath()) // an unreadable record is treated as missing
			return last.Lost(dataDir, func(string) bool { return true })
		},
		Ended: func(o recovery.Result) { counts.Recovered(o.Cause, o.Ended, o.Lost) },
		Reach: reach,
	}
	if settings.Store != nil {
		options.Owner, options.Adopt = c.Recovery.Owner, c.Recovery.Adopt
		options.Archive, options.FlushSpool = settings.Archive(), kept.FlushSpool
		options.Flush = func(ctx context.Context, dataDir string, position datadir.Position) error {
			return kept.FlushAtRest(ctx, dataDir, position.MemberID, position.ClusterID)
		}
		options.SpoolDir = filepath.Join(c.VolumeDir, spoolDir)
	}
	return recovery.New(options)
}

// etcdConfig returns the source of etcd's configuration.
func (c *startCommand) etcdConfig() etcdconf.Source {
	return etcdconf.Source{File: c.EtcdConfigFile, DataDir: c.DataDir(), PodName: podName(), Namespace: os.Getenv("POD_NAMESPACE")}
}

// request returns the restore that --restore-to requests, or nil.
func (c *startCommand) request() *recovery.Request {
	if c.Recovery.RestoreTo == nil {
		return nil
	}
	return &recovery.Request{Target: archive.Target(*c.Recovery.RestoreTo), ID: c.Recovery.RestoreID}
}

// events returns a function that posts timeline events to Kubernetes, and a function that stops posting. Without
// --kubernetes=events, both functions do nothing.
func (c *startCommand) events(account kubernetes.Account, log zerolog.Logger) (post func(status.TimelineEvent), stop func()) {
	if !slices.Contains(c.Kubernetes, "events") {
		return func(status.TimelineEvent) {}, func() {}
	}
	recorder := kubernetes.NewEventRecorder(account, kubernetes.EventPod{Name: podName(), UID: os.Getenv("POD_UID")}, log)
	return func(h status.TimelineEvent) {
		if event, notable := eventOf(h); notable {
			recorder.Post(event)
		}
	}, recorder.Stop
}

// reasons maps each kind of timeline event to the reasons of its Kubernetes Events: ok for events with the health
// "ok", and failed for all others. If the reason is empty, no Event is posted. Readiness has no entry, because
// Kubernetes already shows which pods are ready.
var reasons = map[string]struct{ ok, failed string }{
	"start":           {"", "LastRunFailed"},
	"restore_test":    {"", "RestoreTestFailed"},
	"defragmentation": {"Defragmented", "NotDefragmented"},
	"alarm":           {"AlarmDisarmed", "AlarmRaised"},
	"problem":         {"ProblemResolved", "Problem"},
	"recovery":        {"", "DataRefused"},
	"restore":         {"Restored", ""},
}

// eventOf converts a timeline event to a Kubernetes Event. notable is false if no Event should be posted.
func eventOf(h status.TimelineEvent) (event kubernetes.Event, notable bool) {
	ok := h.Health == status.HealthOK
	reason := reasons[h.Kind].failed
	if ok {
		reason = reasons[h.Kind].ok
	}
	event = kubernetes.Event{Reason: reason, Warning: !ok, Note: h.Message, At: h.At}
	if h.Kind == "problem" || h.Kind == "alarm" {
		event.Subject, _, _ = strings.Cut(h.Message, ":")
	}
	return event, reason != ""
}
