package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/rs/zerolog"

	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/cmd/logstream"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
)

const (
	// farewell limits how long the wrapper's server finishes requests after the lifecycle has ended.
	farewell = lifecycle.TakingDown * 4 / 5
	// saying limits the time for writing the termination message.
	saying = lifecycle.TakingDown * 2 / 5
)

// startCommand is `start-etcd`.
type startCommand struct {
	commandline.StartEtcd

	message *exitcode.Message
}

// execute runs the whole lifecycle and returns its exit status.
func (c *startCommand) execute(s streams) exitcode.Code {
	signals := make(chan os.Signal, 4)
	// Until the process ends: a second SIGTERM must not kill it with another status shortly before the end.
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	// etcd must not end because a terminal or the pipe of the log is closed.
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	syscall.Umask(0o077)

	log := c.newLog(s)
	logstream.CaptureOutput(log)
	log.Info().Str("version", version).Str("volume", c.VolumeDir).Bool("standalone", c.Standalone).Msg("etcd-wrapper starts")
	warnOfEtcdVariables(log)
	limitMemory(log)
	c.message = exitcode.NewMessage(c.TerminationPath)
	outcome := c.live(log, signals)
	return outcome.Status
}

// live runs the lifecycle until it ends. Reading files in assemble may hang; a signal ends that as well.
func (c *startCommand) live(log zerolog.Logger, signals <-chan os.Signal) lifecycle.Outcome {
	ready := make(chan *parts, 1)
	go func() { ready <- c.assemble(log) }()
	select {
	case p := <-ready:
		return p.run(log, signals, func(outcome lifecycle.Outcome, words string) { c.logOutcome(log, outcome, words) })
	case received := <-signals:
		outcome := lifecycle.Outcome{Reason: "stopped before the lifecycle started (" + received.String() + ")"}
		c.logOutcome(log, outcome, shortMessage(outcome))
		return outcome
	}
}

// run runs the lifecycle, reports how it ended and stops the components. It reports first and limits the rest, so
// that a hanging disk delays neither the report nor the end of the process.
func (p *parts) run(log zerolog.Logger, signals <-chan os.Signal, tell func(lifecycle.Outcome, string)) lifecycle.Outcome {
	if p.driver == nil {
		tell(p.outcome, shortMessage(p.outcome))
		return p.outcome
	}
	driven, ended := make(chan struct{}), make(chan struct{})
	defer close(ended)
	hurry, urge := context.WithCancel(context.Background())
	defer urge()
	go p.forward(signals, driven, urge, ended)
	outcome := p.driver.Run()
	close(driven)
	p.announcer.stop()
	if outcome.Status == exitcode.Clean { // the exit record is final, so the last acknowledged writes can now be uploaded
		p.runtime.Flush(hurry)
	}
	tell(outcome, p.report.TerminationMessage(outcome))
	p.takeDown(log, outcome)
	return outcome
}

// takeDown stops the components in reverse order, within lifecycle.TakingDown.
func (p *parts) takeDown(log zerolog.Logger, outcome lifecycle.Outcome) {
	err := bounded(lifecycle.TakingDown, func() error {
		p.runtime.Finish(outcome)
		for _, end := range slices.Backward(p.end) {
			end()
		}
		return nil
	})
	if err != nil {
		log.Info().Msg("the process ends before all of its parts have; " + cutOff)
	}
}

// logOutcome logs how a run ended, and writes the longer termination message.
func (c *startCommand) logOutcome(log zerolog.Logger, outcome lifecycle.Outcome, words string) {
	line := log.Info()
	if outcome.Status != exitcode.Clean {
		line = log.Error().Str("error", outcome.Reason)
	}
	line.Int("exit_status", int(outcome.Status)).Str("outcome", outcome.Status.String()).
		Msg("etcd-wrapper ends: " + outcome.Reason)
	if err := bounded(saying, func() error { return c.message.Finish(words) }); err != nil {
		log.Warn().Err(err).Msg("cannot write the termination message")
	}
}

// bounded calls do and waits for it at most for the limit, because operations on files may hang.
func bounded(limit time.Duration, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fmt.Errorf("no answer within %s", limit)
	}
}

// newLog returns the logger, in the format of --log-format.
func (c *startCommand) newLog(s streams) zerolog.Logger {
	to := s.log
	if c.LogFormat == "console" {
		to = logstream.Console(to, logstream.ConsoleOptions{Colour: s.colour, All: c.Level() == zerolog.DebugLevel})
	}
	return logstream.New(to, c.Level())
}

// echo is the time within which two equal signals count as one. timeout(1) signals its child and then its process
// group, which would otherwise count as a second signal and force the end.
const echo = 20 * time.Millisecond

// forward passes signals to the state machine. A signal after the machine has ended cancels the final upload as well.
func (p *parts) forward(signals <-chan os.Signal, driven <-chan struct{}, urge func(), ended <-chan struct{}) {
	var last os.Signal
	var at time.Time
	for {
		select {
		case received := <-signals:
			number, ok := received.(syscall.Signal)
			if ok && (received != last || time.Since(at) > echo) {
				p.announcer.stop()
				p.driver.Signal(number)
				select {
				case <-driven:
					urge()
				default:
				}
			}
			last, at = received, time.Now()
		case <-ended:
			return
		}
	}
}

// limitMemory sets the memory limit of the Go runtime below that of the container, at which the kernel kills the
// process without a message.
func limitMemory(log zerolog.Logger) {
	switch limit, err := memlimit.Set(); {
	case err != nil: // no containers on macOS
		log.Warn().Err(err).Msg("the container's memory limit is not known")
	case limit < math.MaxInt64:
		log.Info().Int64("bytes", limit).Msg("the memory limit of Go is set")
	}
}
