package main

import (
	"os"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"
)

// A notifier reports to systemd when etcd serves and when it stops.
type notifier struct {
	stop func() // reports the stop; later calls do nothing
	end  func() // waits until everything is sent
}

// newNotifier returns a notifier that sends READY=1 once ready returns true, and nothing at all if systemd did not start this
// process. Messages are sent by a goroutine: a service manager that reads none must not delay a stop.
func newNotifier(log zerolog.Logger, ready func() bool) notifier {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return notifier{stop: func() {}, end: func() {}}
	}
	stopping, sent := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sent)
		if awaitReady(ready, stopping) {
			notifySystemd(log, daemon.SdNotifyReady)
		}
		<-stopping
		notifySystemd(log, daemon.SdNotifyStopping)
	}()
	stop := sync.OnceFunc(func() { close(stopping) })
	return notifier{stop: stop, end: func() {
		stop()
		<-sent
	}}
}

// awaitReady polls ready and reports whether it returned true before the stop.
func awaitReady(ready func() bool, stopping <-chan struct{}) bool {
	poll := time.NewTicker(glance)
	defer poll.Stop()
	for !ready() {
		select {
		case <-poll.C:
		case <-stopping:
			return false
		}
	}
	return true
}

func notifySystemd(log zerolog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn().Err(err).Str("state", state).Msg("notifying systemd failed")
	}
}
