package lifecycle

import (
	"slices"
	"time"

	"etcd-wrapper/bootstrap"
)

// Maximum ages of a prefetched configuration at the time of the validation result.
const (
	// maxAgeWithLog applies to a member with a log. etcd reads the members from the log and ignores initial-cluster,
	// and a mounted ConfigMap can be a minute out of date anyway.
	maxAgeWithLog = time.Minute
	// maxAgeAlone applies to a new single-member cluster. The limit is low, because with an outdated configuration,
	// the member could create a separate cluster. It exceeds the 7 s that etcd-backup-restore needs to respond.
	maxAgeAlone = 10 * time.Second

	// refreshPause is the minimum pause between the end of a prefetch and the start of the next.
	refreshPause = 2 * time.Second
)

// prefetchState describes the newest prefetched configuration and the validation result.
type prefetchState struct {
	asked  time.Time // time of the request; zero if there is no configuration
	ended  time.Time // end of the last prefetch
	about  bootstrap.ConfigPreview
	before []string  // WAL directories before the validation
	after  []string  // WAL directories after the validation
	result time.Time // time at which Successful was read; zero before it
}

// isUsable reports whether etcd may run with the newest prefetched configuration. No configuration is usable before
// the validation result is known. The configuration must be recent and must not depend on the state of the cluster:
// the member has a log, or the cluster is a new single-member cluster. The age of a configuration is the time from
// the request to the validation result.
func (p *prefetchState) isUsable() bool {
	if p.asked.IsZero() || p.result.IsZero() {
		return false
	}
	age := p.result.Sub(p.asked)
	hasLog := slices.Contains(p.before, p.about.LogDir) && slices.Contains(p.after, p.about.LogDir)
	return hasLog && age <= maxAgeWithLog || p.about.NewAlone && age <= maxAgeAlone
}

// annotate updates the prefetch state from a message and sets the Early field of its payload. The rules cannot
// determine Early, because it depends on the time.
func (d *Driver) annotate(m *message) {
	now := time.Now()
	switch m.event {
	case Accepted:
		d.prefetch = prefetchState{before: m.payload.Logs}
	case Replied:
		if m.payload.Word == bootstrap.Successful {
			d.prefetch.result, d.prefetch.after = now, m.payload.Logs
		}
		m.payload.Early = d.prefetch.isUsable()
	case ConfigPrefetched:
		d.prefetch.ended = now
		d.early = noTask()
		if m.payload.Config != nil {
			d.prefetch.asked, d.prefetch.about = m.payload.Asked, bootstrap.Preview(m.payload.Config)
			d.config = m.payload.Config
		}
		m.payload.Early = d.prefetch.isUsable()
	case ConfigFetched:
		d.config = m.payload.Config
	case Started, VolumeBusy, NoAnswer, NotAccepted, DataInUse, ConfigValid, ConfigInvalid, ConfigUnavailable, EtcdReady, EtcdFailed,
		EtcdClosed, RecordSettled, Elapsed, Crashed, Signal, StopPosted, ListenerLost: // events that do not affect the prefetch
	}
}

// prefetchActions maps the actions for the prefetch to their implementations.
var prefetchActions = map[Action]func(*Driver){
	PrefetchConfig: func(d *Driver) { d.startEarly(PrefetchConfig) },
	RefreshConfig:  (*Driver).refresh,
	EndPrefetch:    (*Driver).endPrefetch,
}

// refresh starts another prefetch, so that the configuration is recent when the validation result arrives. refresh
// does nothing while a prefetch is in progress and for refreshPause afterwards.
func (d *Driver) refresh() {
	if d.early.number == 0 && time.Since(d.prefetch.ended) >= refreshPause {
		d.startEarly(PrefetchConfig)
	}
}

// endPrefetch cancels the current prefetch and discards its result.
func (d *Driver) endPrefetch() {
	d.early.cancel()
	d.early = noTask()
}
