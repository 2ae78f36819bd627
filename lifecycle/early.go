package lifecycle

import (
	"slices"
	"time"

	"etcd-wrapper/bootstrap"
)

// Limits of the age of a prefetched configuration when the result arrives. The configuration may have changed since; a
// mounted ConfigMap is up to a minute late anyway.
const (
	// youngWithLog applies to a member with a log: etcd follows the log and ignores the initial cluster.
	youngWithLog = time.Minute
	// youngAlone applies to the only member of a new cluster, which an outdated configuration would let found its own
	// cluster. The real sidecar needs 7 s for an answer.
	youngAlone = 10 * time.Second

	// refreshPause is the minimum pause between two prefetches.
	refreshPause = 2 * time.Second
)

// prefetchState holds what decides about the newest prefetched configuration.
type prefetchState struct {
	asked  time.Time // zero without a configuration
	ended  time.Time // when the last prefetch ended
	about  bootstrap.ConfigPreview
	before []string  // the logs on the volume before the validation
	after  []string  // the same after the result
	result time.Time // when the result was read
}

// isUsable reports, once the result is known, whether etcd may run with the newest configuration: a changed view of
// the cluster could not have changed it. Its age counts from the request to the result.
func (p *prefetchState) isUsable() bool {
	if p.asked.IsZero() || p.result.IsZero() {
		return false
	}
	age := p.result.Sub(p.asked)
	hasLog := slices.Contains(p.before, p.about.LogDir) && slices.Contains(p.after, p.about.LogDir)
	return hasLog && age <= youngWithLog || p.about.NewAlone && age <= youngAlone
}

// annotate adds to a message whether the prefetched configuration is usable, because the rules know no time.
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
		EtcdClosed, RecordSettled, Elapsed, Crashed, Signal, StopPosted, ListenerLost: // they do not affect it
	}
}

// prefetchActions binds the actions that start and end the prefetch.
var prefetchActions = map[Action]func(*Driver){
	PrefetchConfig: func(d *Driver) { d.startEarly(PrefetchConfig) },
	RefreshConfig:  (*Driver).refresh,
	EndPrefetch:    (*Driver).endPrefetch,
}

// refresh prefetches again, unless that is in progress or has just finished, so that the configuration is young when
// the result arrives.
func (d *Driver) refresh() {
	if d.early.number == 0 && time.Since(d.prefetch.ended) >= refreshPause {
		d.startEarly(PrefetchConfig)
	}
}

// endPrefetch drops the prefetch in progress.
func (d *Driver) endPrefetch() {
	d.early.cancel()
	d.early = noTask()
}
