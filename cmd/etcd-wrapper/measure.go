package main

import (
	"cmp"
	"context"
	"strings"
	"sync/atomic"
	"time"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness/metrics"
)

// durations are how long etcd took, in nanoseconds; zero for what did not happen. An end that is forced reads them while
// the close still runs.
type durations struct{ start, stop, drain atomic.Int64 }

func (a account) newMetrics() *metrics.Metrics {
	states := make([]string, len(lifecycle.States))
	for i, state := range lifecycle.States {
		states[i] = string(state.Name)
	}
	return metrics.New(metrics.Options{Document: a.document, States: states})
}

// measured counts the calls to a sidecar and how its initializations end. The machine asks for the status and for
// initializations one after the other; a configuration may be fetched meanwhile.
type measured struct {
	lifecycle.Sidecar
	pod   *pod           // whose metrics they are
	asked bootstrap.Mode // for the initialization that runs; empty if none was asked for
}

// Status implements lifecycle.Sidecar.
func (m *measured) Status(ctx context.Context) (bootstrap.InitializationStatus, error) {
	began := time.Now()
	word, err := m.Sidecar.Status(ctx)
	m.pod.metrics.Request("status", time.Since(began), err)
	if err == nil {
		m.follow(word)
	}
	return word, err
}

// follow counts what ended: by a verdict, or because a sidecar that was restarted has forgotten it.
func (m *measured) follow(word bootstrap.InitializationStatus) {
	switch word {
	case bootstrap.Progress:
	case bootstrap.New:
		if m.asked != "" {
			m.count("lost")
		}
	case bootstrap.Successful, bootstrap.Failed:
		m.count(strings.ToLower(string(word)))
	}
}

// count counts an initialization that is over.
func (m *measured) count(verdict string) {
	m.pod.metrics.Initialization(cmp.Or(string(m.asked), "unasked"), verdict)
	m.asked = ""
}

// Trigger implements lifecycle.Sidecar.
func (m *measured) Trigger(ctx context.Context, mode bootstrap.Mode) error {
	began := time.Now()
	err := m.Sidecar.Trigger(ctx, mode)
	m.pod.metrics.Request("trigger", time.Since(began), err)
	if err == nil {
		m.asked = mode
	}
	return err
}

// Config implements lifecycle.Sidecar.
func (m *measured) Config(ctx context.Context) ([]byte, error) {
	began := time.Now()
	yaml, err := m.Sidecar.Config(ctx)
	m.pod.metrics.Request("config", time.Since(began), err)
	return yaml, err
}
