package member

import (
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	metrics "github.com/prometheus/client_model/go"
	"go.etcd.io/etcd/client/pkg/v3/types"
)

// gaugeOfEtcd finds one of etcd's own gauges: it tells what etcd's transport knows, which cannot be reached otherwise.
// Prometheus hands out a gauge that is registered only when somebody registers its twin. nil if etcd has none by this name
// any more.
func gaugeOfEtcd(name, help string, labels ...string) func() prometheus.Collector {
	return sync.OnceValue(func() prometheus.Collector {
		twin := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "etcd", Subsystem: "network", Name: name, Help: help}, labels)
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
	peerConnections = gaugeOfEtcd("active_peers", "The current number of active peer connections.", "Local", "Remote")
	// sentSnapshots are the snapshots of the database that are on their way to peers, by their IDs.
	sentSnapshots = gaugeOfEtcd("snapshot_send_inflights_total", "Total number of inflight snapshot sends", "To")
)

// above calls see with the labels of everything in a gauge that is above zero.
func above(gauge prometheus.Collector, see func(labels map[string]string)) {
	if gauge == nil {
		return
	}
	found := make(chan prometheus.Metric)
	go func() { defer close(found); gauge.Collect(found) }()
	for each := range found {
		var metric metrics.Metric
		if each.Write(&metric) != nil || metric.GetGauge().GetValue() <= 0 {
			continue
		}
		labels := map[string]string{}
		for _, label := range metric.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		see(labels)
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
