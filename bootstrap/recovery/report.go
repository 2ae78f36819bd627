package recovery

import (
	"context"
	"fmt"
	"strings"
	"time"

	"etcd-wrapper/bootstrap/backup/rebuild"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle/machine"
)

// Progress is how far a run is, for people.
type Progress struct {
	State  State // empty before the first run
	Since  time.Time
	Reason string  // why it is in that state: a sentence
	Loss   string  // what is lost, or undone, in numbers; empty if nothing is restored
	Bytes  int64   // rebuilt so far
	Of     int64   // about how many that will be; 0 if that is not known
	Rate   float64 // bytes a second
	Aside  string  // where the data directory that was replaced is; empty if none was
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

// Refusal is why etcd may not open the data directory.
type Refusal struct {
	// Final says that waiting does not help: somebody has to do something.
	Final bool
	// Configuration says that what is asked for cannot be: a target that is not kept, or a member that is not alone.
	Configuration bool

	sentence string
	cause    error
}

// Error is a sentence that names the way out.
func (r *Refusal) Error() string { return r.sentence }

// Status is what a process exits with that cannot go on; 0 if it should try again.
func (r *Refusal) Status() exitcode.Code {
	switch {
	case r.Configuration:
		return exitcode.BadConfig
	case r.Final:
		return exitcode.EtcdFailed
	default:
		return exitcode.Clean
	}
}

// Unwrap is what the volume, or the store, has to do with it.
func (r *Refusal) Unwrap() error { return r.cause }

// spoken is what a row is found by.
type spoken struct {
	from State
	on   Event
	when Guard
}

// wayOut is what to do about a refusal, for each row that leads to one.
var wayOut = map[spoken]string{
	{Examine, Examined, AmongOthersAsked}:  "take --restore-to away, or name all members in initial-cluster",
	{AskPeers, PeersTold, AllGoneForGood}:  "bring back the volume of a quorum, or begin a new cluster with empty volumes",
	{Examine, Examined, AmongOthersBroken}: "",
	{AskPeers, PeersTold, KnownButNever}:   "start with --recover=auto to have it brought back",
	{AskPeers, PeersTold, BornBroken}:      "move the data directory away if that is so",
	{AskStore, StoreSilent, WillNotWait}:   "see that the store can be reached",
	{AskStore, Answered, OtherCluster}:     "point --backup-store at this cluster's store, or mount the volume that the store belongs to",
	{AskStore, Answered, DoubtfulCluster}:  "point --backup-store at this cluster's store; or, if that cluster is to be brought back here, say so with --restore-to=latest and a --restore-id",
	{AskStore, Answered, AskedNotKept}:     "name a target that is kept, or take --restore-to away; nothing was moved",
	{AskStore, Answered, KeptButNever}:     "start with --recover=auto to have it brought back",
	{AskStore, Answered, always}:           "bring back the volume, or begin a new cluster with an empty volume and another --backup-store",
	{MakeRoom, RoomLacking, always}:        "make the volume larger, or move away what is not needed",
	{Build, Unbuildable, always}:           "see etcd-wrapper backup list, and name an earlier target with --restore-to and a --restore-id",
	{Build, Grown, always}:                 "name all members in initial-cluster; or, if the others are gone for good, say so with --restore-to=latest and a --restore-id",
	{Prove, Diverged, always}:              "point --backup-store at a place of this cluster's own; or, if its data are to be given up for those in the store, move the data directory away",
	{Prove, Unproved, always}:              "name an earlier target with --restore-to and a --restore-id",
}

// report tells people of a step, and keeps why a run is refused.
func (r *run) report(from State, event Event, payload Payload, decision machine.Decision) {
	reason := decision.Why
	if payload.Err != nil {
		reason += ": " + payload.Err.Error()
	}
	row := r.rules.Row(decision.Row)
	if decision.To == Refused {
		r.ended = r.refusal(row, reason, payload)
		reason = r.ended.Error()
	}
	now := time.Now()
	r.tell(func(p *Progress) {
		if p.State != decision.To {
			p.State, p.Since = decision.To, now
		}
		p.Reason = reason
	})
	line := r.options.Log.Debug()
	if event == StoreSilent && r.silent == 0 || r.waitsAnew(event, decision, reason) {
		line = r.options.Log.Warn()
	} else if from != decision.To && (r.Progress().Restores() || decision.To == Resume) {
		line = r.options.Log.Info()
	}
	line.Str("from", string(from)).Str("event", string(event)).Str("to", string(decision.To)).Msg("recovery: " + reason)
}

func (r *run) refusal(row *Row, reason string, payload Payload) *Refusal {
	if could := r.could(row.When); could != "" {
		reason += "; " + could
	}
	if out := wayOut[spoken{row.From, row.On, row.When}]; out != "" {
		reason += "; " + out
	}
	return &Refusal{
		Final: row.On != Broke && row.When != AmongOthersBroken, Configuration: row.When == AskedNotKept || row.When == AmongOthersAsked, sentence: reason, cause: payload.Err,
	}
}

// could is what would come back if that was wanted.
func (r *run) could(when Guard) string {
	if when != KeptButNever {
		return ""
	}
	return fmt.Sprintf("%s has %s", r.options.Archive, r.target())
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

// tellLoss says in numbers what comes back and what does not, before anything is done.
func (r *run) tellLoss() (Event, Payload) {
	volume := "the volume is empty"
	switch {
	case r.verdict != nil && r.stands.Revision > 0:
		volume = fmt.Sprintf("the volume is broken at revision %d", r.stands.Revision)
	case r.verdict != nil:
		volume = "the volume is broken"
	case r.stands.ClusterID != 0:
		volume = fmt.Sprintf("the volume is at revision %d", r.stands.Reach)
	}
	what := "comes back with"
	if r.asked {
		what = "goes back to"
	}
	loss := fmt.Sprintf("%s; the cluster %s %s of generation %d from %s, whose backups end at revision %d of generation %d%s", volume, what, r.target(),
		r.kept.path.Generation.Number, r.options.Archive, r.endOfBackups(), r.kept.newest.Number, r.undone())
	if beyond := r.kept.path.Beyond; beyond != nil {
		loss += "; what follows in the store cannot be read: " + beyond.Error()
	}
	r.tell(func(p *Progress) { p.Loss = loss })
	r.options.Log.Warn().Int64("volume_revision", r.stands.Reach).Int64("store_revision", r.endOfBackups()).
		Int64("reserved_revision", r.kept.reserved).Int64("restored_revision", r.kept.path.Revision).Msg("recovery: " + loss)
	return "", Payload{}
}

func (r *run) endOfBackups() int64 {
	if r.kept.head.Empty() {
		return r.kept.path.Revision
	}
	return r.kept.head.Revision()
}

// undone is how much is lost, or undone.
func (r *run) undone() string {
	known := max(r.stands.Reach, r.endOfBackups())
	switch gone := known - r.kept.path.Revision; {
	case r.asked && r.kept.path.Generation.Number != r.kept.newest.Number:
		return "; everything that came after it is undone" // revisions were skipped in between
	case gone > 0 && r.asked:
		return fmt.Sprintf("; %d revisions are undone", gone)
	case gone > 0:
		return fmt.Sprintf("; %d revisions are lost", gone)
	case r.asked:
		return ""
	default:
		return "; what came after it and was not in the store is lost"
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
		r.options.Log.Warn().Err(err).Msg("recovery: the store does not get everything that the volume has; it stays on the volume, set aside")
		return Flushed, Payload{Err: err}
	}
	return Flushed, Payload{}
}

// flushPatience is how long the store may take for what only the volume has.
const flushPatience = 2 * time.Minute

// advance tells how far building is.
func (r *run) advance(began time.Time, now rebuild.Progress) {
	rate := 0.0
	if took := time.Since(began).Seconds(); took > 0 {
		rate = float64(now.Bytes) / took
	}
	r.tell(func(p *Progress) { p.Bytes, p.Of, p.Rate = now.Bytes, now.Of, rate })
}

// movable says what keeps a data directory from being replaced by a rename.
func (r *run) movable() error {
	if strings.HasPrefix(r.options.VolumeDir+"/", r.member.DataDir+"/") {
		return fmt.Errorf("the data directory %s is the volume itself, so nothing can be put in its place; name a data-dir below it", r.member.DataDir)
	}
	return nil
}
