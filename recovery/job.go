package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/relation"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/internal/disk"
	"etcd-wrapper/recovery/seed"
)

// margin is an upper bound for the number of revisions used since the last reservation, so that no client sees a
// revision twice.
const margin = archive.Margin

// A job replaces the data on the volume with data from the store, or makes room for the data of the other members.
type job struct {
	*session
	volume  *localVolume
	backups *remoteStore
	cluster *peerGroup
	claim   restoreClaim // claim of the restored data
	resumed bool         // whether the claim was recorded by an earlier run
	outcome Result       // Ended is empty if nothing was restored
}

// resume checks whether an earlier run was interrupted after its claim.
func (j *job) resume() (Event, Facts, error) {
	r, err := j.readRecord()
	if err != nil || r.Claim == nil || r.Claim.DataDir != j.member.DataDir {
		return NothingToResume, Facts{}, err
	}
	j.claim, j.resumed = *r.Claim, true
	built, err := hasMember(j.volume.restoredDir())
	identity, _ := archive.ReadIdentity(j.member.DataDir) // an identity that cannot be read does not match the claim
	switch {
	case err == nil && built:
		return ClaimFound, Facts{}, j.volume.lock()
	case err == nil && identity.Cluster == j.claim.Generation.Cluster && identity.Generation == j.claim.Generation.Number:
		return InstallFound, Facts{}, nil
	}
	return NothingToResume, Facts{}, err // the built data is gone, because the user has deleted it
}

// recordClaim records the claim before the generation is created. recordClaim notifies the peers first. Otherwise,
// a peer that finds the new generation in the store could conclude that this member has no data.
func (j *job) recordClaim() (Event, Facts, error) {
	if j.member.Peers != nil {
		j.member.Peers.Publish(selfForRestore(j.claim.Generation))
	}
	return "", Facts{}, j.updateRecord(func(r *journal) { r.Claim = &j.claim })
}

func (j *job) dropClaim() (Event, Facts, error) {
	return "", Facts{}, j.updateRecord(func(r *journal) { r.Claim = nil })
}

// checkSpace checks that there is enough free space before anything is fetched.
func (j *job) checkSpace() (Event, Facts, error) {
	err := j.volume.checkRename()
	if err == nil {
		if lacks := j.volume.freeSpace(restore.NewSource(j.options.Archive, j.backups.last.path), storeTimeout); lacks != nil {
			return NoSpace, Facts{Err: lacks}, nil
		}
	}
	return EnoughSpace, Facts{}, err
}

// build fetches the backup and builds a data directory. If the build fails, the event depends on the cause: the
// store, the backup or the volume.
func (j *job) build() (Event, Facts, error) {
	plan := seed.Seed{
		DataDir: j.volume.restoredDir(), Name: j.member.Name, Token: seed.NewToken(),
		Members: types.URLsMap{j.member.Name: j.member.PeerURLs}, Generation: j.backups.last.Next,
	}
	started := time.Now()
	var result seed.Result
	_, err := restore.Best(j.ctx, j.options.Archive, j.backups.last.path, func(path archive.Path) (err error) {
		result, err = plan.Build(j.ctx, restore.NewSource(j.options.Archive, path), restore.Options{
			Above: j.minRevision(), Inspect: j.options.Inspect,
			Progress: func(bytes, total int64) {
				rate := float64(bytes) / max(time.Since(started), time.Millisecond).Seconds()
				j.changeProgress(func(p *Progress) { p.Bytes, p.Of, p.Rate = bytes, total, rate })
			},
		})
		return err
	}, j.useFallback)
	if err != nil {
		return j.classify(err)
	}
	revision := j.backups.last.path.Revision
	if j.member.Alone && !j.requested && result.Voters > 1 {
		return MultiMemberBackup, Facts{Err: fmt.Errorf("the cluster had %d voting members at revision %d", result.Voters, revision)}, nil
	}
	j.claim, j.resumed = j.newClaim(result), false
	identity := archive.Identity{Cluster: j.claim.Generation.Cluster, Generation: j.claim.Generation.Number}
	if err = cmp.Or(identity.Write(j.volume.restoredDir()), j.volume.lock()); err != nil {
		return "", Facts{}, err
	}
	if len(result.Alarms) > 0 {
		j.options.Log.Warn().Strs("alarms", result.Alarms).Msg("recovery: not restoring the alarms of the backed-up cluster")
	}
	j.options.Log.Info().Int64("revision", revision).Int64("continues_above", j.minRevision()).Int64("bytes", result.Bytes).
		Int64("rows", result.Rows).Dur("took_ms", time.Since(started)).Msg("recovery: built a data directory from the backup")
	return Built, Facts{}, nil
}

