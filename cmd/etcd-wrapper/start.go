package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
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
const farewell = 300 * time.Millisecond

// execute runs the whole lifecycle and returns how it ended.
func (c *startCommand) execute(s streams) exitcode.Status {
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
	outcome, words := c.live(log, signals)
	log.Info().Int("exit_status", int(outcome.Status)).Str("outcome", outcome.Status.String()).Msg("etcd-wrapper ends: " + outcome.Reason)
	if err := exitcode.Explain(c.TerminationPath, words); err != nil {
		log.Warn().Err(err).Send()
	}
	return outcome.Status
}

// live puts the parts together, drives the lifecycle to its end and takes the parts down again in reverse order. Beside
// the outcome it returns the termination message.
func (c *startCommand) live(log zerolog.Logger, signals <-chan os.Signal) (lifecycle.Outcome, string) {
	pod := newPod(c, log)
	sidecar, end, err := c.sidecar(log)
	if err != nil {
		return failed(log, exitcode.Usage, err)
	}
	defer end()
	driver := lifecycle.NewDriver(lifecycle.Options{
		World: pod.world(sidecar), Log: log, ReadyTimeout: c.EtcdReadyTimeout,
	})
	account := account{pod, driver}
	pod.crash, pod.metrics = driver.Crash, account.newMetrics()
	stopServer, status, err := c.serve(log, account)
	if err != nil {
		return failed(log, status, err)
	}
	defer stopServer()
	ended := make(chan struct{})
	defer close(ended)
	go forward(signals, driver, ended)
	outcome := driver.Run()
	pod.settle(outcome)
	return outcome, account.lastWords(outcome)
}

func failed(log zerolog.Logger, status exitcode.Status, err error) (lifecycle.Outcome, string) {
	log.Error().Err(err).Msg("etcd-wrapper cannot start")
	return lifecycle.Outcome{Status: status, Reason: err.Error()}, fmt.Sprintf("%s: %s\n", status, err)
}

// sidecar returns what answers for the data directory, and what ends it.
func (c *startCommand) sidecar(log zerolog.Logger) (lifecycle.Sidecar, func(), error) {
	if c.Standalone {
		initialiser := standalone.New(standalone.Options{
			DataDir: c.dataDir(), ConfigFile: c.EtcdConfigFile, Log: log, Verify: verifyInChild(),
		})
		return initialiser, initialiser.Close, nil
	}
	client, err := bootstrap.NewClient(bootstrap.ClientOptions{
		HostPort: c.SidecarHostPort, TLS: c.SidecarTLS, CAPath: c.SidecarCAPath,
	})
	return client, func() {}, err
}

// serve binds the wrapper's own server and lets it answer as soon as it can know whether to speak TLS.
func (c *startCommand) serve(log zerolog.Logger, account account) (func(), exitcode.Status, error) {
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

func (c *verifyCommand) execute(s streams) exitcode.Status {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return exitcode.Status(standalone.RunChild(ctx, filepath.Clean(c.DataDir), bootstrap.Mode(c.Mode), s.out))
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
