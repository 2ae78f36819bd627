package main

import (
	"os"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"

	"etcd-wrapper/lifecycle"
)

// announcer reports when etcd serves and when it stops.
type announcer struct {
	stop func() // reports the stop; later calls do nothing
	end  func() // waits until everything is sent
}

// announce logs how to use the member once it is ready, and notifies systemd of that and of the stop, if systemd started
// this process. A goroutine does that: a service manager that reads nothing must not delay a stop.
func (p *parts) announce(log zerolog.Logger, forUsers bool) announcer {
	stopping, sent := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sent)
		if p.awaitReady(stopping) {
			p.logUsage(log, forUsers)
			notifySystemd(log, daemon.SdNotifyReady)
		}
		if os.Getenv("NOTIFY_SOCKET") != "" {
			<-stopping
			notifySystemd(log, daemon.SdNotifyStopping)
		}
	}()
	stop := sync.OnceFunc(func() { close(stopping) })
	return announcer{stop: stop, end: func() {
		stop()
		<-sent
	}}
}

// readyInterval is the interval at which awaitReady polls.
const readyInterval = 100 * time.Millisecond

// awaitReady reports whether the member became ready before the stop. It waits until the log reports that, too, so that
// no such line follows the announcement.
func (p *parts) awaitReady(stopping <-chan struct{}) bool {
	poll := time.NewTicker(readyInterval)
	defer poll.Stop()
	for !p.report.IsReady() || p.driver.Snapshot().State != lifecycle.Serving {
		select {
		case <-poll.C:
		case <-stopping:
			return false
		}
	}
	return true
}

// logUsage logs how to use the member: three lines for users, one line otherwise.
func (p *parts) logUsage(log zerolog.Logger, forUsers bool) {
	endpoint, page := p.runtime.Usage()
	put := os.Args[0] + " etcdctl --endpoints=" + endpoint + " put greeting hello"
	if !forUsers {
		log.Info().Str("write_a_key", put).Str("page", page).Msg("etcd is ready")
		return
	}
	log.Info().Msg("to write a key: " + put)
	log.Info().Msg("to see how it is: " + page)
	log.Info().Msg("to stop: Ctrl-C, or kill -TERM its process")
}

func notifySystemd(log zerolog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn().Err(err).Str("state", state).Msg("notifying systemd failed")
	}
}
