package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/exitcode"
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
	return r.progress
}

func (r *Recovery) tell(change func(*Progress)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.progress)
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
	} else if event != Elapsed && r.decision.WayOut != "" && decision.Why == r.decision.Why {
		reason += "; " + r.decision.WayOut
	}
	if event != Elapsed { // what is waited for stays the reason while it is asked for again
		r.reason = reason
	}
	r.tell(func(p *Progress) {
		if p.State != decision.To {
			p.State, p.Since = decision.To, time.Now()
		}
		p.Reason = r.reason
		p.Uncompared = decision.Why == notCompared
	})
	line := r.options.Log.Debug()
	waits := event == StoreSilent || payload.Told == StoreInUse || slices.Contains(away, payload.Told)
	if waits && (r.silent == 0 || decision.To == Ready) || event == Missing || r.waitsAnew(event, payload, decision, reason) {
		line = r.options.Log.Warn()
	} else if from != decision.To && (r.Progress().Restores() || decision.To == Resume) {
		line = r.options.Log.Info()
	}
	line.Str("from", string(from)).Str("event", string(event)).Str("to", string(decision.To)).Msg("recovery: " + reason)
}

// Outcome is how a run has ended that had something to bring back.
type Outcome struct {
	Cause string // the state of the volume; Wanted, or Unfinished
	Ended string // Restored, Rejoined or Denied
	Lost  int64  // how many revisions are known to be lost; what a person has undone is not
}

// The outcomes, and the causes that are no state of the volume.
const (
	Restored   = "restored"   // from the store
	Rejoined   = "rejoined"   // with the data of the other members
	Denied     = "refused"    // a person has to do something
	Wanted     = "requested"  // by --restore-to
	Unfinished = "unfinished" // a run that was cut off was brought to its end
)

// noteCause keeps what is wrong, before that is changed.
func (r *run) noteCause() {
	if is := r.core.Facts.caseOf(); is.Asked == AskedRestore {
		r.outcome.Cause = Wanted
	} else {
		volume := is.Volume
		if volume == VolumeLost {
			volume = VolumeEmpty
		}
		r.outcome.Cause = cmp.Or(r.outcome.Cause, string(volume))
	}
}

