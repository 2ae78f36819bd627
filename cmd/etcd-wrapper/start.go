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
	// farewell bounds how long the last requests to the own server may take, once the lifecycle has ended.
	farewell = lifecycle.TakingDown * 4 / 5
	// saying bounds how long Kubernetes' message may take to be written.
	saying = lifecycle.TakingDown * 2 / 5
)

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
	logstream.CaptureOutput(log)
	log.Info().Str("version", version).Str("volume", c.VolumeDir).Bool("standalone", c.Standalone).Msg("etcd-wrapper starts")
	warnOfEtcdVariables(log)
	limitMemory(log)
	c.message = exitcode.NewMessage(c.TerminationPath)
	outcome := c.live(log, signals)
	return outcome.Status
}

// live drives the lifecycle to its end. Putting the parts together reads files, which may hang: a signal ends that, too.
func (c *startCommand) live(log zerolog.Logger, signals <-chan os.Signal) lifecycle.Outcome {
	ready := make(chan *parts, 1)
	go func() { ready <- c.assemble(log) }()
	select {
	case p := <-ready:
		ended := make(chan struct{})
		if p.driver != nil {
			go p.announceReady(log, c.LogFormat == "console", ended)
		}
		defer close(ended)
		return p.run(log, signals, func(outcome lifecycle.Outcome, words string) { c.logOutcome(log, outcome, words) })
	case received := <-signals:
		outcome := lifecycle.Outcome{Reason: "stopped before the lifecycle began (" + received.String() + ")"}
		c.logOutcome(log, outcome, shortMessage(outcome))
		return outcome
	}
}

// run drives the lifecycle, says how it ended and takes the parts down. What it says comes first, and the rest is bounded:
// a disk that hangs delays neither the reason nor the process's end.
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
	p.systemd.stop()
	if outcome.Status == exitcode.Clean { // the exit record is settled: what etcd took on at last may go into the store
		p.runtime.Flush(hurry)
	}
	tell(outcome, p.report.TerminationMessage(outcome))
	p.takeDown(log, outcome)
	return outcome
}

// takeDown ends the parts, the last one first, and waits for that no longer than lifecycle.TakingDown.
func (p *parts) takeDown(log zerolog.Logger, outcome lifecycle.Outcome) {
	down := make(chan struct{})
	go func() {
		defer close(down)
		p.runtime.Settle(outcome)
		for _, end := range slices.Backward(p.end) {
			end()
		}
	}()
	select {
	case <-down:
	case <-time.After(lifecycle.TakingDown):
		log.Info().Msg("the process ends before all of its parts have; " + cutOff)
	}
}

// logOutcome says how a run ended, in the log and, in more words, where Kubernetes looks.
func (c *startCommand) logOutcome(log zerolog.Logger, outcome lifecycle.Outcome, words string) {
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
	case <-time.After(saying):
		return fmt.Errorf("%s: no answer within %s", path, saying)
	}
}

// newLog returns the log in the format of --log-format.
func (c *startCommand) newLog(s streams) zerolog.Logger {
	to := s.log
	if c.LogFormat == "console" {
		to = logstream.Console(to, logstream.ConsoleOptions{Colour: s.colour, All: c.Level() == zerolog.DebugLevel})
	}
	return logstream.New(to, c.Level())
}

// glance is how often greet looks whether the member is ready.
const glance = 100 * time.Millisecond

// announceReady says, as soon as the member may be used, how: in three lines for people, in one for a log. It ends with the run.
func (p *parts) announceReady(log zerolog.Logger, forPeople bool, ended <-chan struct{}) {
	for !p.ready() {
		select {
		case <-time.After(glance):
		case <-ended:
			return
		}
	}
	endpoint, page := p.runtime.Usage()
	put := os.Args[0] + " etcdctl --endpoints=" + endpoint + " put greeting hello"
	if !forPeople {
		log.Info().Str("write_a_key", put).Str("page", page).Msg("etcd is ready")
		return
	}
	log.Info().Msg("to write a key: " + put)
	log.Info().Msg("to see how it is: " + page)
	log.Info().Msg("to stop: Ctrl-C, or kill -TERM its process")
}

// ready waits for the log to say so first: what is said here is to stay in sight.
func (p *parts) ready() bool {
	return p.report.LoggedReady() && p.driver.Snapshot().State == lifecycle.Serving
}

// echo is how close together two equal signals count as one. timeout(1) signals its child and then the child's whole
// process group; without this its one wish would force the end.
const echo = 20 * time.Millisecond

// forward hands signals to the machine. One that comes when that has been driven to its end urges what is still done to
// end, too.
func (p *parts) forward(signals <-chan os.Signal, driven <-chan struct{}, urge func(), ended <-chan struct{}) {
	var last os.Signal
	var at time.Time
	for {
		select {
		case received := <-signals:
			number, ok := received.(syscall.Signal)
			if ok && (received != last || time.Since(at) > echo) {
				p.systemd.stop()
				p.driver.Signal(number)
				hurryAfter(driven, urge)
			}
			last, at = received, time.Now()
		case <-ended:
			return
		}
	}
}

func hurryAfter(driven <-chan struct{}, urge func()) {
	select {
	case <-driven:
		urge()
	default:
	}
}

// limitMemory has Go's garbage collector work harder near the container's limit, where the kernel would end the process
// without a word. GOMEMLIMIT in the environment takes precedence.
func limitMemory(log zerolog.Logger) {
	limit, err := memlimit.Set()
	_, given := os.LookupEnv("GOMEMLIMIT")
	switch {
	case err != nil:
		log.Warn().Err(err).Msg("the container's memory limit is not known")
	case limit == math.MaxInt64:
		log.Info().Msg("memory is not limited")
	case given:
		log.Info().Int64("bytes", limit).Msg("GOMEMLIMIT is set in the environment")
	default:
		log.Info().Int64("bytes", limit).Msg("GOMEMLIMIT is 90% of the container's memory limit")
	}
}
