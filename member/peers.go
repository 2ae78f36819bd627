package member

import (
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	metrics "github.com/prometheus/client_model/go"
	"go.etcd.io/etcd/client/pkg/v3/types"
)

// gaugeOfEtcd returns one of etcd's own gauges, for facts that etcd does not offer otherwise, or not without waiting.
// Prometheus returns a registered gauge only when an equal one is registered. nil if etcd no longer has it.
func gaugeOfEtcd(subsystem, name, help string, labels ...string) func() prometheus.Collector {
	return sync.OnceValue(func() prometheus.Collector {
		twin := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "etcd", Subsystem: subsystem, Name: name, Help: help}, labels)
		var there prometheus.AlreadyRegisteredError
		if err := prometheus.Register(twin); errors.As(err, &there) {
			return there.ExistingCollector
		}
		return nil
	})
}

var (
	// peerConnections has 1 or 0 for each connection to a peer, by which etcd itself decides whether the peer is
	// active.
	peerConnections = gaugeOfEtcd("network", "active_peers", "The current number of active peer connections.", "Local", "Remote")
	// sentSnapshots counts the snapshots of the database that are being sent to peers, by their IDs.
	sentSnapshots = gaugeOfEtcd("network", "snapshot_send_inflights_total", "Total number of inflight snapshot sends", "To")
	// currentRevision is the newest revision of the database, which etcd's store does not return during a
	// defragmentation.
	currentRevision = gaugeOfEtcd("debugging_mvcc", "current_revision", "The current revision of store.")
)

// newest returns the revision of this process's database; 0 if etcd no longer has that gauge.
func newest() (revision int64) {
	each(currentRevision(), func(metric *metrics.Metric) { revision = int64(metric.GetGauge().GetValue()) })
	return revision
}

// above calls see with the labels of each value of a gauge above zero.
func above(gauge prometheus.Collector, see func(labels map[string]string)) {
	each(gauge, func(metric *metrics.Metric) {
		if metric.GetGauge().GetValue() <= 0 {
			return
		}
		labels := map[string]string{}
		for _, label := range metric.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		see(labels)
	})
}

func each(gauge prometheus.Collector, see func(*metrics.Metric)) {
	if gauge == nil {
		return
	}
	found := make(chan prometheus.Metric)
	go func() { defer close(found); gauge.Collect(found) }()
	for one := range found {
		var metric metrics.Metric
		if one.Write(&metric) == nil {
			see(&metric)
		}
	}
}

// activePeers returns the members that a member is connected to.
func activePeers(local types.ID) map[types.ID]bool {
	active := map[types.ID]bool{}
	above(peerConnections(), func(labels map[string]string) {
		if remote, err := types.IDFromString(labels["Remote"]); err == nil && labels["Local"] == local.String() {
			active[remote] = true
		}
	})
	return active
}

// sendsSnapshot reports whether a snapshot of the database is on its way to a peer.
func sendsSnapshot() (sends bool) {
	above(sentSnapshots(), func(map[string]string) { sends = true })
	return sends
}
