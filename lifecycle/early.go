package lifecycle

import (
	"slices"
	"time"

	"etcd-wrapper/bootstrap"
)

// Maximum ages of a prefetched configuration when the result arrives. An older one may be outdated. A mounted
// ConfigMap can lag by a minute in any case.
const (
	// youngWithLog applies to a member with a log. etcd takes the members from the log and ignores the initial
	// cluster.
	youngWithLog = time.Minute
	// youngAlone applies to the only member of a new cluster. With an outdated configuration it could create a
	// separate cluster. The real sidecar takes 7 s to answer.
	youngAlone = 10 * time.Second

	// refreshPause is the minimum pause between two prefetches.
	refreshPause = 2 * time.Second
)

// prefetchState describes the newest prefetched configuration and the result of the validation.
type prefetchState struct {
	asked  time.Time // time of the request; zero without a configuration
	ended  time.Time // time at which the last prefetch ended
	about  bootstrap.ConfigPreview
	before []string  // logs on the volume before the validation
	after  []string  // logs on the volume after the result
	result time.Time // time at which the result was read
}

// isUsable reports whether etcd may run with the newest prefetched configuration. It returns false until the result
// is known. The configuration must be young and must not depend on the state of the cluster, which may have changed:
// the member has a log, or it is the only member of a new cluster. The age is measured from the request to the
// result.
func (p *prefetchState) isUsable() bool {
	if p.asked.IsZero() || p.result.IsZero() {
		return false
	}
	age := p.result.Sub(p.asked)
	hasLog := slices.Contains(p.before, p.about.LogDir) && slices.Contains(p.after, p.about.LogDir)
	return hasLog && age <= youngWithLog || p.about.NewAlone && age <= youngAlone
}

// annotate updates the prefetch from a message and records in the message whether the configuration is usable. The
// rules cannot decide this, because they have no clock.
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
		EtcdClosed, RecordSettled, Elapsed, Crashed, Signal, StopPosted, ListenerLost: // these events do not affect the prefetch
	}
}

// prefetchActions binds the actions that start and end the prefetch.
var prefetchActions = map[Action]func(*Driver){
	PrefetchConfig: func(d *Driver) { d.startEarly(PrefetchConfig) },
	RefreshConfig:  (*Driver).refresh,
	EndPrefetch:    (*Driver).endPrefetch,
}

// refresh starts another prefetch, so that the configuration is young when the result arrives. It does nothing while a
// prefetch is in progress or shortly after one.
func (d *Driver) refresh() {
	if d.early.number == 0 && time.Since(d.prefetch.ended) >= refreshPause {
		d.startEarly(PrefetchConfig)
	}
}

// endPrefetch cancels the prefetch in progress and drops its result.
func (d *Driver) endPrefetch() {
	d.early.cancel()
	d.early = noTask()
}
