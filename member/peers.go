package member

import (
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	metrics "github.com/prometheus/client_model/go"
	"go.etcd.io/etcd/client/pkg/v3/types"
)

// gaugeOfEtcd finds one of etcd's own gauges: it tells what etcd knows, and can't be asked for otherwise, or not without waiting.
// Prometheus hands out a gauge that is registered only when somebody registers its twin. nil if etcd has none by this name
// any more.
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
	// peerConnections are etcd's connections to its peers, 1 or 0 for each, by which etcd itself decides whether a peer is
	// active.
	peerConnections = gaugeOfEtcd("network", "active_peers", "The current number of active peer connections.", "Local", "Remote")
	// sentSnapshots are the snapshots of the database that are on their way to peers, by their IDs.
	sentSnapshots = gaugeOfEtcd("network", "snapshot_send_inflights_total", "Total number of inflight snapshot sends", "To")
	// currentRevision is the newest of the database, which etcd's store tells only when no defragmentation holds it.
	currentRevision = gaugeOfEtcd("debugging_mvcc", "current_revision", "The current revision of store.")
)

// newest is the revision of this process's database; 0 if etcd has no such gauge any more.
func newest() (revision int64) {
	each(currentRevision(), func(metric *metrics.Metric) { revision = int64(metric.GetGauge().GetValue()) })
	return revision
}

// above calls see with the labels of everything in a gauge that is above zero.
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

// activePeers are the members that a member has a connection to.
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
