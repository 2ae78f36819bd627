package main

import (
	"context"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness/metrics"
)

// durations are how long etcd took, in nanoseconds; zero for what did not happen. An end that is forced reads them while
// the close still runs.
type durations struct{ start, stop, drain atomic.Int64 }

// certificatesOf are the certificate files that etcd serves and connects with.
func certificatesOf(config *embed.Config) map[string]string {
	return map[string]string{
		"etcd_server": config.ClientTLSInfo.CertFile, "etcd_server_ca": config.ClientTLSInfo.TrustedCAFile,
		"etcd_peer": config.PeerTLSInfo.CertFile, "etcd_peer_ca": config.PeerTLSInfo.TrustedCAFile,
	}
}

// certificates are all certificate files in use, by what they are for. An empty path is one that is not used.
func (p *pod) certificates() map[string]string {
	files := map[string]string{
		"wrapper_server": p.flags.WrapperCertPath, "etcd_client": p.flags.EtcdCertPath, "sidecar_ca": p.flags.SidecarCAPath,
	}
	if inUse := p.inUse.Load(); inUse != nil {
		maps.Copy(files, *inUse)
	}
	return files
}

func (a account) newMetrics() *metrics.Metrics {
	states := make([]string, len(lifecycle.States))
	for i, state := range lifecycle.States {
		states[i] = string(state.Name)
	}
	return metrics.New(metrics.Options{Document: a.document, States: states, Certificates: a.pod.certificates})
}

// measured counts the calls to a sidecar and how its initialisations end. The machine asks for the status and for
// initialisations one after the other; a configuration may be fetched meanwhile.
type measured struct {
	lifecycle.Sidecar
	pod   *pod           // whose metrics they are
	asked bootstrap.Mode // for the initialisation that runs; empty if none was asked for
}

// Status implements lifecycle.Sidecar.
func (m *measured) Status(ctx context.Context) (bootstrap.Status, error) {
	began := time.Now()
	word, err := m.Sidecar.Status(ctx)
	m.pod.metrics.Request("status", time.Since(began), err)
	if err == nil {
		m.heard(word)
	}
	return word, err
}

// heard counts what ended: by a verdict, or because a sidecar that was restarted has forgotten it.
func (m *measured) heard(word bootstrap.Status) {
	switch {
	case word == bootstrap.Progress, word == bootstrap.New && m.asked == "":
		return
	case word == bootstrap.New:
		m.pod.metrics.Initialization(string(m.asked), "lost")
	case m.asked == "":
		m.pod.metrics.Initialization("unasked", strings.ToLower(string(word)))
	default:
		m.pod.metrics.Initialization(string(m.asked), strings.ToLower(string(word)))
	}
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
