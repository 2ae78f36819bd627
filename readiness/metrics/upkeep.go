package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"etcd-wrapper/readiness/status"
)

// upkeep makes metrics of the document's upkeep.
type upkeep struct{ busy, waiting, ended, seconds, freed, lifted, readers *prometheus.Desc }

func newUpkeep() upkeep {
	return upkeep{
		busy:    desc("defragmentation_running", "1 while the database is being defragmented, or clients are kept away for it."),
		waiting: desc("defragmentation_waiting", "1 while the database should be defragmented and something is in the way."),
		ended:   desc("defragmentations_total", "Defragmentations that ended, by outcome (done, failed).", "outcome"),
		seconds: desc("defragmentation_last_duration_seconds", "How long the database stood still for the last defragmentation."),
		freed:   desc("defragmentation_freed_bytes_total", "What defragmentations have given back to the volume."),
		lifted:  desc("nospace_lifted_total", "How often this member's alarm NOSPACE was lifted."),
		readers: desc("database_readers", "Snapshots and backups that read the whole database now."),
	}
}

func (u upkeep) describe(to chan<- *prometheus.Desc) {
	for _, each := range []*prometheus.Desc{u.busy, u.waiting, u.ended, u.seconds, u.freed, u.lifted, u.readers} {
		to <- each
	}
}

func (u upkeep) collect(is *status.Upkeep, to chan<- prometheus.Metric) {
	if is == nil {
		return
	}
	metric := func(of *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(of, kind, value, labels...)
	}
	metric(u.busy, prometheus.GaugeValue, number(is.Busy()))
	metric(u.waiting, prometheus.GaugeValue, number(is.Phase == "waiting"))
	metric(u.ended, prometheus.CounterValue, float64(is.Done), "done")
	metric(u.ended, prometheus.CounterValue, float64(is.Failed), "failed")
	metric(u.freed, prometheus.CounterValue, float64(is.Freed))
	metric(u.lifted, prometheus.CounterValue, float64(is.Lifted))
	metric(u.readers, prometheus.GaugeValue, float64(len(is.Readers)))
	if last := is.Last; last != nil && last.Error == "" {
		metric(u.seconds, prometheus.GaugeValue, last.Took)
	}
}
