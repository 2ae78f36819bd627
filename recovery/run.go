package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/internal/disk"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
)

// A run is one run of the machine.
type run struct {
	*session
	volume  *volume
	backups *backups
	cluster *cluster
	job     *job

	core      statemachine.Core[Facts]
	rules     *statemachine.Rules[Facts, Facts]
	legal     *statemachine.Legality
	interrupt func(Action) error // for tests: an error ends the run before an action
	actions   map[Action]func() (Event, Facts)

	decision Decision // the last one
	reason   string   // why it is in its state
	waitsFor string   // what was last logged to be waited for
	rejected error    // why it is refused
	members  string   // of the existing cluster that this one joins; empty if the configuration applies
}

func newRun(ctx context.Context, e *environment, member Member, examine func(context.Context) error, served bool) *run {
	s := &session{environment: e, ctx: ctx, member: member, id: archive.NewID()}
	r := &run{session: s, legal: statemachine.NewLegality(Table, Resume), rules: NewRules(Table, Elsewhere)}
	r.core = statemachine.Core[Facts]{State: Resume, Facts: Facts{Never: e.options.Never, Store: e.options.Archive != nil}}
	s.facts = &r.core.Facts
	r.volume = &volume{session: s, examine: examine, served: served}
	r.backups = &backups{session: s, volume: r.volume}
	r.cluster = &cluster{session: s, volume: r.volume, backups: r.backups}
	r.job = &job{session: s, volume: r.volume, backups: r.backups, cluster: r.cluster}
	r.actions = r.bind()
	return r
}

// bind returns what each action does. An empty event means that the next action follows.
func (r *run) bind() map[Action]func() (Event, Facts) {
	return map[Action]func() (Event, Facts){
		ReadPosition:    r.job.resume,
		DropUnfinished:  r.volume.removeUnfinished,
		ForgetClaim:     r.job.dropClaim,
		ValidateVolume:  r.volume.validate,
		AskThePeers:     r.cluster.queryPeers,
		TellReturn:      r.job.reportRejoin,
		RemoveMember:    r.cluster.removeMember,
		AddMember:       r.cluster.addMember,
		AdoptCluster:    r.join,
		TakeStore:       r.backups.adopt,
		AskTheStore:     r.backups.queryStore,
		TellLoss:        r.job.reportLost,
		FlushSpool:      r.backups.uploadSpool,
		FlushVolume:     r.backups.uploadVolume,
		FindEnd:         r.backups.findEnd,
		MeasureRoom:     r.job.checkSpace,
		EndAdopted:      r.backups.endNamed,
		BuildData:       r.job.build,
		ProveData:       r.job.verify,
		TellPeers:       r.job.publish,
		NotePosition:    r.job.recordClaim,
		ClaimGeneration: r.job.createGeneration,
		SetVolumeAside:  r.job.preserveVolume,
		InstallData:     r.job.install,
		Remember:        r.job.complete,
	}
}

// process handles events until the run ends.
func (r *run) process() error {
	event, facts := Begun, Facts{}
	for {
		actions, err := r.take(event, facts)
		if err != nil {
			return err
		}
		if event, facts, err = r.do(actions); err != nil {
			return err
		}
		if event == "" || r.core.State == Refused {
			break
		}
		if r.ctx.Err() != nil {
			return fmt.Errorf("recovery was stopped in %s: %w", r.core.State, context.Cause(r.ctx))
		}
	}
	if r.core.State == Ready {
		return r.allowStart()
	}
	if r.facts.hasStoreMismatch() {
		if err := r.RecordMismatch(r.member.DataDir, r.rejected); err != nil {
			r.options.Log.Error().Err(err).Msg("recovery: cannot record on the volume that the data were refused")
		}
	}
	return r.rejected
}

// allowStart lets etcd open the data.
func (r *run) allowStart() error {
	result := r.decision.Result
	if r.job.outcome.Ended == Restored { // perhaps by an earlier run: then nothing was decided in this one
		result = RestoreData
	}
	err := r.backups.writeIdentity(result)
	if copies := disk.PreservedCopies(r.member.DataDir); r.decision.Result == FoundCluster && len(copies) > 0 {
		r.job.logUnused(copies[len(copies)-1].Path)
	}
	before, failed := r.readRecord()
	if err = errors.Join(err, failed); err == nil && before.Refused != nil {
		err = r.updateRecord(func(r *record) { r.Refused = nil })
	}
	if err == nil {
		peers.PublishOpened(r.volume.position.HighestRevision, r.volume.identity)
		r.volume.prepareStart()
	}
	return err
}

// take answers an event, and returns the actions that follow. A decision follows immediately.
func (r *run) take(event Event, facts Facts) ([]Action, error) {
	from := r.core.State
	decision, err := r.step(event, facts)
	if err == nil && slices.Contains(decision.Do, DecideNow) {
		r.decision = evaluate(r.facts.caseOf())
		decision, err = r.step(r.decision.Result, Facts{})
		decision.Why = r.decision.Why
	}
	if err == nil {
		r.report(from, event, facts, decision)
	}
	return decision.Do, err
}

// step looks an event up in the table, and checks the step with the library's machine.
func (r *run) step(event Event, facts Facts) (statemachine.Decision, error) {
	core, decision := r.rules.Step(r.core, event, facts)
	if decision.Row < 0 {
		return decision, fmt.Errorf("recovery: %q in %s is answered by no row: %s", event, r.core.State, decision.Why)
	}
	if err := r.legal.Take(r.rules.Row(decision.Row)); err != nil {
		return decision, fmt.Errorf("recovery: %w", err)
	}
	r.core = core
	return decision, nil
}

