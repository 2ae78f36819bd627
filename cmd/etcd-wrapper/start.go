package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/standalone"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness"
)

// farewell bounds what is done after the lifecycle has ended: letting the last requests to the own server finish.
const farewell = lifecycle.TakingDown * 2 / 5

// execute runs the whole lifecycle and returns how it ended.
func (c *startCommand) execute(s streams) exitcode.Code {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	// A terminal that goes away, or the reader of our log, must not end etcd.
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	syscall.Umask(0o077)

	log := c.newLog(s.log)
	routeForeignLogs(log)
	limitMemory(log)
	log.Info().Str("version", version).Str("volume", c.VolumeDir).Bool("standalone", c.Standalone).Msg("etcd-wrapper starts")
	outcome := c.live(log, signals)
	return outcome.Status
}

// tell says how a run ended, in the log and, in more words, where Kubernetes looks.
func (c *startCommand) tell(log zerolog.Logger, outcome lifecycle.Outcome, words string) {
	line := log.Info()
	if outcome.Status != exitcode.Clean {
		line = log.Error().Str("error", outcome.Reason)
	}
	line.Int("exit_status", int(outcome.Status)).Str("outcome", outcome.Status.String()).
		Msg("etcd-wrapper ends: " + outcome.Reason)
	if err := exitcode.Explain(c.TerminationPath, words); err != nil {
		log.Warn().Err(err).Msg("Kubernetes is not told why")
	}
}

// live drives the lifecycle to its end. Putting the parts together reads files, which may hang: a signal ends that, too.
func (c *startCommand) live(log zerolog.Logger, signals <-chan os.Signal) lifecycle.Outcome {
	ready := make(chan *parts, 1)
	go func() { ready <- c.assemble(log) }()
	select {
	case p := <-ready:
		return p.run(signals, func(outcome lifecycle.Outcome, words string) { c.tell(log, outcome, words) })
	case received := <-signals:
		outcome := lifecycle.Outcome{Reason: "stopped before the lifecycle began (" + received.String() + ")"}
		c.tell(log, outcome, briefly(outcome))
		return outcome
	}
}

// parts are what a run is made of.
type parts struct {
	account account
	outcome lifecycle.Outcome // why there is nothing to run, if the account is empty
	end     []func()          // in the order of the beginning
}

// assemble puts the parts together.
func (c *startCommand) assemble(log zerolog.Logger) *parts {
	sidecar, end, err := c.sidecar(log)
	if err != nil {
		return failed(exitcode.Usage, err)
	}
	pod := newPod(c, log)
	driver := lifecycle.NewDriver(lifecycle.Options{
		World: pod.world(sidecar), Log: log, ReadyTimeout: c.EtcdReadyTimeout,
	})
	account := account{pod, driver}
	pod.crash, pod.metrics = driver.Crash, account.newMetrics()
	stopServer, status, err := c.serve(log, account)
	if err != nil {
		return failed(status, err)
	}
	return &parts{account: account, end: []func(){end, stopServer}}
}

func failed(status exitcode.Code, err error) *parts {
	return &parts{outcome: lifecycle.Outcome{Status: status, Reason: err.Error()}}
}

// briefly is the termination message of a run that did not begin.
func briefly(outcome lifecycle.Outcome) string {
	return fmt.Sprintf("%s: %s\n", outcome.Status, outcome.Reason)
}

// run drives the lifecycle, tells how it ended and takes the parts down again in reverse order. The telling comes first,
// and the rest is bounded: a disk that hangs must not keep the reason back, nor the process.
func (p *parts) run(signals <-chan os.Signal, tell func(lifecycle.Outcome, string)) lifecycle.Outcome {
	if p.account.driver == nil {
		tell(p.outcome, briefly(p.outcome))
		return p.outcome
	}
	ended := make(chan struct{})
	go forward(signals, p.account.driver, ended)
	outcome := p.account.driver.Run()
	tell(outcome, p.account.lastWords(outcome))
	down := make(chan struct{})
	go func() {
		defer close(down)
		p.account.pod.settle(outcome)
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
			DataDir: c.dataDir(), ConfigFile: c.EtcdConfigFile, Log: log, Verify: verifyInChild(),
		})
		return initializer, initializer.Close, nil
	}
	client, err := bootstrap.NewClient(bootstrap.ClientOptions{
		HostPort: c.SidecarHostPort, TLS: c.SidecarTLS, CAPath: c.SidecarCAPath,
	})
	return client, func() {}, err
}

// serve binds the wrapper's own server and lets it answer as soon as it can know whether to speak TLS.
func (c *startCommand) serve(log zerolog.Logger, account account) (func(), exitcode.Code, error) {
	pod, driver := account.pod, account.driver
	server, err := readiness.Listen(readiness.Options{
		Address: c.address(), Phase: account.phase, Stop: driver.Stop, StopFromAnywhere: c.StopFromAnywhere,
		Routes: account.routes(), Log: log,
	}, pod.monitor)
	if err != nil {
		return nil, exitcode.ServerTaken, err
	}
	pod.server = server
	switch {
	case c.WrapperCertPath != "":
		if err := server.UseTLS(c.WrapperCertPath, c.WrapperKeyPath); err != nil {
			return nil, exitcode.Usage, fmt.Errorf("--etcd-wrapper-cert-path: %w", err)
		}
	case !c.expectsTLS():
		server.UsePlain()
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(); err != nil {
			driver.Crash(err)
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

// verifyCommand is the process of its own that a validation runs in: etcd's and bbolt's checks may panic on corrupt
// data, in goroutines of theirs.
type verifyCommand struct {
	DataDir string `name:"data-dir" required:"" help:"etcd's data directory."`
	Mode    string `name:"mode" enum:"sanity,full" default:"full" help:"How deeply to validate."`
}

func (c *verifyCommand) execute(s streams) exitcode.Code {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return exitcode.Code(standalone.RunChild(ctx, filepath.Clean(c.DataDir), bootstrap.Mode(c.Mode), s.out))
}

func verifyInChild() standalone.VerifyFunc {
	executable, err := os.Executable()
	if err != nil {
		return nil // validate in this process then
	}
	return standalone.InChild(executable, func(dataDir string, mode bootstrap.Mode) []string {
		return []string{"verify-data", "--data-dir", dataDir, "--mode", string(mode)}
	})
}
