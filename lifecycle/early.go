package lifecycle

import (
	"slices"
	"time"

	"etcd-wrapper/bootstrap"
)

// How long before the result a configuration may have been asked for. What it says may have changed since: a mounted
// ConfigMap is up to a minute behind anyway.
const (
	// youngWithLog is for a member that has a log: etcd follows the log and ignores the initial cluster.
	youngWithLog = time.Minute
	// youngAlone is for the only member of a new cluster, which would found one of its own by an old answer. It leaves the
	// real sidecar the 7 s that it needs.
	youngAlone = 10 * time.Second

	// refreshPause is between an early answer and the next early question.
	refreshPause = 2 * time.Second
)

// Early is what a configuration that was asked for before the result is worth. The zero value is none.
type EarlyConfig struct {
	Present bool
	Age     time.Duration // from the question to the result
	Alone   bool          // it is that of the only member of a new cluster
	Log     bool          // etcd's log was where it says before the validation, and is there after the result
}

// usable reports whether etcd may run with the configuration: nobody's view of the cluster can have changed it since.
func (e EarlyConfig) isUsable() bool {
	return e.Present && (e.Log && e.Age <= youngWithLog || e.Alone && e.Age <= youngAlone)
}

// prefetched is the newest early answer and what there is to judge it by.
type prefetchState struct {
	asked  time.Time // zero without an answer
	ended  time.Time // when the last early fetch was over, answered or not
	about  bootstrap.ConfigPreview
	before []string  // the logs on the volume before the validation
	after  []string  // and after the result
	result time.Time // when the result was read; zero before
}

// worth judges the newest answer by the result.
func (p *prefetchState) evaluate() EarlyConfig {
	if p.asked.IsZero() || p.result.IsZero() {
		return EarlyConfig{}
	}
	return EarlyConfig{
		Present: true, Age: p.result.Sub(p.asked), Alone: p.about.NewAlone,
		Log: slices.Contains(p.before, p.about.LogDir) && slices.Contains(p.after, p.about.LogDir),
	}
}

// inform adds to a message what is known of the early configuration: time is an input of the rules.
func (d *Driver) annotate(m *message) {
	now := time.Now()
	switch m.event {
	case Accepted:
		d.prefetch = prefetchState{before: m.payload.Logs}
	case Replied:
		if m.payload.Word == bootstrap.Successful {
			d.prefetch.result, d.prefetch.after = now, m.payload.Logs
		}
		m.payload.Early = d.prefetch.evaluate()
	case ConfigPrefetched:
		d.prefetch.ended = now
		d.early = noTask()
		if m.payload.Config != nil {
			d.prefetch.asked, d.prefetch.about = m.payload.Asked, bootstrap.Preview(m.payload.Config)
			d.config = m.payload.Config
		}
		m.payload.Early = d.prefetch.evaluate()
	case ConfigFetched:
		d.config = m.payload.Config
	case Started, VolumeBusy, NoAnswer, NotAccepted, DataInUse, ConfigValid, ConfigInvalid, ConfigUnavailable, EtcdReady, EtcdFailed,
		EtcdClosed, RecordSettled, Elapsed, Crashed, Signal, StopPosted, ListenerLost: // they say nothing about it
	}
}

// beside binds the actions that begin and end the early fetch, which runs beside everything else.
var prefetchActions = map[Action]func(*Driver){
	PrefetchConfig: func(d *Driver) { d.startEarly(PrefetchConfig) },
	RefreshConfig:  (*Driver).refresh,
	EndPrefetch:    (*Driver).endPrefetch,
}

// refresh asks for the configuration again, unless that is under way or was a moment ago: the newest answer
// should be young when the result comes.
func (d *Driver) refresh() {
	if d.early.number == 0 && time.Since(d.prefetch.ended) >= refreshPause {
		d.startEarly(PrefetchConfig)
	}
}

// endPrefetch makes what the early fetch may still bring late.
func (d *Driver) endPrefetch() {
	d.early.cancel()
	d.early = noTask()
}