// join makes etcd start with the members of the cluster.
func (r *run) join() (Event, Facts) {
	r.members = r.survey.InitialCluster(r.member.Name)
	return "", Facts{}
}

// do executes the actions of a row in order, until one ends with an event.
func (r *run) do(actions []Action) (Event, Facts, error) {
	for _, action := range actions {
		if r.interrupt != nil {
			if err := r.interrupt(action); err != nil {
				return "", Facts{}, err
			}
		}
		if action == PaceStore || action == PacePeers {
			r.pause(action)
			return Elapsed, Facts{}, nil
		}
		do, bound := r.actions[action]
		if !bound {
			return "", Facts{}, fmt.Errorf("action %q does nothing: bind it", action)
		}
		if event, facts := do(); event != "" {
			return event, facts, nil
		}
	}
	return "", Facts{}, nil
}

// quickRetries is the number of requests to peers without a longer pause: members that start together find each other
// soon.
const quickRetries = 10

// pause waits before a request is repeated. Peers that have answered are asked again soon, as they change their list
// of members one after the other.
func (r *run) pause(action Action) {
	times := r.retries + r.searches + 1
	if action == PacePeers {
		times = max(0, min(r.retries-quickRetries, 1))
	}
	r.progress.change(func(p *Progress) { p.Reason = r.reason + "; next attempt within " + longestWait(times).String() })
	ctx, cancel := r.ctx, func() {}
	if left := r.backups.heartbeat.until.Sub(r.now()); action == PaceStore && left > 0 {
		ctx, cancel = context.WithTimeout(r.ctx, left)
	}
	r.wait(ctx, times)
	cancel()
	r.retries++
}

// report logs a step, and keeps why a run is refused.
func (r *run) report(from State, event Event, facts Facts, decision statemachine.Decision) {
	row, reason := r.rules.Row(decision.Row), decision.Why
	switch {
	case row.On == Broke:
		reason = fmt.Sprintf("%v; %s", facts.Err, reason)
	case facts.Err != nil:
		reason += ": " + facts.Err.Error()
	}
	if way := r.wayOut(row, facts.Err); way != "" {
		reason += "; " + way
	}
	if decision.To == Refused {
		r.rejected = newRejectError(row.On, reason, facts.Err)
	}
	if event != Elapsed { // the reason for waiting stays while the question is repeated
		r.reason = reason
	}
	r.progress.change(func(p *Progress) {
		if p.State != decision.To {
			p.State, p.Since = decision.To, r.now()
		}
		p.Reason = r.reason
		p.Uncompared = decision.Why == notCompared
	})
	line, waits := r.options.Log.Debug(), slices.Contains(decision.Do, PaceStore) || slices.Contains(decision.Do, PacePeers)
	switch {
	case waits && reason != r.waitsFor, decision.Why == notCompared:
		line, r.waitsFor = r.options.Log.Warn(), reason
	case !waits && from != decision.To && (r.progress.current().Restores() || decision.To == Resume):
		line = r.options.Log.Info()
	}
	line.Str("from", string(from)).Str("event", string(event)).Str("to", string(decision.To)).Msg("recovery: " + reason)
}

// Ways out for stores whose statements cannot be used.
const (
	putNameBack = "restore that object, for instance from an earlier version in the bucket; or, if the backups in its folder are not wanted or of unknown origin, " +
		"move the whole folder away to continue from the generation before"
	believe = "add the key to the file of --backup-trusted-keys, or to --backup-identities; or, if its signer is unknown, delete it, and with a generation.json everything in its folder"
)

// waysOut has the ways out of refusals that are not decisions. For others the cause names it.
var waysOut = map[Event]string{
	RoomLacking: "enlarge the volume, or remove files that are not needed",
	Unbuildable: "name an earlier target with --restore-to and --restore-id; etcd-wrapper backup list shows them",
	Grown:       "name all members in initial-cluster; or, if the others are gone for good, start with --restore-to=latest and a --restore-id",
	Diverged: "if the disk has changed it, move the data directory away to restore from the store; if the data are a copy to keep, " +
		"point --backup-store at another place, or start once with --adopt and the ID of the store's cluster",
	Unproved: "name an earlier target with --restore-to and --restore-id",
}

// wayOut returns the next step of the user after a step of the machine; empty if there is none.
func (r *run) wayOut(row *Row, err error) string {
	switch {
	case errors.Is(err, archive.ErrNameless):
		return putNameBack
	case errors.Is(err, archive.ErrUnsigned):
		return "set it, or make the data directory with etcd-wrapper restore, and give the new cluster a store of its own"
	case errors.Is(err, syscall.EROFS):
		return "mount the volume read-write"
	case row.From != Decide:
		return waysOut[row.On]
	case r.facts.Told == StoreLocked && r.backups.last.Cluster.Cluster == "": // so no revision can be named
		return believe
	}
	way := storeWayOut(err, r.decision.WayOut)
	if c := r.facts.caseOf(); row.On == Refuse && c.Asked == AskedNever && c.Store == StoreOurs {
		way = fmt.Sprintf("%s has %s; %s", r.options.Archive, r.job.describeTarget(), way)
	}
	return way
}

// newRejectError returns the refusal that an event leads to.
func newRejectError(event Event, reason string, cause error) *RejectError {
	status, other := map[Event]exitcode.Code{Broke: exitcode.Clean, Decline: exitcode.BadConfig}[event]
	if !other {
		status = exitcode.EtcdFailed // the others need the user
	}
	return &RejectError{sentence: reason, cause: cause, status: status}
}