// minRevision returns the revision above which the restored cluster continues, so that no revision is used twice.
func (j *job) minRevision() int64 {
	last := j.backups.last
	return archive.SafeRevision(last.Reserved.Revision, max(last.path.Revision, j.volume.position.HighestRevision, j.lastRevision()))
}

// lastRevision returns the last revision in the backups.
func (j *job) lastRevision() int64 {
	if j.backups.last.Head.Empty() {
		return j.backups.last.path.Revision
	}
	return j.backups.last.Head.Revision()
}

// newClaim returns the claim for the built data.
func (j *job) newClaim(result seed.Result) restoreClaim {
	last, now := j.backups.last, time.Now()
	c := restoreClaim{
		Generation: archive.Generation{
			Number: last.Next, Cluster: last.Cluster.Cluster, Owner: j.owner(), Etcd: hex(result.ClusterID),
			Parent: last.path.Generation.Number, ParentRevision: last.path.Revision, Created: now.UTC().Truncate(time.Second),
			// Each generation repeats the earlier IDs, because retention may delete older generations.
			Session: archive.NewID(), Restored: archive.Restores(last.Generations),
			Adopted: j.backups.adoptOwners(last),
		},
		Reservation: min(result.Revision, math.MaxInt64-margin) + margin,
		Head:        last.Head.Position, Aside: disk.PreservedName(j.member.DataDir, now), DataDir: j.member.DataDir, At: now.UTC(),
	}
	if j.requested {
		c.Generation.Restore = j.options.Request.ID
	}
	return c
}

// maxSearches is the number of searches, spread over about 30s, after which a missing object counts as lost.
// Searching again helps because listings of a network file system can be delayed and another member may have just
// merged and deleted the object.
const maxSearches = 5

// errMissing stops a build so that recovery can search for an object again.
var errMissing = errors.New("the build was stopped")

// shouldRetry counts attempts and reports whether another one may succeed.
func (j *job) shouldRetry(err error) bool {
	if j.searches == maxSearches || !isOneOf(err, store.ErrNotFound, archive.ErrHole) {
		return false
	}
	j.searches++
	return true
}

// useFallback switches to another path if an object on the first path is missing or damaged, and logs what is lost.
func (j *job) useFallback(from, to archive.Path, why error) error {
	if to.Revision < from.Revision && j.shouldRetry(why) {
		return fmt.Errorf("%w: %w", errMissing, why)
	}
	j.options.Log.Warn().Err(why).Str("full", to.Full.Name()).Int64("lost_revisions", from.Revision-to.Revision).
		Msg("recovery: a backup object is missing or damaged; restoring without it")
	j.backups.last.path = to
	j.logLost()
	return nil
}

// classify returns the event for a build error, depending on whether the store, the keys, the volume or the backups
// caused it.
func (j *job) classify(err error) (Event, Facts, error) {
	var fault *archive.Fault
	switch {
	case j.ctx.Err() != nil:
		return "", Facts{}, j.ctx.Err()
	case isOneOf(err, format.ErrUntrusted, format.ErrNoIdentity):
		return storeAnswer(StoreNoKeys, err)
	case errors.Is(err, errMissing):
		return Missing, Facts{Err: err}, nil
	case store.FailureOf(err) != "":
		return StoreUnavailable, Facts{Err: err}, nil
	case isOneOf(err, restore.ErrNoRoom, syscall.ENOSPC, syscall.EDQUOT):
		return NoSpace, Facts{Err: err}, nil
	case j.shouldRetry(err):
		return Missing, Facts{Err: err}, nil
	case errors.As(restore.Blamed(err, j.backups.last.path), &fault), errors.Is(err, format.ErrNewer):
		return BackupsDamaged, Facts{Err: err}, nil
	}
	return "", Facts{}, err
}

