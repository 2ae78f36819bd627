package member

import (
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	metrics "github.com/prometheus/client_model/go"
	"go.etcd.io/etcd/client/pkg/v3/types"
)

// etcdGauge returns the values of one of etcd's own gauges, for facts that etcd does not offer otherwise, or not without
// waiting. Prometheus returns a registered gauge only when an equal one is registered. There are no values if etcd no
// longer has it.
func etcdGauge(subsystem, name, help string, labels ...string) func() []*metrics.Metric {
	find := sync.OnceValue(func() prometheus.Collector {
		equal := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "etcd", Subsystem: subsystem, Name: name, Help: help}, labels)
		if existing, ok := errors.AsType[prometheus.AlreadyRegisteredError](prometheus.Register(equal)); ok {
			return existing.ExistingCollector
		}
		return equal
	})
	return func() (values []*metrics.Metric) {
		collected := make(chan prometheus.Metric)
		go func() { defer close(collected); find().Collect(collected) }()
		for each := range collected {
			var value metrics.Metric
			if each.Write(&value) == nil {
				values = append(values, &value)
			}
		}
		return values
	}
}

var (
	// peerConnections has 1 or 0 for each connection to a peer, by which etcd itself decides whether the peer is
	// active.
	peerConnections = etcdGauge("network", "active_peers", "The current number of active peer connections.", "Local", "Remote")
	// snapshotSends counts the snapshots of the database that are being sent to peers, by their IDs.
	snapshotSends = etcdGauge("network", "snapshot_send_inflights_total", "Total number of inflight snapshot sends", "To")
	// revisions is the newest revision of the database, which etcd's store does not return during a defragmentation.
	revisions = etcdGauge("debugging_mvcc", "current_revision", "The current revision of store.")
)

// currentRevision returns the revision of this process's database; 0 if etcd no longer has that gauge.
func currentRevision() (revision int64) {
	for _, value := range revisions() {
		revision = int64(value.GetGauge().GetValue())
	}
	return revision
}

// activePeers returns the members that a member is connected to.
func activePeers(local types.ID) map[types.ID]bool {
	active := map[types.ID]bool{}
	for _, value := range peerConnections() {
		labels := map[string]string{}
		for _, label := range value.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		remote, err := types.IDFromString(labels["Remote"])
		if err == nil && labels["Local"] == local.String() && value.GetGauge().GetValue() > 0 {
			active[remote] = true
		}
	}
	return active
}

// sendsSnapshot reports whether a snapshot of the database is on its way to a peer.
func sendsSnapshot() bool {
	for _, value := range snapshotSends() {
		if value.GetGauge().GetValue() > 0 {
			return true
		}
	}
	return false
}
