package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/relation"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/internal/disk"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/recovery/seed"
	"etcd-wrapper/statemachine"
)

// A Recovery decides what happens to a data directory and reports its progress to the lifecycle as the sidecar would.
// Only one run is active at a time. All exported methods except RecordMismatch may be called concurrently.
type Recovery struct {
	environment
	volume datadir.Validator

	stopped context.Context // canceled by Close; parent of every run's context
	stop    context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	status bootstrap.InitializationStatus
	config etcdconf.Document // configuration used by the last initialization; empty before the first one
	why    error             // error from the last initialization; nil if it succeeded or is still running
}

// New returns a Recovery in status New without changing anything on disk. The caller must call Close.
func New(options Options) *Recovery {
	stillness, err := time.ParseDuration(stillness)
	if err != nil {
		panic("recovery: invalid duration set by the linker: " + err.Error())
	}
	r := &Recovery{volume: datadir.Validator{Run: options.Validate}, status: bootstrap.New, environment: environment{
		options: options, checkRoom: seed.Seed.CheckSpace, now: time.Now, wait: backOff,
		idleTime: stillness, serveAfter: compareTimeout, lateMounts: mountTimeout,
	}}
	r.stopped, r.stop = context.WithCancel(context.Background())
	return r
}

// prepare makes the data directory ready for etcd. initialCluster contains the members of the existing cluster to
// join, or is empty if the configuration applies. The error is the reason why etcd must not open the directory. If
// ctx is done, prepare returns the cause, and the next run resumes. The caller must hold the lock of the volume and
// must not have opened etcd. examine validates the current data directory.
func (r *Recovery) prepare(ctx context.Context, member Member, examine func(context.Context) error) (initialCluster string, err error) {
	served := r.options.Lost != nil && r.options.Lost(member.DataDir)
	member.DataDir = seed.ResolvePath(member.DataDir)
	now := newRun(ctx, &r.environment, member, examine, served)
	r.changeProgress(func(p *Progress) { *p = Progress{State: Resume, Since: r.now()} })
	defer now.volume.release()
	err = now.process()
	now.job.finish(now.core.State == Refused)
	return now.members, err
}

// Close cancels a running initialization and waits for it. No initialization can be triggered afterwards. Close may
// be called more than once.
func (r *Recovery) Close() {
	r.mu.Lock()
	r.stop()
	r.mu.Unlock()
	r.running.Wait()
}

// Status returns the status of the initialization. As in the sidecar, reading Successful or Failed resets the status
// to New, so that each result is used once. If ctx is done, Status returns its error and keeps the result.
func (r *Recovery) Status(ctx context.Context) (bootstrap.InitializationStatus, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	status := r.status
	if status != bootstrap.Progress {
		r.status = bootstrap.New
	}
	return status, nil
}

// WhyFailed returns the error from the last initialization, or nil if it succeeded or is still running.
func (r *Recovery) WhyFailed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.why
}

// Trigger starts an initialization in the background if the status is New. Like the sidecar, Trigger treats every
// mode other than Sanity as Full. The context bounds only the call: the initialization runs until it ends or Close is
// called. Trigger returns an error if ctx is done or the Recovery is closed.
func (r *Recovery) Trigger(ctx context.Context, mode bootstrap.Mode) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if mode != bootstrap.Sanity {
		mode = bootstrap.Full
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped.Err() != nil {
		return errors.New("cannot validate the data directory: recovery is closed")
	}
	if r.status == bootstrap.New {
		r.status = bootstrap.Progress
		r.running.Go(func() { r.initialize(mode) })
	}
	return nil
}

// initialize validates the data directory, restores damaged or lost data, and stores the result.
func (r *Recovery) initialize(mode bootstrap.Mode) {
	began, log := time.Now(), r.options.Log.With().Str("mode", string(mode)).Logger()
	config, err := r.options.Config.Load()
	if err == nil {
		log = log.With().Str("data-dir", config.DataDir).Logger()
		config.YAML, err = r.initializeMember(r.stopped, config, func(ctx context.Context) error {
			return r.volume.Validate(ctx, config.DataDir, mode, log)
		})
	}
	before := r.WhyFailed()
	result, line := bootstrap.Successful, log.Info()
	switch {
	case errors.Is(err, context.Canceled) && r.stopped.Err() != nil: // Close was called
		result, line = bootstrap.Failed, log.Info().Err(err)
	case err != nil && before != nil && before.Error() == err.Error(): // already logged
		result, line = bootstrap.Failed, log.Debug()
	case err != nil:
		result, line = bootstrap.Failed, log.Error().Err(err)
	}
	line.Str("result", string(result)).Dur("took_ms", time.Since(began)).Msg("validation ended")
	r.mu.Lock() // log the result before the status changes
	defer r.mu.Unlock()
	r.status, r.config, r.why = result, config, err
}