// count has the outcome counted.
func (r *run) count() {
	if r.core.State == Refused {
		r.noteCause()
		r.outcome.Ended, r.outcome.Lost = Denied, 0
	}
	if r.options.Ended != nil && r.outcome.Ended != "" {
		r.outcome.Cause = cmp.Or(r.outcome.Cause, Unfinished)
		r.options.Ended(r.outcome)
	}
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
func (r *run) tellLoss() (Event, Facts) {
	switch why := r.pastEnd(); {
	case errors.Is(why, format.ErrUntrusted):
		return Answered, Facts{Told: StoreLocked, Err: why}
	case why != nil && r.mayCome(why): // what is damaged stays so, and is told of
		return Missing, Facts{Err: why}
	}
	r.sayLoss()
	return "", Facts{}
}

func (r *run) sayLoss() {
	r.noteCause()
	if r.outcome.Lost = 0; !r.asked {
		r.outcome.Lost = max(0, r.gone())
	}
	volume := "the volume is empty"
	switch {
	case r.result != nil && r.stands.Revision > 0:
		volume = fmt.Sprintf("the volume is broken at revision %d", r.stands.Revision)
	case r.result != nil:
		volume = "the volume is broken"
	case r.stands.ClusterID != 0:
		volume = fmt.Sprintf("the volume is at revision %d", r.stands.HighestRevision)
	}
	what := "comes back with"
	if r.asked {
		what = "goes back to"
	}
	loss := fmt.Sprintf("%s; the cluster %s %s of generation %d from %s, whose backups end at revision %d of generation %d%s", volume, what, r.target(),
		r.kept.path.Generation.Number, r.options.Archive, r.endOfBackups(), r.kept.Newest().Number, r.leftBehind()+r.undone())
	if why := r.kept.path.PastEnd; why != nil {
		loss += "; what follows in the store cannot be read: " + why.Error()
	}
	if r.Progress().Loss == loss {
		return // it was said, and nothing has come into the store since
	}
	r.tell(func(p *Progress) { p.Loss = loss })
	r.options.Log.Warn().Int64("volume_revision", r.stands.HighestRevision).Int64("store_revision", r.endOfBackups()).
		Int64("reserved_revision", r.kept.Reserved.Revision).Int64("restored_revision", r.kept.path.Revision).Msg("recovery: " + loss)
}

func (r *run) endOfBackups() int64 {
	if r.kept.Head.Empty() {
		return r.kept.path.Revision
	}
	return r.kept.Head.Revision()
}

// gone is how many revisions of the newest generation, as far as is known, do not come back.
func (r *run) gone() int64 {
	known := r.endOfBackups()
	if r.successor().Number == 0 {
		known = max(known, r.stands.HighestRevision)
	}
	return known - r.kept.path.Revision
}

// undone is how much is lost, or undone.
func (r *run) undone() string {
	switch gone := r.gone(); {
	case r.asked && r.kept.path.Generation.Number != r.kept.Newest().Number:
		return "; everything that came after it is undone" // revisions were skipped in between
	case gone > 0 && r.asked:
		return fmt.Sprintf("; %d revisions are undone", gone)
	case gone > 0:
		return fmt.Sprintf("; %d revisions are lost", gone) + r.beforeTheEnd()
	case r.asked:
		return ""
	case r.leftBehind() != "":
		return r.beforeTheEnd()
	case r.missing() != 0:
		return fmt.Sprintf("; generation %d followed, and is not in the store any more: what it had is lost", r.missing())
	default:
		return "; nothing is known to be lost" + r.beforeTheEnd()
	}
}

// missing returns the number of the generation that followed the newest one, and is not in the store; 0 if none did. A reservation is
// made for a generation before it is created.
func (r *run) missing() int {
	if end := r.kept.Head.Ending(); end != nil && r.kept.Reserved.Generation >= end.Successor {
		return end.Successor
	}
	return 0
}

// flushVolume brings what only the volume has into the store. That it fails is no reason to stop: the volume is preserved.
func (r *run) flushVolume() (Event, Facts) {
	if r.options.Flush == nil || r.behind(r.kept) {
		return Flushed, Facts{}
	}
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	if err := r.options.Flush(ctx, r.member.DataDir, r.stands); err != nil {
		r.sayKeptBack(err)
		return Flushed, Facts{Err: err}
	}
	if logged := r.stands.HighestRevision - r.stands.Revision; logged > 0 {
		r.options.Log.Warn().Msgf("recovery: the last changes, up to %d, are in etcd's log only, since it was killed; the store does not get them, and the preserved copy keeps them", logged)
	}
	return Flushed, Facts{}
}

// sayKeptBack tells what the store lacks that was not brought there: perhaps it has all revisions, as of a member that was stopped in
// order.
func (r *run) sayKeptBack(why error) {
	ctx, cancel := context.WithTimeout(r.ctx, brief)
	defer cancel()
	head, err := r.options.Archive.Head(ctx, r.kept.Newest().Number)
	if err == nil && head.Revision() >= r.stands.Revision {
		r.options.Log.Info().Err(why).Msg("recovery: the store has every revision of the volume; leases and users that have changed since stay in the preserved copy")
		return
	}
	r.options.Log.Warn().Err(why).Msg("recovery: the store does not get everything that the volume has; the preserved copy keeps it")
}

// advance tells how far building is.
func (r *run) advance(began time.Time, now restore.Progress) {
	rate := float64(now.Bytes) / max(time.Since(began), time.Millisecond).Seconds()
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

// Refusal is why etcd may not open the data directory.
type Refusal struct {
	sentence string
	cause    error
	status   exitcode.Code
}

// Error is a sentence that names the way out.
func (r *Refusal) Error() string { return r.sentence }

// Status is what a process exits with that cannot go on: BadConfig where what is asked for cannot be, and EtcdFailed where somebody has to
// do something else. It is Clean if it should try again.
func (r *Refusal) Status() exitcode.Code { return r.status }

// Unwrap is what the volume, or the store, has to do with it.
func (r *Refusal) Unwrap() error { return r.cause }

// wayOut is what to do about a refusal that is no decision. What is missing here is said by what was wrong itself.
var wayOut = map[Event]string{
	RoomLacking: "make the volume larger, or move away what is not needed",
	Unbuildable: "see etcd-wrapper backup list, and name an earlier target with --restore-to and a --restore-id",
	Grown:       "name all members in initial-cluster; or, if the others are gone for good, say so with --restore-to=latest and a --restore-id",
	Diverged:    "point --backup-store at a place of their own; or, if they are to go on in that store, say so once with --adopt and the id of its cluster; or, if they are to be given up for those in the store, move the data directory away",
	Unproved:    "name an earlier target with --restore-to and a --restore-id",
}

func (r *run) refusal(row *Row, reason string, payload Facts) *Refusal {
	for _, more := range []string{r.could(row.On), r.wayOut(row, payload.Err)} {
		if more != "" {
			reason += "; " + more
		}
	}
	status, other := map[Event]exitcode.Code{Broke: exitcode.Clean, Decline: exitcode.BadConfig}[row.On]
	if !other {
		status = exitcode.EtcdFailed // the others are for people
	}
	return &Refusal{sentence: reason, cause: payload.Err, status: status}
}

// Ways out of what the store says of itself, of which nothing comes back before it is in order.
const (
	putNameBack = "put that object back, as from an earlier version of the bucket; or, if the backups in its folder are not wanted, or nobody of yours has made them, " +
		"move all of that folder away, and what comes before is gone on from"
	believe = "add the key to the file of --backup-trusted-keys, or --backup-identities; or, if nobody of yours has signed it, delete it, and of a generation.json all that is in its folder"
)

func (r *run) wayOut(row *Row, cause error) string {
	switch {
	case errors.Is(cause, archive.ErrNameless):
		return putNameBack
	case errors.Is(cause, archive.ErrUnsigned):
		return "give it, or make the data directory with etcd-wrapper restore, and give the cluster that begins with it a place of its own"
	case row.From == Decide && r.core.Facts.Told == StoreLocked && r.kept.Cluster.Cluster == "": // so no revision can be named
		return believe
	case row.From == Decide:
		return r.decision.WayOut
	}
	return wayOut[row.On]
}

// could is what would come back if that was wanted.
func (r *run) could(event Event) string {
	if is := r.core.Facts.caseOf(); event != Refuse || is.Asked != AskedNever || is.Store != StoreOurs {
		return ""
	}
	return fmt.Sprintf("%s has %s", r.options.Archive, r.target())
}

// beforeTheEnd is how much of its time a broken volume loses at the most, where both ends are known: until when the backups have
// everything, and when etcd last wrote. When a volume ended that is empty, or was put back, nobody knows.
func (r *run) beforeTheEnd() string {
	from := r.everythingUntil()
	if r.result == nil || from.IsZero() {
		return ""
	}
	end := datadir.LastWrite(r.member.DataDir)
	if end.IsZero() {
		return ""
	}
	return fmt.Sprintf("; the backups end at most %s before etcd last wrote to the volume", rounded(max(0, end.Sub(from))))
}

// everythingUntil is a time from before which nothing is missing in what comes back; zero if that is not known.
func (r *run) everythingUntil() time.Time {
	head, path := r.kept.Head, r.kept.path
	switch {
	case head.Empty(), head.Damaged != nil, path.Generation.Number != r.kept.Newest().Number, path.Revision != head.Revision():
		return time.Time{}
	case head.Segment != nil:
		return head.Segment.To
	default:
		return head.Full.Time
	}
}

// rounded is a duration for people, and not less than it is.
func rounded(d time.Duration) string {
	if d < time.Minute {
		const tenth = time.Second / 10
		return fmt.Sprintf("%.1f s", (d + tenth - 1).Truncate(tenth).Seconds())
	}
	return (d + time.Second - 1).Truncate(time.Second).String()
}
