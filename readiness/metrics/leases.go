package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"etcd-wrapper/readiness/status"
)

// leases makes metrics of the document's leases.
type leases struct{ renewed, trouble *prometheus.Desc }

func newLeases() leases {
	return leases{
		renewed: desc("lease_renewed_timestamp_seconds", "When a Kubernetes lease was renewed last, in seconds since 1970.", "kind"),
		trouble: desc("lease_trouble", "1 while a Kubernetes lease cannot be renewed.", "kind"),
	}
}

func (l leases) describe(to chan<- *prometheus.Desc) {
	to <- l.renewed
	to <- l.trouble
}

func (l leases) collect(all []status.Lease, to chan<- prometheus.Metric) {
	for _, lease := range all {
		to <- prometheus.MustNewConstMetric(l.trouble, prometheus.GaugeValue, number(lease.Trouble != nil), lease.Kind)
		if !lease.Renewed.IsZero() {
			to <- prometheus.MustNewConstMetric(l.renewed, prometheus.GaugeValue, float64(lease.Renewed.Unix()), lease.Kind)
		}
	}
}
