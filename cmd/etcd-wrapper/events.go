package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/rs/zerolog"

	"etcd-wrapper/member/kubernetes"
	"etcd-wrapper/readiness/status"
)

// events returns what is told of everything that the timeline notes, and what ends the telling; without --events nobody is told.
func (c *startCommand) events(log zerolog.Logger) (tell func(status.Happening), end func(), err error) {
	if !c.Events {
		return func(status.Happening) {}, func() {}, nil
	}
	account, err := kubernetes.FromEnvironment()
	if err != nil {
		return nil, nil, fmt.Errorf("--events: %w", err)
	}
	poster := kubernetes.NewPoster(account, kubernetes.EventPod{Name: podName(), UID: os.Getenv("POD_UID")}, log)
	return func(h status.Happening) {
		if event, worth := eventOf(h); worth {
			poster.Tell(event)
		}
	}, poster.End, nil
}

// reasons are the Events' words for what happens to a member: while all is well, and otherwise. An empty one is not worth an Event:
// Kubernetes sees by itself which pods are ready.
var reasons = map[string]struct{ well, not string }{
	"start":           {"", "LastRunFailed"},
	"restore_test":    {"", "RestoreTestFailed"},
	"defragmentation": {"Defragmented", "NotDefragmented"},
	"alarm":           {"AlarmLifted", "AlarmRaised"},
	"trouble":         {"TroubleOver", "Trouble"},
	"recovery":        {"", "DataRefused"},
	"restore":         {"Restored", ""},
}

// eventOf is what Kubernetes is told of something that happened; false if it is told nothing.
func eventOf(h status.Happening) (event kubernetes.Event, worth bool) {
	well := h.Health == status.HealthOK
	reason := reasons[h.Kind].not
	if well {
		reason = reasons[h.Kind].well
	}
	event = kubernetes.Event{Reason: reason, Warning: !well, Note: h.What, At: h.At}
	if h.Kind == "trouble" || h.Kind == "alarm" {
		event.Subject, _, _ = strings.Cut(h.What, ":")
	}
	return event, reason != ""
}