// verify runs a full validation of the built data. If the built data replaces older data, verify also checks that the
// older data is an earlier state of it.
func (j *job) verify() (Event, Facts, error) {
	warnings, err := j.options.Validate(j.ctx, j.volume.restoredDir(), bootstrap.Full)
	for _, warning := range warnings {
		j.options.Log.Warn().Msg(warning)
	}
	switch {
	case j.ctx.Err() != nil, datadir.IsTransient(err): // a temporary error, such as insufficient memory
		return "", Facts{}, cmp.Or(j.ctx.Err(), err)
	case err != nil:
		return ValidationFailed, Facts{Err: err}, nil
	case j.requested || !j.isValid() || j.volume.position.Revision == 0:
		// A requested restore may differ from the data; otherwise, there is no data to compare.
		return Validated, Facts{}, nil
	}
	revision, err := datadir.Divergence(j.member.DataDir, j.volume.restoredDir())
	if revision != 0 {
		changes, changed := j.volume.checkRows() // if the log cannot be read, changes is empty
		if revision, err = datadir.Divergence(j.member.DataDir, j.volume.restoredDir(), changes...); revision == 0 && err == nil {
			j.options.Log.Warn().Err(changed).Msg("recovery: the volume differs from its backups because it is damaged")
		}
	}
	switch {
	case err != nil:
		return "", Facts{}, fmt.Errorf("cannot compare the volume with the restored data: %w", err)
	case revision != 0:
		return Diverged, Facts{Err: fmt.Errorf("revision %d on the volume does not match the backup in %s: the disk corrupted it, or the data is a modified copy", revision, j.options.Archive)}, nil
	}
	return Validated, Facts{}, nil
}

// createGeneration reserves revisions and creates the next generation unless another process has created it. If the
// store can no longer be verified, createGeneration gives up the claim: waiting would not help, and the next
// request to the store reports the error.
func (j *job) createGeneration() (Event, Facts, error) {
	ctx, cancel := context.WithTimeout(j.ctx, storeTimeout)
	defer cancel()
	switch err := j.tryClaim(ctx); {
	case err == nil:
		j.retries = 0
		return Claimed, Facts{}, nil
	case errors.Is(err, errUnconfirmed):
		return PeersUnavailable, Facts{Err: err}, nil
	case isOneOf(err, errClaimLost, archive.ErrMoved), notVerified(err):
		return ClaimLost, Facts{Err: err}, nil
	default:
		return StoreUnavailable, Facts{Err: err}, nil
	}
}

// tryClaim creates the generation and may be repeated. If another cluster has created the generation or written to
// it, the claim is lost.
func (j *job) tryClaim(ctx context.Context) error {
	a, next := j.options.Archive, j.claim.Generation
	lineage, err := a.Lineage(ctx)
	if err == nil && lineage.Newest().Number < next.Number {
		if err = j.replaceGeneration(ctx, lineage.Newest()); err == nil {
			lineage, err = a.Lineage(ctx)
		}
	}
	if err != nil {
		return err
	}
	if newest := lineage.Newest(); newest.Number != next.Number || newest.Session != next.Session {
		return lostClaim("generation %d was created by another process", newest.Number)
	}
	head, err := a.Head(ctx, next.Number)
	if err == nil && !head.Empty() {
		err = lostClaim("another process has extended generation %d to revision %d", next.Number, head.Revision())
	}
	return err
}

// replaceGeneration creates the next generation unless another process was faster or the last generation has grown
// since the backup was built. Data built by an earlier run is never claimed, because etcd may have served the
// volume since then or the user may now request a different restore.
func (j *job) replaceGeneration(ctx context.Context, last archive.Generation) error {
	a, next := j.options.Archive, j.claim.Generation
	if j.resumed {
		return lostClaim("an earlier run was interrupted before it created its generation")
	}
	if err := j.cluster.confirmPeers(ctx, next); err != nil {
		return err
	}
	if last.Number > 0 {
		if err := j.backups.endGeneration(ctx, last, next, j.claim.Head); err != nil {
			return err
		}
	}
	err := a.Reserve(ctx, archive.Reservation{Cluster: next.Cluster, Generation: next.Number, Revision: j.claim.Reservation, Created: next.Created})
	if err == nil || errors.Is(err, store.ErrExists) {
		err = a.BeginGeneration(ctx, next)
	}
	if errors.Is(err, store.ErrExists) {
		err = nil
	}
	return err
}

