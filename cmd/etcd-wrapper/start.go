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
	// shutdownTimeout limits how long the wrapper's server may finish open requests after the lifecycle has ended.
	shutdownTimeout = lifecycle.TakingDown * 4 / 5
	// messageTimeout limits how long writing the termination message may take.
	messageTimeout = lifecycle.TakingDown * 2 / 5
)

// startCommand implements `start-etcd`.
type startCommand struct {
	commandline.StartEtcd

	message *exitcode.Message
}

// execute runs the lifecycle and returns its exit status.
func (c *startCommand) execute(s streams) exitcode.Code {
	signals := make(chan os.Signal, 4)
	// Signals are handled until the process exits, because a second SIGTERM near the end must not kill the process
	// and change its exit status.
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	// etcd must keep running if the terminal or the pipe that receives the log is closed.
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	syscall.Umask(0o077)

	log := c.newLog(s)
	logstream.CaptureOutput(log)
	log.Info().Str("version", version).Str("volume", c.VolumeDir).Bool("standalone", c.Standalone).Msg("starting etcd-wrapper")
	warnOfEtcdVariables(log)
	limitMemory(log)
	c.message = exitcode.NewMessage(c.TerminationPath)
	outcome := c.runLifecycle(log, signals)
	return outcome.Status
}

// runLifecycle runs the lifecycle until it ends. A signal also interrupts assemble, which may hang while reading
// files.
func (c *startCommand) runLifecycle(log zerolog.Logger, signals <-chan os.Signal) lifecycle.Outcome {
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

// run runs the lifecycle, calls report with the outcome and the termination message, and stops the components. report
// is called first, and every later step has a time limit, so that a hanging disk delays neither the message nor the
// exit.
func (p *parts) run(log zerolog.Logger, signals <-chan os.Signal, report func(lifecycle.Outcome, string)) lifecycle.Outcome {
	if p.driver == nil {
		report(p.outcome, shortMessage(p.outcome))
		return p.outcome
	}
	stopped, ended := make(chan struct{}), make(chan struct{})
	defer close(ended)
	uploadCtx, cancelUpload := context.WithCancel(context.Background())
	defer cancelUpload()
	go p.forward(signals, stopped, cancelUpload, ended)
	outcome := p.driver.Run()
	close(stopped)
	p.announcer.stop()
	if outcome.Status == exitcode.Clean { // the exit record is final, so the remaining writes can be uploaded
		p.runtime.Flush(uploadCtx)
	}
	report(outcome, p.report.TerminationMessage(outcome))
	p.takeDown(log, outcome)
	return outcome
}

// takeDown stops the components in reverse order, within the time limit lifecycle.TakingDown.
func (p *parts) takeDown(log zerolog.Logger, outcome lifecycle.Outcome) {
	err := bounded(lifecycle.TakingDown, func() error {
		p.runtime.Finish(outcome)
		for _, end := range slices.Backward(p.end) {
			end()
		}
		return nil
	})
	if err != nil {
		log.Info().Msg("not all components stopped in time; " + openRequests)
	}
}

// logOutcome logs how a run ended and writes the long version of the termination message.
func (c *startCommand) logOutcome(log zerolog.Logger, outcome lifecycle.Outcome, message string) {
	line := log.Info()
	if outcome.Status != exitcode.Clean {
		line = log.Error().Str("error", outcome.Reason)
	}
	line.Int("exit_status", int(outcome.Status)).Str("outcome", outcome.Status.String()).
		Msg("etcd-wrapper is exiting: " + outcome.Reason)
	if err := bounded(messageTimeout, func() error { return c.message.Finish(message) }); err != nil {
		log.Warn().Err(err).Msg("cannot write the termination message")
	}
}

// bounded calls do and waits for at most limit, because file operations may hang.
func bounded(limit time.Duration, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fmt.Errorf("timed out after %s", limit)
	}
}

// newLog returns a logger with the format of --log-format.
func (c *startCommand) newLog(s streams) zerolog.Logger {
	to := s.log
	if c.LogFormat == "console" {
		to = logstream.Console(to, logstream.ConsoleOptions{Colour: s.colour, All: c.Level() == zerolog.DebugLevel})
	}
	return logstream.New(to, c.Level())
}

// duplicateWindow is the interval within which two identical signals are treated as one. timeout(1) sends the signal
// both to its child and to its process group. Without this interval, the wrapper would receive two signals and exit
// immediately.
const duplicateWindow = 20 * time.Millisecond

// forward passes signals to the state machine. A signal that arrives after the state machine has ended cancels the
// final upload.
func (p *parts) forward(signals <-chan os.Signal, stopped <-chan struct{}, cancelUpload func(), ended <-chan struct{}) {
	var last os.Signal
	var at time.Time
	for {
		select {
		case received := <-signals:
			number, ok := received.(syscall.Signal)
			if ok && (received != last || time.Since(at) > duplicateWindow) {
				p.announcer.stop()
				p.driver.Signal(number)
				select {
				case <-stopped:
					cancelUpload()
				default:
				}
			}
			last, at = received, time.Now()
		case <-ended:
			return
		}
	}
}

// limitMemory sets the Go runtime's memory limit slightly below the container's limit. If a process exceeds the
// container's limit, the kernel kills it without leaving a message.
func limitMemory(log zerolog.Logger) {
	switch limit, err := memlimit.Set(); {
	case err != nil: // for example on macOS, which has no containers
		log.Warn().Err(err).Msg("cannot read the container's memory limit")
	case limit < math.MaxInt64:
		log.Info().Int64("bytes", limit).Msg("set the memory limit of the Go runtime")
	}
}
