package recovery

import (
	"context"
	"fmt"
	"strings"
	"time"

	"etcd-wrapper/backup/restore"
	"etcd-wrapper/recovery/seed"
	"etcd-wrapper/statemachine"
)

// Progress is how far a run is, for people.
type Progress struct {
	State      State // empty before the first run
	Since      time.Time
	Reason     string  // why it is in that state: a sentence
	Uncompared bool    // etcd may open the data, and the store has not told whether it has more
	Loss       string  // what is lost, or undone, in numbers; empty if nothing is restored
	Bytes      int64   // rebuilt so far
	Of         int64   // about how many that will be; 0 if that is not known
	Rate       float64 // bytes a second
	Aside      string  // where the data directory that was replaced is; empty if none was
}

// Left is how long building will still take, if it goes on as until now; 0 if that is not known.
func (p Progress) Left() time.Duration {
	if p.Rate <= 0 || p.Of <= p.Bytes {
		return 0
	}
	return time.Duration(float64(p.Of-p.Bytes) / p.Rate * float64(time.Second))
}

// Restores tells whether a run has got to where something is restored, or was.
func (p Progress) Restores() bool { return p.Loss != "" }

// Progress returns how far the present run is, or the last one.
func (r *Recovery) Progress() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.facts
}

func (r *Recovery) tell(change func(*Progress)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.facts)
}

// report tells people of a step, and keeps why a run is refused.
func (r *run) report(after learned, decision statemachine.Decision) {
	from, event, payload := after.from, after.event, after.payload
	reason := decision.Why
	if payload.Err != nil {
		reason += ": " + payload.Err.Error()
	}
	row := r.rules.Row(decision.Row)
	if decision.To == Refused {
		r.ended = r.refusal(row, reason, payload)
		reason = r.ended.Error()
	}
	if decision.To != Refused && event != Elapsed && r.decision.WayOut != "" && decision.Why == r.decision.Why {
		reason += "; " + r.decision.WayOut
	}
	now := time.Now()
	if event != Elapsed { // what is waited for stays the reason while it is asked for again
		r.reason = reason
	}
	r.tell(func(p *Progress) {
		if p.State != decision.To {
			p.State, p.Since = decision.To, now
		}
		p.Reason = r.reason
		p.Uncompared = decision.Why == notCompared
	})
	line := r.options.Log.Debug()
	if (event == StoreSilent || event == Alive) && (r.silent == 0 || decision.To == Ready) || event == Missing || r.waitsAnew(event, decision, reason) {
		line = r.options.Log.Warn()
	} else if from != decision.To && (r.Progress().Restores() || decision.To == Resume) {
		line = r.options.Log.Info()
	}
	line.Str("from", string(from)).Str("event", string(event)).Str("to", string(decision.To)).Msg("recovery: " + reason)
}

// target is the state that there is a way to, in words.
func (r *run) target() string {
	path := r.kept.path
	words := fmt.Sprintf("revision %d", path.Revision)
	if !path.Time.IsZero() {
		words += " of " + path.Time.UTC().Format(time.RFC3339)
	}
	return words
}

// tellLoss says in numbers what comes back and what does not, before anything is done, if that is all that the store can give.
func (r *run) tellLoss() (Event, Payload) {
	if event, why := r.incomplete(); event != "" {
		return event, Payload{Err: why}
	}
	r.sayLoss()
	return "", Payload{}
}

func (r *run) sayLoss() {
	volume := "the volume is empty"
	switch {
	case r.verdict != nil && r.stands.Revision > 0:
		volume = fmt.Sprintf("the volume is broken at revision %d", r.stands.Revision)
	case r.verdict != nil:
		volume = "the volume is broken"
	case r.stands.ClusterID != 0:
		volume = fmt.Sprintf("the volume is at revision %d", r.stands.HighestRevision)
	}
	what := "comes back with"
	if r.asked {
		what = "goes back to"
	}
	loss := fmt.Sprintf("%s; the cluster %s %s of generation %d from %s, whose backups end at revision %d of generation %d%s", volume, what, r.target(),
		r.kept.path.Generation.Number, r.options.Archive, r.endOfBackups(), r.kept.newest.Number, r.leftBehind()+r.undone())
	if beyond := r.kept.path.PastEnd; beyond != nil {
		loss += "; what follows in the store cannot be read: " + beyond.Error()
	}
	if r.Progress().Loss == loss {
		return // it was said, and nothing has come into the store since
	}
	r.tell(func(p *Progress) { p.Loss = loss })
	r.options.Log.Warn().Int64("volume_revision", r.stands.HighestRevision).Int64("store_revision", r.endOfBackups()).
		Int64("reserved_revision", r.kept.reserved.Revision).Int64("restored_revision", r.kept.path.Revision).Msg("recovery: " + loss)
}