// preserveVolume renames the data directory to its preserved copy.
func (j *job) preserveVolume() (Event, Facts, error) {
	return j.volume.preserve(cmp.Or(j.claim.Aside, disk.PreservedName(j.member.DataDir, time.Now())))
}

// install renames the built directory to the data directory.
func (j *job) install() (Event, Facts, error) {
	err := disk.Rename(j.volume.restoredDir(), j.member.DataDir)
	if err != nil {
		err = fmt.Errorf("cannot install the restored data: %w", err)
	}
	return "", Facts{}, err
}

// complete records durably that the restore is done.
func (j *job) complete() (Event, Facts, error) {
	err := j.updateRecord(func(r *journal) {
		r.Claim = nil
		r.addDone(j.claim.Generation.Restore)
	})
	err = cmp.Or(err, j.volume.readIdentity())
	j.outcome.Ended, j.cluster.newer = Restored, nil
	return Installed, Facts{Asked: j.requested}, err
}

// noteCause records why the data is being replaced.
func (j *job) noteCause() {
	switch c := j.facts.caseOf(); {
	case c.Asked == AskedRestore:
		j.outcome.Cause = Wanted
	case c.Volume == VolumeLost:
		j.outcome.Cause = cmp.Or(j.outcome.Cause, string(VolumeEmpty))
	default:
		j.outcome.Cause = cmp.Or(j.outcome.Cause, string(c.Volume))
	}
}

// reportRejoin logs which data is being replaced and which members provide the new data.
func (j *job) reportRejoin() (Event, Facts, error) {
	j.replaced = true
	j.noteCause()
	j.outcome.Ended = Rejoined
	if j.Progress().Restores() {
		return "", Facts{}, nil // the loss has already been logged
	}
	loss := "the volume is empty"
	if why := cmp.Or(j.volume.damage, j.survey.Outdated); why != nil {
		loss = "the data on the volume cannot be used: " + why.Error()
	}
	var names []string
	for _, m := range j.survey.Others() {
		if m.Name != "" {
			names = append(names, m.Name)
		}
	}
	loss += fmt.Sprintf("; getting the data from %s in cluster %s", strings.Join(names, " and "), j.survey.Cluster)
	j.changeProgress(func(p *Progress) { p.Loss = loss })
	j.options.Log.Warn().Msg("recovery: " + loss)
	return "", Facts{}, nil
}

// reportLost logs, before anything changes, how many revisions will be restored and lost. If objects after the
// latest revision cannot be read, reportLost returns an event to retry first.
func (j *job) reportLost() (Event, Facts, error) {
	switch why := j.backups.last.path.PastEnd; {
	case errors.Is(why, format.ErrUntrusted):
		return storeAnswer(StoreNoKeys, why)
	case why != nil && j.shouldRetry(why): // unlike damage, a missing object may only be delayed
		return Missing, Facts{Err: why}, nil
	}
	j.logLost()
	return "", Facts{}, nil
}

func (j *job) logLost() {
	j.noteCause()
	last, position := j.backups.last, j.volume.position
	lost := j.lost()
	if j.outcome.Lost = 0; !j.requested {
		j.outcome.Lost = max(0, lost)
	}
	state, verb := "the volume is empty", "is restored to"
	switch {
	case j.volume.damage != nil && position.Revision > 0:
		state = fmt.Sprintf("the volume is at revision %d but damaged", position.Revision)
	case j.volume.damage != nil:
		state = "the volume is damaged"
	case position.ClusterID != 0:
		state = fmt.Sprintf("the volume is at revision %d", position.HighestRevision)
	}
	if j.requested {
		verb = "is rolled back to"
	}
	loss := fmt.Sprintf("%s; the cluster %s %s of generation %d from %s, whose backups end at revision %d of generation %d%s", state, verb, j.describeTarget(),
		last.path.Generation.Number, j.options.Archive, j.lastRevision(), last.Newest().Number, j.describeLost(lost))
	if why := last.path.PastEnd; why != nil {
		loss += "; later objects in the store cannot be read: " + why.Error()
	}
	if j.Progress().Loss == loss {
		return // already logged, and the store has not changed since
	}
	j.changeProgress(func(p *Progress) { p.Loss = loss })
	j.options.Log.Warn().Int64("volume_revision", position.HighestRevision).Int64("store_revision", j.lastRevision()).
		Int64("reserved_revision", last.Reserved.Revision).Int64("restored_revision", last.path.Revision).Msg("recovery: " + loss)
}

