package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"etcd-wrapper/readiness/status"
)

// document makes metrics of the status document at each scrape, so that they cannot disagree with it.
type document struct {
	now    func() status.Document
	states []string

	build, state, transitions, seconds, ready, check, lastExit, expiry, readable *prometheus.Desc

	backup backup
	upkeep upkeep
	leases leases
}

func newDocument(now func() status.Document, states []string) *document {
	return &document{
		now: now, states: states,
		build:       desc("build_info", "The versions of the programs in the process; always 1.", "version", "etcd_version", "go_version"),
		state:       desc("state", "1 for the state that the lifecycle is in, 0 for the others.", "state"),
		transitions: desc("state_transitions_total", "Steps of the state machine since the process started.", "from", "to", "event"),
		seconds:     desc("state_seconds_total", "Time spent in each state since the process started.", "state"),
		ready:       desc("ready", "1 if /readyz says that clients may use the member."),
		check:       desc("readiness_check", "1 if the check does not make the member unready.", "check"),
		lastExit:    desc("last_exit", "1 for how the run before this one ended.", "class"),
		expiry:      desc("certificate_expiry_timestamp_seconds", "When the first certificate in a file ends, in seconds since 1970.", "certificate"),
		readable:    desc("data_version_readable", "1 if an etcd of the wanted version can read the data.", "wanted"),
		backup:      newBackup(),
		upkeep:      newUpkeep(),
		leases:      newLeases(),
	}
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

// Describe implements prometheus.Collector.
func (d *document) Describe(to chan<- *prometheus.Desc) {
	for _, each := range []*prometheus.Desc{d.build, d.state, d.transitions, d.seconds, d.ready, d.check, d.lastExit, d.expiry, d.readable} {
		to <- each
	}
	d.backup.describe(to)
	d.upkeep.describe(to)
	d.leases.describe(to)
}

// Collect implements prometheus.Collector.
func (d *document) Collect(to chan<- prometheus.Metric) {
	is, now := d.now(), time.Now()
	gauge := func(of *prometheus.Desc, holds bool, labels ...string) {
		to <- prometheus.MustNewConstMetric(of, prometheus.GaugeValue, number(holds), labels...)
	}
	gauge(d.build, true, is.Versions.Wrapper, is.Versions.Etcd, is.Versions.Go)
	gauge(d.ready, is.Ready)
	for _, class := range status.LastExits() {
		gauge(d.lastExit, class == is.LastExit, class)
	}
	for _, check := range is.Checks {
		gauge(d.check, check.Status != "failed", check.Name)
	}
	for _, file := range is.Certificates {
		to <- prometheus.MustNewConstMetric(d.expiry, prometheus.GaugeValue, float64(file.Expires.Unix()), file.Name)
	}
	if v := is.DataVersion; v != nil {
		gauge(d.readable, v.Readable, v.Wanted)
	}
	d.backup.collect(is.Backup, to)
	d.upkeep.collect(is.Upkeep, to)
	d.leases.collect(is.Leases, to)
	spent := spent(is, now)
	for _, state := range d.states {
		gauge(d.state, state == is.State, state)
		to <- prometheus.MustNewConstMetric(d.seconds, prometheus.CounterValue, spent[state], state)
	}
	for way, times := range steps(is) {
		to <- prometheus.MustNewConstMetric(d.transitions, prometheus.CounterValue, times, way[:]...)
	}
}

// steps counts the steps by from, to and event, whatever guard held.
func steps(is status.Document) map[[3]string]float64 {
	times := map[[3]string]float64{}
	for _, edge := range is.Edges {
		times[[3]string{edge.From, edge.To, edge.Event}] += float64(edge.Times)
	}
	return times
}

// spent adds up the seconds in each state, the visit that goes on included.
func spent(is status.Document, now time.Time) map[string]float64 {
	seconds := map[string]float64{is.State: now.Sub(is.Since).Seconds()}
	for _, edge := range is.Edges {
		seconds[edge.From] += edge.Spent
	}
	return seconds
}

func number(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}
