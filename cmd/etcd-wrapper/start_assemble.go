package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/rs/zerolog"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/cmd/backups"
	"etcd-wrapper/cmd/report"
	"etcd-wrapper/cmd/runtime"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness/metrics"
	"etcd-wrapper/recovery"
	"etcd-wrapper/recovery/standalone"
)

// parts are what a run is made of.
type parts struct {
	driver  *lifecycle.Driver // nil if there is nothing to run
	world   *runtime.World
	report  *report.Report
	outcome lifecycle.Outcome // why there is nothing to run
	end     []func()          // in the order of the beginning
}

// assemble puts the parts together; each is given what was made before it. From its end on the wrapper's own
// server answers. Nobody else is asked anything yet, and the volume is as it was: all that begins in parts.run.
func (c *startCommand) assemble(log zerolog.Logger) *parts {
	settings, err := backups.Read(c.Backups)
	if err == nil {
		err = settings.Keys.CheckOwn()
	}
	if err != nil {
		return failed(exitcode.Usage, err)
	}
	counts := metrics.New()
	all := runtime.New(&c.StartEtcd, counts, log)
	kept := c.backups(settings, all.Gate(), log)
	recoverer := c.recovery(settings, kept, log)
	renewed, err := c.leases(all, kept, log)
	if err != nil {
		return failed(exitcode.Usage, err)
	}
	all.WorksWith(kept, recoverer, renewed)
	sidecar, end, err := c.sidecar(recoverer, log)
	if err != nil {
		return failed(blame(err), err)
	}
	driver := lifecycle.NewDriver(lifecycle.Options{
		World: all.ForLifecycle(sidecar), Log: log, ReadyTimeout: c.EtcdReadyTimeout,
	})
	p := &parts{driver: driver, world: all, report: report.New(driver, all, version, podName())}
	stopServer, status, err := c.serve(log, p, c.routes(p.report, counts, kept))
	if err != nil {
		return failed(status, err)
	}
	p.end = []func(){end, stopServer, c.watch(log, p.report)}
	return p
}

// sidecar returns what answers for the data directory, and what ends it.
func (c *startCommand) sidecar(recoverer *recovery.Recovery, log zerolog.Logger) (lifecycle.Sidecar, func(), error) {
	if c.Standalone {
		initializer := standalone.New(standalone.Options{
			DataDir: c.DataDir(), ConfigFile: c.EtcdConfigFile, PodName: podName(), Log: log, Verify: verifyInChild(),
			Recover: recoverer.Recover,
		})
		if err := initializer.CheckConfig(); err != nil {
			return nil, nil, fmt.Errorf("--etcd-config-file: %w", err)
		}
		return initializer, initializer.Close, nil
	}
	client, err := bootstrap.NewClient(bootstrap.ClientOptions{
		HostPort: c.SidecarHostPort, TLS: c.SidecarTLS, CAPath: c.SidecarCAPath,
	})
	return client, func() {}, err
}

// watch has the log and the termination message kept up to date until what it returns is called.
func (c *startCommand) watch(log zerolog.Logger, about *report.Report) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		about.Watch(ctx, log, func() {
			if err := c.message.Prepare(about.LostWords(c.CrashNotePath())); err != nil {
				log.Debug().Err(err).Msg("Kubernetes would not be told of a kill")
			}
		})
	}()
	return func() {
		cancel()
		<-ended
	}
}

// podName is whom people know the process by: a pod's host name is its own, unless the pod is on the host's network.
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

// blame tells a flag that is wrong from a configuration that is.
func blame(err error) exitcode.Code {
	if errors.Is(err, standalone.ErrConfig) {
		return exitcode.BadConfig
	}
	return exitcode.Usage
}

// briefly is the termination message of a run that did not begin.
func briefly(outcome lifecycle.Outcome) string {
	return fmt.Sprintf("%s: %s\n", outcome.Status, outcome.Reason)
}