// describeTarget describes the state that will be restored.
func (j *job) describeTarget() string {
	path := j.backups.last.path
	text := fmt.Sprintf("revision %d", path.Revision)
	if !path.Time.IsZero() {
		text += " (" + path.Time.UTC().Format(time.RFC3339) + ")"
	}
	return text
}

// findSuccessor returns the generation that was restored from the volume's generation, or the zero value.
func (j *job) findSuccessor() archive.Generation {
	own := relation.OfEtcd(j.backups.last.Lineage, hex(j.volume.position.ClusterID))
	for _, g := range j.backups.last.Generations {
		if own.Number > 0 && g.Parent == own.Number {
			return g
		}
	}
	return archive.Generation{}
}

// lost returns how many known revisions of the newest generation will not be restored.
func (j *job) lost() int64 {
	known := j.lastRevision()
	if j.findSuccessor().Number == 0 {
		known = max(known, j.volume.position.HighestRevision)
	}
	return known - j.backups.last.path.Revision
}

// describeLost describes how much is lost or undone. A cluster that was replaced by another may have continued to
// write to its volume. A reservation without a generation means that the generation was deleted, because revisions
// are reserved first.
func (j *job) describeLost(lost int64) (text string) {
	last, next := j.backups.last, j.findSuccessor()
	late := j.volume.position.HighestRevision - next.ParentRevision
	if next.Number > 0 && late > 0 {
		text = fmt.Sprintf("; revisions lost: %d (generation %d received them after revision %d, from which generation %d was restored)",
			late, next.Parent, next.ParentRevision, next.Number)
	}
	end := last.Head.Ending()
	switch {
	case j.requested && last.path.Generation.Number != last.Newest().Number:
		return text + "; all later changes are undone" // no number, because each restore skips revisions
	case j.requested && lost > 0:
		return text + fmt.Sprintf("; revisions undone: %d", lost)
	case j.requested:
		return text
	case lost > 0:
		text += fmt.Sprintf("; revisions lost: %d", lost)
	case text != "":
	case end != nil && last.Reserved.Generation >= end.Successor:
		return fmt.Sprintf("; generation %d, which followed, is missing from the store, so its writes are lost", end.Successor)
	default:
		text = "; nothing is known to be lost"
	}
	return text + j.describeInterval()
}

// describeInterval returns the maximum period of lost writes on a damaged volume: from the end of the backups to
// etcd's last write. The result is empty unless both ends are known. The last write is unknown if the volume is
// empty or was rolled back.
func (j *job) describeInterval() string {
	last := j.backups.last
	head, end := last.Head, datadir.LastWrite(j.member.DataDir)
	if j.volume.damage == nil || end.IsZero() || head.Empty() || head.Damaged != nil ||
		last.path.Generation.Number != last.Newest().Number || last.path.Revision != head.Revision() {
		return ""
	}
	from := head.Full.Time
	if head.Segment != nil {
		from = head.Segment.To
	}
	gap := max(0, end.Sub(from))
	unit := time.Second / 10
	if gap >= time.Minute {
		unit = time.Second
	}
	return fmt.Sprintf("; the backups end at most %v before etcd's last write to the volume", (gap + unit - 1).Truncate(unit)) // rounded up
}

// finish reports the outcome of the run.
func (j *job) finish(rejected bool) {
	if rejected {
		j.noteCause()
		j.outcome.Ended, j.outcome.Lost = Denied, 0
	}
	if j.options.Ended != nil && j.outcome.Ended != "" {
		j.outcome.Cause = cmp.Or(j.outcome.Cause, Unfinished)
		j.options.Ended(j.outcome)
	}
}