// Config returns etcd's configuration as YAML. After an initialization, Config returns the validated configuration
// even if the file has changed, so that etcd opens the same directory. Errors contain the name of the file.
func (r *Recovery) Config(context.Context) ([]byte, error) {
	r.mu.Lock()
	validated := r.config
	r.mu.Unlock()
	if validated.YAML != nil {
		return validated.YAML, nil
	}
	config, err := r.options.Config.Load()
	return config.YAML, err
}

// initializeMember prepares a member's data directory and returns the YAML to start etcd with. The YAML is modified
// if the member joins an existing cluster. If etcd cannot use the configuration, initializeMember only examines the
// data, and the lifecycle reports the configuration error.
func (r *Recovery) initializeMember(ctx context.Context, config etcdconf.Document, examine func(context.Context) error) ([]byte, error) {
	yaml := config.YAML
	checked, err := etcdconf.Parse(yaml)
	switch {
	case errors.Is(err, bootstrap.ErrCertificates):
		return yaml, err // temporary: a certificate rotation may be in progress
	case err != nil:
		return yaml, examine(ctx)
	}
	member := memberOf(checked, config.DataDir)
	others, err := peers.New(checked.Etcd, r.options.Reach)
	if err != nil {
		return yaml, err
	}
	if others != nil {
		defer others.Close()
		member.Peers = others
	}
	initialCluster, err := r.prepare(ctx, member, examine)
	if err != nil || initialCluster == "" {
		return yaml, err
	}
	return etcdconf.ForNewMember(yaml, initialCluster)
}

// memberOf returns the member that etcd's configuration describes.
func memberOf(checked *etcdconf.Checked, dataDir string) Member {
	etcd := checked.Etcd
	member := Member{Config: etcd, DataDir: dataDir, PeerURLs: etcd.AdvertisePeerUrls}
	member.Members, _ = types.NewURLsMap(etcd.InitialCluster) // empty if discovery is used
	if listed := member.Members[etcd.Name]; len(member.Members) == 1 && listed != nil {
		member.PeerURLs, member.Alone = listed, true // not the advertised URLs, because etcd computes IDs from these
	}
	return member
}

// SeedOf describes the data directory of a restored cluster with all members from etcd's configuration.
func SeedOf(yaml []byte, dataDir, token string) (seed.Seed, error) {
	checked, err := etcdconf.Parse(yaml)
	if err != nil {
		return seed.Seed{}, err
	}
	member := memberOf(checked, dataDir)
	return seed.Seed{DataDir: dataDir, Name: member.Name, Token: token, Members: member.Members}, nil
}

// A runner drives the state machine through one run.
type runner struct {
	*session
	volume  *localVolume
	backups *remoteStore
	cluster *peerGroup
	job     *job

	core    statemachine.Core[Facts]
	rules   *statemachine.Rules[Facts, Facts]
	legal   *statemachine.Checker
	actions map[Action]func() (Event, Facts, error) // an empty event leads to the next action; an error is reported as Failed

	decision Decision // last decision
	reason   string   // reason for the current state
	waitsFor string   // last logged reason for waiting
	rejected error    // reason why etcd may not open the data
	members  string   // members of the existing cluster to join; empty if the configuration applies
}

func newRun(ctx context.Context, e *environment, member Member, examine func(context.Context) error, served bool) *runner {
	s := &session{environment: e, ctx: ctx, member: member, id: archive.NewID()}
	r := &runner{session: s, legal: statemachine.NewChecker(Table, Resume), rules: statemachine.NewRules[Facts](Table, Elsewhere, Ready)}
	r.core = statemachine.Core[Facts]{State: Resume, Facts: Facts{Never: e.options.Never, Store: e.options.Archive != nil}}
	s.facts = &r.core.Facts
	r.volume = &localVolume{session: s, examine: examine, served: served}
	r.backups = &remoteStore{session: s, volume: r.volume}
	r.cluster = &peerGroup{session: s, volume: r.volume, backups: r.backups}
	r.job = &job{session: s, volume: r.volume, backups: r.backups, cluster: r.cluster}
	r.actions = map[Action]func() (Event, Facts, error){
		ReadPosition:    r.job.resume,
		DropUnfinished:  r.volume.removeUnfinished,
		DropClaim:       r.job.dropClaim,
		ValidateVolume:  r.volume.validate,
		AskThePeers:     r.cluster.queryPeers,
		LogRejoin:       r.job.reportRejoin,
		RemoveMember:    r.cluster.removeMember,
		AddMember:       r.cluster.addMember,
		AdoptCluster:    r.join,
		TakeStore:       r.backups.adopt,
		AskTheStore:     r.backups.queryStore,
		LogLoss:         r.job.reportLost,
		FlushSpool:      r.backups.uploadSpool,
		FlushVolume:     r.backups.uploadVolume,
		FindEnd:         r.backups.findEnd,
		CheckSpace:      r.job.checkSpace,
		EndAdopted:      r.backups.endNamed,
		BuildData:       r.job.build,
		ValidateBuilt:   r.job.verify,
		RecordClaim:     r.job.recordClaim,
		ClaimGeneration: r.job.createGeneration,
		PreserveData:    r.job.preserveVolume,
		InstallData:     r.job.install,
		RecordRestore:   r.job.complete,
	}
	return r
}

