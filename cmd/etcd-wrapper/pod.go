package main

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/bootstrap/member"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness"
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

	checked *etcdconf.Checked
	member  *member.Member

	stopMonitor context.CancelFunc
	monitored   chan struct{}
}

func newPod(flags *startCommand, log zerolog.Logger) *pod {
	p := &pod{
		flags:   flags,
		log:     log,
		volume:  bootstrap.NewVolume(flags.VolumeDir),
		record:  exitcode.NewRecord(flags.recordPath()),
		note:    exitcode.NewCrashNote(flags.crashNotePath()),
		monitor: readiness.NewMonitor(log),
	}
	if reason := p.note.Previous(); reason != "" {
		log.Warn().Str("reason", reason).Msg("the last run on this volume crashed")
	}
	return p
}

func (p *pod) world(sidecar lifecycle.Sidecar) lifecycle.World {
	return lifecycle.World{
		Sidecar: sidecar, Volume: p.volume, Record: p.record, Member: p, Front: p,
		Mode:        func() (bootstrap.Mode, string) { return bootstrap.ModeAfter(p.record) },
		LeaveReason: p.note.Leave,
	}
}

// Configure implements lifecycle.Member. The copy for debug containers is no reason not to start.
func (p *pod) Configure(yaml []byte) error {
	if err := bootstrap.StoreConfig(p.flags.StoredConfigPath, yaml); err != nil {
		p.log.Warn().Err(err).Send()
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
	p.warnOf(checked.Etcd)
	p.checked = checked
	p.member = member.New(checked.Etcd, member.Options{Log: p.log, Crash: p.crash})
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

// Expose implements lifecycle.Front.
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
	if err := p.note.Arm(); err != nil {
		p.log.Warn().Err(err).Send()
	}
	if err := p.member.Open(ctx); err != nil {
		return err
	}
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
	return p.member.Close()
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
