package member

import (
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	metrics "github.com/prometheus/client_model/go"
	"go.etcd.io/etcd/client/pkg/v3/types"
)

// peerConnections is etcd's gauge of its connections to its peers, 1 or 0 for each, by which etcd itself decides whether
// a peer is active. The transport that it belongs to is out of reach, and a gauge cannot be asked for: registering its
// twin is Prometheus's way to get at it. nil if etcd has none by this name any more.
var peerConnections = sync.OnceValue(func() prometheus.Collector {
	twin := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "etcd", Subsystem: "network", Name: "active_peers", Help: "The current number of active peer connections.",
	}, []string{"Local", "Remote"})
	var there prometheus.AlreadyRegisteredError
	if err := prometheus.Register(twin); errors.As(err, &there) {
		return there.ExistingCollector
	}
	return nil
})

// activePeers are the members that a member has a connection to.
func activePeers(local types.ID) map[types.ID]bool {
	all := peerConnections()
	if all == nil {
		return nil
	}
	found := make(chan prometheus.Metric)
	go func() { defer close(found); all.Collect(found) }()
	active := map[types.ID]bool{}
	for each := range found {
		var connection metrics.Metric
		if each.Write(&connection) != nil || connection.GetGauge().GetValue() <= 0 {
			continue
		}
		labels := map[string]string{}
		for _, label := range connection.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		if remote, err := types.IDFromString(labels["Remote"]); err == nil && labels["Local"] == local.String() {
			active[remote] = true
		}
	}
	return active
}