// process handles events until the run ends.
func (r *runner) process() error {
	for event, facts := RunStarted, (Facts{}); event != "" && r.core.State != Refused; {
		if r.ctx.Err() != nil {
			return fmt.Errorf("recovery was stopped in state %s: %w", r.core.State, context.Cause(r.ctx))
		}
		actions, err := r.take(event, facts)
		if err == nil {
			event, facts, err = r.do(actions)
		}
		if err != nil {
			return err
		}
	}
	if r.core.State == Ready {
		return r.allowStart()
	}
	if r.facts.hasStoreMismatch() {
		if err := r.RecordMismatch(r.member.DataDir, r.rejected); err != nil {
			r.options.Log.Error().Err(err).Msg("recovery: cannot record on the volume that the data was rejected")
		}
	}
	return r.rejected
}

// allowStart permits etcd to open the data.
func (r *runner) allowStart() error {
	result := r.decision.Result
	if r.job.outcome.Ended == Restored { // if an earlier run restored the data, this run made no decision
		result = RestoreData
	}
	if result == CreateCluster { // check before the new cluster claims the store
		if err := etcdconf.CheckFounding(r.ctx, r.member.Config); err != nil {
			return &exitcode.FinalError{Status: exitcode.BadConfig, Err: err}
		}
	}
	err := r.backups.writeIdentity(result)
	if copies := disk.PreservedCopies(r.member.DataDir); r.decision.Result == CreateCluster && len(copies) > 0 {
		warning := fmt.Sprintf("created a new cluster without restoring the earlier data in %s; to use that data, stop etcd-wrapper and move it to %s",
			copies[len(copies)-1].Path, r.member.DataDir)
		r.changeProgress(func(p *Progress) { p.Reason, p.Warning = warning, true })
		r.options.Log.Warn().Msg("recovery: " + warning)
	}
	if err == nil {
		err = r.updateRecord(func(r *journal) { r.Refused = nil })
	}
	if err == nil {
		peers.PublishOpened(r.volume.position.HighestRevision, r.volume.identity)
		r.volume.prepareStart()
	}
	return err
}

// take handles an event and returns the actions to perform. If the event requires a decision, take decides and
// handles the resulting event as well.
func (r *runner) take(event Event, facts Facts) ([]Action, error) {
	from := r.core.State
	decision, err := r.step(event, facts)
	if err == nil && slices.Contains(decision.Do, DecideNow) {
		r.decision = evaluate(rules, r.facts.caseOf())
		decision, err = r.step(r.decision.Result, Facts{})
		decision.Why = r.decision.Why
	}
	if err == nil {
		r.report(from, event, facts, decision)
	}
	return decision.Do, err
}

// step finds the row for an event and verifies the transition with a Checker.
func (r *runner) step(event Event, facts Facts) (statemachine.Decision, error) {
	core, decision := r.rules.Step(r.core, event, facts)
	if decision.Row < 0 {
		return decision, fmt.Errorf("recovery: bug: the transition table has no row for event %q in state %s: %s", event, r.core.State, decision.Why)
	}
	if err := r.legal.Take(r.rules.Row(decision.Row)); err != nil {
		return decision, fmt.Errorf("recovery: %w", err)
	}
	r.core = core
	return decision, nil
}

// join makes etcd start with the members of the existing cluster.
func (r *runner) join() (Event, Facts, error) {
	r.members = r.survey.InitialCluster(r.member.Name)
	return "", Facts{}, nil
}

// do performs the actions of a row in order until one of them returns an event. A test checks that every action has a
// function.
func (r *runner) do(actions []Action) (Event, Facts, error) {
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
		event, facts, err := r.actions[action]()
		if err != nil {
			return Failed, Facts{Err: err}, nil
		}
		if event != "" {
			return event, facts, nil
		}
	}
	return "", Facts{}, nil
}

