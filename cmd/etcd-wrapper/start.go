package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/standalone"
	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/cmd/logstream"
	"etcd-wrapper/cmd/report"
	"etcd-wrapper/cmd/world"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/metrics"
	"etcd-wrapper/readiness/page"
	"etcd-wrapper/readiness/status"
)

// farewell bounds what is done after the lifecycle has ended: letting the last requests to the own server finish.
const farewell = lifecycle.TakingDown * 2 / 5

// startCommand is `start-etcd`.
type startCommand struct {
	commandline.StartEtcd

	message *exitcode.Message
}

// execute runs the whole lifecycle and returns how it ended.
func (c *startCommand) execute(s streams) exitcode.Code {
	signals := make(chan os.Signal, 4)
	// Until the process ends: a second SIGTERM in its last moments must not kill it, with another status.
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	// A terminal that goes away, or the reader of our log, must not end etcd.
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	syscall.Umask(0o077)

	log := c.newLog(s)
	logstream.CaptureLibraries(log)
	log.Info().Str("version", version).Str("volume", c.VolumeDir).Bool("standalone", c.Standalone).Msg("etcd-wrapper starts")
	limitMemory(log)
	c.message = exitcode.NewMessage(c.TerminationPath)
	outcome := c.live(log, signals)
	return outcome.Status
}

// newLog returns the log in the form that was asked for.
func (c *startCommand) newLog(s streams) zerolog.Logger {
	to := s.log
	if c.LogFormat == "console" {
		to = logstream.ForPeople(to, logstream.Look{Colour: s.colour, All: c.Level() == zerolog.DebugLevel})
	}
	return logstream.New(to, c.Level())
}

// tell says how a run ended, in the log and, in more words, where Kubernetes looks.
func (c *startCommand) tell(log zerolog.Logger, outcome lifecycle.Outcome, words string) {
	line := log.Info()
	if outcome.Status != exitcode.Clean {
		line = log.Error().Str("error", outcome.Reason)
	}
	line.Int("exit_status", int(outcome.Status)).Str("outcome", outcome.Status.String()).
		Msg("etcd-wrapper ends: " + outcome.Reason)
	if err := bounded(c.TerminationPath, func() error { return c.message.Say(words) }); err != nil {
		log.Warn().Err(err).Msg("Kubernetes is not told why")
	}
}

// bounded lets a write take a moment and no longer: a file that hangs must not keep the process.
func bounded(path string, write func() error) error {
	done := make(chan error, 1)
	go func() { done <- write() }()
	select {
	case err := <-done:
		return err
	case <-time.After(farewell):
		return fmt.Errorf("%s: no answer within %s", path, farewell)
	}
}

// live drives the lifecycle to its end. Putting the parts together reads files, which may hang: a signal ends that, too.
func (c *startCommand) live(log zerolog.Logger, signals <-chan os.Signal) lifecycle.Outcome {
	ready := make(chan *parts, 1)
	go func() { ready <- c.assemble(log) }()
	select {
	case p := <-ready:
		ended := make(chan struct{})
		if p.driver != nil {
			go p.greet(log, c.LogFormat == "console", ended)
		}
		defer close(ended)
		return p.run(signals, func(outcome lifecycle.Outcome, words string) { c.tell(log, outcome, words) })
	case received := <-signals:
		outcome := lifecycle.Outcome{Reason: "stopped before the lifecycle began (" + received.String() + ")"}
		c.tell(log, outcome, briefly(outcome))
		return outcome
	}
}

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
	sidecar, end, err := c.sidecar(log)
	if err != nil {
		return failed(blame(err), err)
	}
	counts := metrics.New()
	all := world.New(&c.StartEtcd, counts, log)
	driver := lifecycle.NewDriver(lifecycle.Options{
		World: all.ForLifecycle(sidecar), Log: log, ReadyTimeout: c.EtcdReadyTimeout,
	})
	p := &parts{driver: driver, world: all, report: report.New(driver, all, version, podName())}
	stopServer, status, err := c.serve(log, p, routes(p.report, counts))
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
func routes(about *report.Report, counts *metrics.Metrics) map[string]http.Handler {
	states := make([]string, len(lifecycle.States))
	for i, state := range lifecycle.States {
		states[i] = string(state.Name)
	}
	table, _ := lifecycle.JSON(lifecycle.Table) // it is made of texts, so nothing can fail
	return map[string]http.Handler{
		"GET /{$}":              page.Handler(lifecycle.Overview(), table),
		"GET /statemachine.svg": page.Picture(lifecycle.SVG()),
		"GET /lifecycle":        status.Handler(about.Source()),
		"GET /metrics":          counts.Handler(about.Document, states),
	}
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

// run drives the lifecycle, tells how it ended and takes the parts down again in reverse order. The telling comes first,
// and the rest is bounded: a disk that hangs must not keep the reason back, nor the process.
func (p *parts) run(signals <-chan os.Signal, tell func(lifecycle.Outcome, string)) lifecycle.Outcome {
	if p.driver == nil {
		tell(p.outcome, briefly(p.outcome))
		return p.outcome
	}
	ended := make(chan struct{})
	go forward(signals, p.driver, ended)
	outcome := p.driver.Run()
	tell(outcome, p.report.LastWords(outcome))
	down := make(chan struct{})
	go func() {
		defer close(down)
		p.world.Settle(outcome)
		for _, end := range slices.Backward(p.end) {
			end()
		}
	}()
	select {
	case <-down:
	case <-time.After(lifecycle.TakingDown):
	}
	close(ended)
	return outcome
}

// sidecar returns what answers for the data directory, and what ends it.
func (c *startCommand) sidecar(log zerolog.Logger) (lifecycle.Sidecar, func(), error) {
	if c.Standalone {
		initializer := standalone.New(standalone.Options{
			DataDir: c.DataDir(), ConfigFile: c.EtcdConfigFile, Log: log, Verify: verifyInChild(),
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
		Routes: routes, Log: log,
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
