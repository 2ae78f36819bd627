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

// Progress describes a run for users.
type Progress struct {
	State      State // empty before the first run
	Since      time.Time
	Reason     string  // why it is in that state: a sentence
	Uncompared bool    // etcd may open the data, and the store has not said whether it has more
	Loss       string  // what is lost or undone, in numbers; empty if nothing is restored
	Bytes      int64   // bytes that were rebuilt
	Of         int64   // expected total of Bytes; 0 if unknown
	Rate       float64 // bytes per second
}

// Left returns how long building will take at the present rate; 0 if unknown.
func (p Progress) Left() time.Duration {
	if p.Rate <= 0 || p.Of <= p.Bytes {
		return 0
	}
	return time.Duration(float64(p.Of-p.Bytes) / p.Rate * float64(time.Second))
}

// Restores reports whether a run restores something, or has.
func (p Progress) Restores() bool { return p.Loss != "" }

// Progress returns the progress of the present or the last run.
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

// report logs a step, and keeps why a run is refused.
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
	if event != Elapsed { // the reason for waiting stays while the question is repeated
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

// An Outcome is the end of a run that had something to restore.
type Outcome struct {
	Cause string // the state of the volume, Wanted or Unfinished
	Ended string // Restored, Rejoined or Denied
	Lost  int64  // revisions that are known to be lost, without those that the user has undone
}

// The outcomes, and the causes that are not states of the volume.
const (
	Restored   = "restored"   // from the store
	Rejoined   = "rejoined"   // with the data of the other members
	Denied     = "refused"    // the user has to act
	Wanted     = "requested"  // by --restore-to
	Unfinished = "unfinished" // a run that was cut off was completed
)

// noteCause records the cause before it is repaired.
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

// count reports the outcome.
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

// target describes the state that will be restored.
func (r *run) target() string {
	path := r.kept.path
	words := fmt.Sprintf("revision %d", path.Revision)
	if !path.Time.IsZero() {
		words += " of " + path.Time.UTC().Format(time.RFC3339)
	}
	return words
}

// tellLoss reports in numbers what is restored and what is lost, before anything is done, if the store has nothing
// better.
func (r *run) tellLoss() (Event, Facts) {
	switch why := r.pastEnd(); {
	case errors.Is(why, format.ErrUntrusted):
		return Answered, Facts{Told: StoreLocked, Err: why}
	case why != nil && r.mayCome(why): // damage lasts, and is reported
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
		return // it was logged, and the store has not changed since
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

// gone returns how many known revisions of the newest generation are not restored.
func (r *run) gone() int64 {
	known := r.endOfBackups()
	if r.successor().Number == 0 {
		known = max(known, r.stands.HighestRevision)
	}
	return known - r.kept.path.Revision
}

// undone describes how much is lost or undone.
func (r *run) undone() string {
	switch gone := r.gone(); {
	case r.asked && r.kept.path.Generation.Number != r.kept.Newest().Number:
		return "; everything that came after it is undone" // the revisions in between were skipped
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

// flushVolume uploads what only the volume has. A failure does not stop the restore, as the volume is preserved.
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

// sayKeptBack logs what the store lacks. It may have all revisions, as after an orderly stop.
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

// advance reports the progress of building.
func (r *run) advance(began time.Time, now restore.Progress) {
	rate := float64(now.Bytes) / max(time.Since(began), time.Millisecond).Seconds()
	r.tell(func(p *Progress) { p.Bytes, p.Of, p.Rate = now.Bytes, now.Of, rate })
}

// movable returns what prevents a data directory from being replaced by a rename.
func (r *run) movable() error {
	if strings.HasPrefix(seed.Place(r.options.VolumeDir)+"/", r.member.DataDir+"/") {
		return fmt.Errorf("the data directory %s is the volume itself, so nothing can be put in its place; name a data-dir below it", r.member.DataDir)
	}
	return seed.CheckPlace(r.member.DataDir)
}

// foresee warns of problems of a later restore while the data are valid.
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

// A Refusal says why etcd may not open the data directory.
type Refusal struct {
	sentence string
	cause    error
	status   exitcode.Code
}

// Error returns a sentence that names the way out.
func (r *Refusal) Error() string { return r.sentence }

// Status returns the exit status: BadConfig if a request cannot be carried out, EtcdFailed if the user has to do
// something else, Clean if the process should try again.
func (r *Refusal) Status() exitcode.Code { return r.status }

// Unwrap returns the error of the volume or the store.
func (r *Refusal) Unwrap() error { return r.cause }

// wayOut has the ways out of refusals that are not decisions. For others the cause names it.
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
		status = exitcode.EtcdFailed // the others need the user
	}
	return &Refusal{sentence: reason, cause: payload.Err, status: status}
}

// Ways out for stores whose statements cannot be used.
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

// could describes what could be restored on request.
func (r *run) could(event Event) string {
	if is := r.core.Facts.caseOf(); event != Refuse || is.Asked != AskedNever || is.Store != StoreOurs {
		return ""
	}
	return fmt.Sprintf("%s has %s", r.options.Archive, r.target())
}

// beforeTheEnd returns the maximum time that a damaged volume loses, if both ends are known: until when the backups
// are complete, and when etcd last wrote. The end of an empty or rolled-back volume is unknown.
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

// everythingUntil returns a time up to which nothing is missing in what is restored; zero if unknown.
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

// rounded formats a duration for users, rounded up.
func rounded(d time.Duration) string {
	if d < time.Minute {
		const tenth = time.Second / 10
		return fmt.Sprintf("%.1f s", (d + tenth - 1).Truncate(tenth).Seconds())
	}
	return (d + time.Second - 1).Truncate(time.Second).String()
}
