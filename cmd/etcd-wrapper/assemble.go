package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"

	"github.com/rs/zerolog"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/backup"
	"etcd-wrapper/bootstrap/recovery"
	"etcd-wrapper/bootstrap/standalone"
	"etcd-wrapper/cmd/backups"
	"etcd-wrapper/cmd/backups/local"
	"etcd-wrapper/cmd/report"
	"etcd-wrapper/cmd/world"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/metrics"
	"etcd-wrapper/readiness/page"
	"etcd-wrapper/readiness/status"
)

// parts are what a run is made of.
type parts struct {
	driver  *lifecycle.Driver // nil if there is nothing to run
	world   *world.World
	report  *report.Report
	outcome lifecycle.Outcome // why there is nothing to run
	end     []func()          // in the order of the beginning
}

// assemble puts the parts together.
func (c *startCommand) assemble(log zerolog.Logger) *parts {
	settings, err := backups.Read(c.Backups)
	if err == nil {
		err = settings.Keys.CheckOwn()
	}
	if err != nil {
		return failed(exitcode.Usage, err)
	}
	counts := metrics.New()
	all := world.New(&c.StartEtcd, counts, log)
	kept := c.backups(settings, all.Gate(), log)
	recoverer := c.recovery(settings, kept, log)
	sidecar, end, err := c.sidecar(recoverer, log)
	if err != nil {
		return failed(blame(err), err)
	}
	all.BackedUpBy(kept)
	all.RecoveredBy(recoverer)
	renewed, err := c.leases(all, kept, log)
	if err != nil {
		return failed(exitcode.Usage, err)
	}
	all.Leased(renewed)
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

// podName is whom people know the process by: a pod's host name is its own, unless the pod is on the host's network.
func podName() string {
	name := os.Getenv("POD_NAME")
	if name == "" {
		name, _ = os.Hostname()
	}
	return name
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

// routes are what the wrapper's server answers beside its own endpoints.
func (c *startCommand) routes(about *report.Report, counts *metrics.Metrics, kept *backup.Backups) map[string]http.Handler {
	states := make([]string, len(lifecycle.States))
	for i, state := range lifecycle.States {
		states[i] = string(state.Name)
	}
	table, _ := lifecycle.JSON(lifecycle.Table) // it is made of texts, so nothing can fail
	served := map[string]http.Handler{
		"GET /{$}":              page.Handler(lifecycle.Overview(), table),
		"GET /statemachine.svg": page.Picture(lifecycle.SVG()),
		"GET /lifecycle":        status.Handler(about.Source()),
		"GET /metrics":          counts.Handler(about.Document, states),
	}
	maps.Copy(served, local.Routes(backups.Told(c.Backups, c.VolumeDir), maker(kept)))
	return served
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

// sidecar returns what answers for the data directory, and what ends it.
func (c *startCommand) sidecar(recoverer *recovery.Recovery, log zerolog.Logger) (lifecycle.Sidecar, func(), error) {
	if c.Standalone {
		initializer := standalone.New(standalone.Options{
			DataDir: c.DataDir(), ConfigFile: c.EtcdConfigFile, PodName: podName(), Log: log, Verify: verifyInChild(),
			Recover: c.recovers(recoverer),
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

// serve binds the wrapper's own server and lets it answer from the first instant, over TLS where etcd is expected to.
func (c *startCommand) serve(log zerolog.Logger, p *parts, routes map[string]http.Handler) (func(), exitcode.Code, error) {
	server, err := readiness.Listen(readiness.Options{
		Address: c.Address(), Phase: p.report.Phase, Stop: p.driver.Stop, StopFromAnywhere: c.StopFromAnywhere,
		Defragment: p.world.Defragment,
		Routes:     routes, Log: log,
	}, p.world.Monitor())
	if err != nil {
		return nil, exitcode.ServerTaken, fmt.Errorf("%w; end the process that listens there, or give another --etcd-wrapper-port", err)
	}
	p.world.Connect(server, p.driver.Crash)
	if status, err := c.choose(server); err != nil {
		return nil, status, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(); err != nil {
			p.driver.ListenerLost(err)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), farewell)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			log.Debug().Err(err).Msg("requests were cut off at the end")
		}
		<-ended
	}, exitcode.Clean, nil
}

// choose lets the server speak as long as etcd's configuration is not known.
func (c *startCommand) choose(server *readiness.Server) (exitcode.Code, error) {
	switch {
	case c.WrapperCertPath != "":
		if err := server.UseTLS(c.WrapperCertPath, c.WrapperKeyPath); err != nil {
			return exitcode.Usage, fmt.Errorf("--etcd-wrapper-cert-path: %w", err)
		}
	case c.ExpectsTLS():
		if err := server.UseTemporary(); err != nil {
			return exitcode.ServerTaken, err
		}
	default:
		server.UsePlain()
	}
	return exitcode.Clean, nil
}
