package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/bootstrap/member"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/metrics"
)

// pod is the world of the lifecycle machine: it puts the leaves together that know nothing of each other. The machine
// calls its methods one after the other.
type pod struct {
	flags   *startCommand
	log     zerolog.Logger
	volume  *bootstrap.Volume
	record  *exitcode.Record
	note    *exitcode.CrashNote
	monitor *readiness.Monitor
	server  *readiness.Server // set before the machine runs
	crash   func(error)       // set before the machine runs

	began        time.Time
	lastExit     string
	memberID     atomic.Value     // a string, once etcd is ready
	metrics      *metrics.Metrics // set before the machine runs
	spent        durations
	certificates *certificates
	opening      atomic.Pointer[member.Member] // the same as member, for readers
	checked      *etcdconf.Checked
	member       *member.Member

	stopMonitor context.CancelFunc
	monitored   chan struct{}
}

func newPod(flags *startCommand, log zerolog.Logger) *pod {
	p := &pod{
		flags:        flags,
		log:          log,
		volume:       bootstrap.NewVolume(flags.VolumeDir),
		record:       exitcode.NewRecord(flags.recordPath()),
		note:         exitcode.NewCrashNote(flags.crashNotePath()),
		monitor:      readiness.NewMonitor(log),
		began:        time.Now(),
		certificates: newCertificates(flags, log),
	}
	p.lastExit = p.howTheLastRunEnded()
	if reason := p.note.Previous(); reason != "" {
		log.Warn().Str("reason", reason).Msg("the last run on this volume crashed")
	}
	return p
}

func (p *pod) world(sidecar lifecycle.Sidecar) lifecycle.World {
	return lifecycle.World{
		Sidecar: &measured{Sidecar: sidecar, pod: p}, Volume: p, Record: p.record, Member: p, Server: p,
		Mode:        func() (bootstrap.Mode, string) { return bootstrap.ModeAfter(p.record) },
		LeaveReason: p.note.Leave,
	}
}

// Lock implements lifecycle.Volume. Once the volume is held, a crash has a place to leave its reason.
func (p *pod) Lock() error {
	if err := p.volume.Lock(); err != nil {
		return err
	}
	if err := p.note.Arm(); err != nil {
		p.log.Warn().Err(err).Msg("a crash would leave no reason behind")
	}
	return nil
}

// Probe implements lifecycle.Volume.
func (p *pod) Probe() error { return p.volume.Probe() }

// Configure implements lifecycle.Member. The copy for debug containers is no reason not to start.
func (p *pod) Configure(yaml []byte) error {
	if err := bootstrap.StoreConfig(p.flags.StoredConfigPath, yaml); err != nil {
		p.log.Warn().Err(err).Msg("the configuration is not kept for debugging")
	}
	checked, err := etcdconf.Parse(yaml)
	if err != nil {
		return err
	}
	if len(checked.Unknown) > 0 {
		p.log.Warn().Strs("keys", checked.Unknown).Msg("etcd does not know these keys of its configuration; ignored")
	}
	if len(checked.Ignored) > 0 {
		p.log.Warn().Strs("keys", checked.Ignored).Msg("the wrapper owns the log; these keys of etcd's configuration are ignored")
	}
	for _, doubt := range checked.Warnings {
		p.log.Warn().Msg("etcd's configuration: " + doubt)
	}
	p.warnOf(checked.Etcd)
	p.checked = checked
	p.certificates.add(checked.Etcd)
	p.member = member.New(checked.Etcd, member.Options{Log: p.log, Crash: p.crash})
	p.opening.Store(p.member)
	return nil
}

// warnOf says what is allowed and rarely meant.
func (p *pod) warnOf(etcd *embed.Config) {
	if etcd.ForceNewCluster {
		p.log.Warn().Msg("force-new-cluster is set: this start drops every other member from the cluster; take it out of etcd's configuration afterwards")
	}
	held, err := p.volume.Holds(etcd.Dir)
	if err != nil {
		p.log.Warn().Err(err).Send()
	} else if !held {
		p.log.Warn().Str("data_dir", etcd.Dir).Str("record", p.flags.recordPath()).
			Msg("the data directory is on another volume than the exit record, which can then outlive the data that it speaks of")
	}
}

// Expose implements lifecycle.Server.
func (p *pod) Expose() error {
	if p.flags.WrapperCertPath != "" {
		return nil
	}
	cert, key, ok := p.checked.ServerCertificate()
	if !ok {
		p.server.UsePlain()
		return nil
	}
	return p.server.UseTLS(cert, key)
}

// Open implements lifecycle.Member.
func (p *pod) Open(ctx context.Context) error {
	began := time.Now()
	if err := p.member.Open(ctx); err != nil {
		return err
	}
	took := time.Since(began)
	p.spent.start.Store(int64(took))
	p.metrics.EtcdStarted(took)
	p.memberID.Store(p.member.ID().String())
	watching, stop := context.WithCancel(context.Background())
	p.stopMonitor, p.monitored = stop, make(chan struct{})
	go func() {
		defer close(p.monitored)
		p.monitor.Run(watching, p.member)
	}()
	p.log.Info().Msg(p.usage())
	return nil
}

// usage is the line that says how to use the member that has just become ready.
func (p *pod) usage() string {
	scheme := "http"
	if _, _, ok := p.checked.ServerCertificate(); ok || p.flags.WrapperCertPath != "" {
		scheme = "https"
	}
	endpoint := p.checked.Etcd.AdvertiseClientUrls[0].String()
	return fmt.Sprintf("etcd is ready: etcdctl --endpoints=%s put key value; curl %s://127.0.0.1:%d/readyz", endpoint, scheme, p.flags.WrapperPort)
}

// Watch implements lifecycle.Member.
func (p *pod) Watch(ctx context.Context) error { return p.member.Watch(ctx) }

// Close implements lifecycle.Member. The monitor goes first: it must not look at an etcd that is being closed.
func (p *pod) Close() (opened bool, err error) {
	if p.stopMonitor != nil {
		p.stopMonitor()
		<-p.monitored
	}
	if p.member == nil {
		return false, nil
	}
	began := time.Now()
	opened, err = p.member.Close()
	if opened {
		took, drained := time.Since(began), p.member.Drained()
		p.spent.stop.Store(int64(took))
		p.spent.drain.Store(int64(drained))
		p.metrics.EtcdStopped(took, drained)
	}
	return opened, err
}

// settle puts away what only a crash needs.
func (p *pod) settle(outcome lifecycle.Outcome) {
	if outcome.Status == exitcode.Crashed {
		return
	}
	if err := p.note.Discard(); err != nil {
		p.log.Warn().Err(err).Msg("the crash note could not be put away")
	}
}

func (c *startCommand) address() string {
	return net.JoinHostPort("", strconv.Itoa(int(c.WrapperPort)))
}