// quickRetries is the number of requests to the peers before the pauses get longer. The first pauses are short
// because members that start together find each other soon.
const quickRetries = 10

// pause waits before a request is retried. The pauses for the store get longer with every attempt. The pauses for the
// peers remain short, because the peers learn of a membership change one after the other.
func (r *runner) pause(action Action) {
	times := r.retries + r.searches + 1
	if action == PacePeers {
		times = max(0, min(r.retries-quickRetries, 1))
	}
	r.changeProgress(func(p *Progress) { p.Reason = r.reason + "; next attempt within " + longestWait(times).String() })
	ctx, cancel := r.ctx, func() {}
	if left := r.backups.heartbeat.until.Sub(r.now()); action == PaceStore && left > 0 {
		ctx, cancel = context.WithTimeout(r.ctx, left)
	}
	r.wait(ctx, times)
	cancel()
	r.retries++
}

// report logs a step and updates the progress. If the step leads to Refused, report also sets the error that process
// returns.
func (r *runner) report(from State, event Event, facts Facts, decision statemachine.Decision) {
	row, reason := r.rules.Row(decision.Row), decision.Why
	switch {
	case row.On == Failed:
		reason = fmt.Sprintf("%v; %s", facts.Err, reason)
	case facts.Err != nil:
		reason += ": " + facts.Err.Error()
	}
	if way := r.wayOut(row, facts.Err); way != "" {
		reason += "; " + way
	}
	if decision.To == Refused {
		r.rejected = rejection(row.On, reason, facts.Err)
	}
	if event != Elapsed { // a retry keeps the earlier reason for waiting
		r.reason = reason
	}
	r.changeProgress(func(p *Progress) {
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
	case !waits && from != decision.To && (r.Progress().Restores() || decision.To == Resume):
		line = r.options.Log.Info()
	}
	line.Str("from", string(from)).Str("event", string(event)).Str("to", string(decision.To)).Msg("recovery: " + reason)
}

// Ways out if metadata in the store cannot be used.
const (
	restoreObject = "restore the object, for example from an earlier version in the bucket; or, if the backups in its folder are unwanted or of unknown origin, " +
		"move the whole folder elsewhere to continue from the previous generation"
	trustKey = "add the key to the --backup-trusted-keys file or to --backup-identities; or, if the signer is unknown, delete the object (for generation.json, delete its whole folder)"
)

// waysOut lists the ways out of refusals that are not decisions. For other events, the error contains the way out.
var waysOut = map[Event]string{
	NoSpace:           "enlarge the volume or delete files that are not needed",
	BackupsDamaged:    "choose an earlier target with --restore-to and --restore-id; \"etcd-wrapper backup list\" shows the targets",
	MultiMemberBackup: "list all members in initial-cluster or, if the others are gone for good, start with --restore-to=latest and a --restore-id",
	Diverged: "if the disk corrupted the data, move the data directory aside to restore it from the store; if the data is a copy that you want to keep, " +
		"point --backup-store at another location or start once with --adopt and the ID of the store's cluster",
	ValidationFailed: "choose an earlier target with --restore-to and --restore-id",
}

// wayOut returns what the user can do after a step, or "" if there is nothing to do or the error already says it.
func (r *runner) wayOut(row *statemachine.Row, err error) string {
	switch {
	case errors.Is(err, archive.ErrNameless):
		return restoreObject
	case errors.Is(err, archive.ErrUnsigned):
		return "set the flag, or create the data directory with \"etcd-wrapper restore\" and use a separate --backup-store for the new cluster"
	case errors.Is(err, syscall.EROFS):
		return "mount the volume read-write"
	case row.From != Decide:
		return waysOut[row.On]
	case r.facts.Answer == StoreNoKeys && r.backups.last.Cluster.Cluster == "":
		// The rule suggests choosing a revision to restore, but the revisions cannot be listed.
		return trustKey
	}
	way := storeWayOut(err, r.decision.WayOut)
	if c := r.facts.caseOf(); row.On == Refuse && c.Asked == AskedNever && c.Store == relation.Ours {
		way = fmt.Sprintf("%s has %s; %s", r.options.Archive, r.job.describeTarget(), way)
	}
	return way
}

// rejection returns the error for data that etcd must not open. The error wraps cause and is final unless the
// process should retry.
func rejection(event Event, sentence string, cause error) error {
	err := bootstrap.Mark(errors.New(sentence), cause)
	if event == Failed {
		return err
	}
	status := exitcode.EtcdFailed // the user has to fix something other than the configuration
	if event == Decline {
		status = exitcode.BadConfig
	}
	return &exitcode.FinalError{Status: status, Err: err}
}