func (r *run) endOfBackups() int64 {
	if r.kept.head.Empty() {
		return r.kept.path.Revision
	}
	return r.kept.head.Revision()
}

// undone is how much is lost, or undone.
func (r *run) undone() string {
	known := r.endOfBackups()
	if r.kept.successor.Number == 0 {
		known = max(known, r.stands.HighestRevision)
	}
	switch gone := known - r.kept.path.Revision; {
	case r.asked && r.kept.path.Generation.Number != r.kept.newest.Number:
		return "; everything that came after it is undone" // revisions were skipped in between
	case gone > 0 && r.asked:
		return fmt.Sprintf("; %d revisions are undone", gone)
	case gone > 0:
		return fmt.Sprintf("; %d revisions are lost", gone) + r.beforeTheEnd()
	case r.asked:
		return ""
	default:
		return "; what came after it and was not in the store is lost" + r.beforeTheEnd()
	}
}

// flushVolume brings what only the volume has into the store. That it fails is no reason to stop: the volume is set aside.
func (r *run) flushVolume() (Event, Payload) {
	if r.options.Flush == nil || r.behind(r.kept) {
		return Flushed, Payload{}
	}
	ctx, cancel := context.WithTimeout(r.ctx, flushPatience)
	defer cancel()
	if err := r.options.Flush(ctx, r.member.DataDir, r.stands); err != nil {
		r.sayKeptBack(err)
		return Flushed, Payload{Err: err}
	}
	if beyond := r.stands.HighestRevision - r.stands.Revision; beyond > 0 {
		r.options.Log.Warn().Msgf("recovery: the last changes, up to %d, are in etcd's log alone, as it was killed, and the store does not get them; they stay on the volume, set aside", beyond)
	}
	return Flushed, Payload{}
}

// sayKeptBack tells what the store lacks that was not brought there: perhaps it has all revisions, as of a member that was stopped in
// order.
func (r *run) sayKeptBack(why error) {
	ctx, cancel := context.WithTimeout(r.ctx, brief)
	defer cancel()
	head, err := r.options.Archive.Head(ctx, r.kept.newest.Number)
	if err == nil && head.Revision() >= r.stands.Revision {
		r.options.Log.Info().Err(why).Msg("recovery: the store has every revision of the volume; leases and users that have changed since stay on the volume, set aside")
		return
	}
	r.options.Log.Warn().Err(why).Msg("recovery: the store does not get everything that the volume has; it stays on the volume, set aside")
}

// flushPatience is how long the store may take for what only the volume has.
const flushPatience = 2 * time.Minute

// advance tells how far building is.
func (r *run) advance(began time.Time, now restore.Progress) {
	rate := 0.0
	if took := time.Since(began).Seconds(); took > 0 {
		rate = float64(now.Bytes) / took
	}
	r.tell(func(p *Progress) { p.Bytes, p.Of, p.Rate = now.Bytes, now.Of, rate })
}

// movable says what keeps a data directory from being replaced by a rename.
func (r *run) movable() error {
	if strings.HasPrefix(seed.Place(r.options.VolumeDir)+"/", r.member.DataDir+"/") {
		return fmt.Errorf("the data directory %s is the volume itself, so nothing can be put in its place; name a data-dir below it", r.member.DataDir)
	}
	return seed.CheckPlace(r.member.DataDir)
}

// foresee warns of what can still be changed while the data are in order.
func (r *run) foresee() {
	if r.options.Never {
		return
	}
	if err := r.movable(); err != nil {
		r.options.Log.Warn().Err(err).Msg("recovery: if the data were lost or broken, they could not come back by themselves")
	}
	if at := seed.MountedWithin(r.member.DataDir); at != "" {
		r.options.Log.Warn().Msgf("recovery: %s is a mount point: if the data were replaced, it would be in the way at the next start, with what it has of those before; mount the volume above the data directory", at)
	}
}
