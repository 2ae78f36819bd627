package main

import (
	"os"
	"sync"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"
)

// An announcer announces to users and to systemd when the member becomes ready and when it stops.
type announcer struct {
	ready func() // announces that the member is ready; only the first call has an effect
	stop  func() // announces that the member is stopping; only the first call has an effect
	end   func() // calls stop and waits until all notifications have been sent
}

// announce returns an announcer that logs how to use the member once it is ready. If systemd started the process, the
// announcer also notifies systemd when the member becomes ready and when it stops. A goroutine sends the
// notifications, so that ready and stop return even if systemd does not read them.
func (p *parts) announce(log zerolog.Logger, forUsers bool) announcer {
	ready, stopping := make(chan struct{}), make(chan struct{})
	var announcing sync.WaitGroup
	announcing.Go(func() {
		select {
		case <-ready:
			p.logUsage(log, forUsers)
			notifySystemd(log, daemon.SdNotifyReady)
		case <-stopping:
		}
		if os.Getenv("NOTIFY_SOCKET") != "" {
			<-stopping
			notifySystemd(log, daemon.SdNotifyStopping)
		}
	})
	stop := sync.OnceFunc(func() { close(stopping) })
	return announcer{ready: sync.OnceFunc(func() { close(ready) }), stop: stop, end: func() {
		stop()
		announcing.Wait()
	}}
}

// logUsage logs how to use the member: three lines for users, or one line for programs.
func (p *parts) logUsage(log zerolog.Logger, forUsers bool) {
	endpoint, page := p.runtime.Usage()
	put := os.Args[0] + " etcdctl --endpoints=" + endpoint + " put greeting hello"
	if !forUsers {
		log.Info().Str("write_a_key", put).Str("page", page).Msg("etcd is ready")
		return
	}
	log.Info().Msg("to write a key: " + put)
	log.Info().Msg("to see the status: " + page)
	log.Info().Msg("to stop the member: press Ctrl-C, or run \"kill -TERM PID\"")
}

func notifySystemd(log zerolog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn().Err(err).Str("state", state).Msg("notifying systemd failed")
	}
}
