package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.uber.org/zap"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/relation"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/recovery/peers"
)

// A remoteStore reads the store for this member, and creates, adopts and ends generations in it.
type remoteStore struct {
	*session
	volume      *localVolume
	last        contents  // most recent response from the store
	silentSince time.Time // start of the store outage; zero if the store responded or was not queried
	heartbeat   heartbeat // heartbeat of the process that writes to the generation to be replaced
}

// contents holds what was read from the store, and how the volume relates to it.
type contents struct {
	relation.Store
	judgment relation.Result
	path     archive.Path
	notKept  error // reason why path is empty; nil if there is a backup to restore
	adopted  bool  // whether an adoption of the store's cluster is requested and still pending
}

// readCluster determines which cluster the store belongs to. If the manifest is missing or damaged, readCluster
// takes the cluster ID from the first generation. The manifest is the oldest object, so a bucket lifecycle rule
// would delete it first.
func (b *remoteStore) readCluster(ctx context.Context) (seen contents, err error) {
	manifest, why := b.options.Archive.Cluster(ctx)
	if why != nil && !errors.Is(why, store.ErrNotFound) && !notVerified(why) {
		return seen, why
	}
	lineage, err := b.options.Archive.Lineage(ctx)
	switch generations := lineage.Generations; {
	case err != nil:
		return seen, err
	case why == nil:
	case len(generations) > 0:
		manifest = archive.Cluster{Cluster: generations[0].Cluster, Owner: generations[0].Owner, Etcd: generations[0].Etcd}
	case notVerified(why):
		return seen, why
	}
	for _, stray := range lineage.Strays {
		b.options.Log.Warn().Err(stray).Msg("recovery: ignoring a generation that is not part of the store's history")
	}
	seen = contents{Store: relation.Store{Cluster: manifest, Lineage: lineage}}
	seen.adopted = seen.Adopts(b.options.Adopt, b.owner())
	return seen, nil
}

// observe reads everything in the store except the backups and compares it with the volume. In a multi-member cluster,
// --adopt has no effect on a store that the member can use without an adoption, so that the member rejoins the others.
func (b *remoteStore) observe(ctx context.Context) (seen contents, err error) {
	if seen, err = b.readCluster(ctx); err != nil {
		return seen, err
	}
	switch newest := seen.Newest().Number; {
	case seen.Cluster.Cluster == "":
		seen.Remains, err = b.options.Archive.FirstPrefix(ctx)
	case newest == 0:
		err = b.options.Archive.ProbeGenerations(ctx)
	default:
		seen.Head, err = b.options.Archive.Head(ctx, newest)
	}
	if err == nil && seen.Cluster.Cluster != "" {
		if seen.Reserved, err = b.options.Archive.Reserved(ctx); errors.Is(err, store.ErrNotFound) {
			err = nil
		}
	}
	if err != nil {
		return seen, err
	}
	data := b.describeVolume()
	seen.judgment = relation.Compare(data, seen.Store, seen.adopted && (!b.requested || data.State != relation.Valid))
	if seen.judgment.Relation == relation.Adopted && !b.member.Alone {
		own := seen
		if own.judgment = relation.Compare(data, seen.Store, false); own.state() == relation.Ours {
			seen = own
		}
	}
	return seen, nil
}

// describeVolume describes the volume, including what running members report about it.
func (b *remoteStore) describeVolume() relation.Data {
	v := b.volume
	d := relation.Data{State: relation.Damaged, Identity: v.identity, Owner: b.owner(), Revision: v.position.HighestRevision}
	switch {
	case b.facts.Volume == VolumeEmpty:
		d.State = relation.NoData
	case b.isValid() && v.position.ClusterID != 0:
		d.State, d.Etcd = relation.Valid, hex(v.position.ClusterID)
		if b.survey.Cluster == d.Etcd {
			d.Peers = archive.Identity{Cluster: b.survey.ID, Generation: b.survey.Generation}
		}
	}
	return d
}

func hex(id uint64) string { return strconv.FormatUint(id, 16) }

// foreignStates are the states of a store that does not belong to this member.
var foreignStates = []StoreState{relation.OtherCluster, relation.OtherOwner, relation.Unidentified}

// state returns the state of the store. All relations that allow a restore map to the same state, because the rules
// do not distinguish between them.
func (c contents) state() StoreState {
	r := c.judgment.Relation
	if slices.Contains(foreignStates, r) || slices.Contains([]StoreState{relation.Empty, relation.Initialized, relation.Adopted}, r) {
		return r
	}
	return relation.Ours
}

// find observes the store and finds the backup to restore.
func (b *remoteStore) find(ctx context.Context) (seen contents, err error) {
	if seen, err = b.observe(ctx); err != nil {
		return seen, err
	}
	b.volume.identity = seen.judgment.Identity
	switch {
	case slices.Contains([]relation.Relation{relation.Nameless, relation.Emptied}, seen.judgment.Relation):
		seen.notKept = errors.New(b.describeRelation(seen) + "; " + seen.judgment.WayOut())
		return seen, nil
	case seen.Newest().Number == 0:
		return seen, nil
	case seen.state() == relation.Ours && !seen.adopted && seen.Owner() != b.owner() && b.mayReplace() && seen.judgment.Lacks:
		seen.judgment.Relation = relation.OtherOwner // the data may be a copy of the owner's volume
	}
	target := archive.Target{}
	if b.requested && !b.isDone(seen) {
		target = b.options.Request.Target
	}
	seen.path, err = b.options.Archive.Find(ctx, target)
	if errors.Is(err, archive.ErrNotKept) {
		seen.path, seen.notKept, err = archive.Path{}, err, nil
	}
	return seen, err
}

// describeRelation describes how the volume relates to the store.
func (b *remoteStore) describeRelation(seen contents) string {
	return seen.judgment.Describe(b.describeVolume(), seen.Store, b.options.Archive.String())
}

// isDone reports whether the requested restore has already been done on any volume.
func (b *remoteStore) isDone(seen contents) bool {
	return slices.Contains(archive.Restores(seen.Generations), b.options.Request.ID)
}

// queryStore determines which cluster the store belongs to and lists the store's contents.
func (b *remoteStore) queryStore() (Event, Facts, error) {
	ctx, cancel := b.limitWait(storeTimeout)
	defer cancel()
	seen, err := b.find(ctx)
	if err != nil {
		state, why := b.queryFailed(ctx, err)
		return storeAnswer(state, why)
	}
	b.last = seen
	state := seen.state()
	answer := Facts{StoreFacts: StoreFacts{Answer: state, Behind: seen.judgment.Lacks, RestoreDone: b.requested && b.isDone(seen)}}
	if answer.RestoreDone { // record it, so that the next start does not have to query the store
		if err := b.updateRecord(func(r *journal) { r.addDone(b.options.Request.ID) }); err != nil {
			return "", Facts{}, err
		}
		b.requested = false
		b.volume.logDone()
	}
	if why := b.findMissingKey(seen); why != nil && !slices.Contains(foreignStates, state) {
		answer.Answer, answer.Behind, answer.Err = StoreNoKeys, false, why
		return StoreResponded, answer, nil
	}
	if state == relation.Ours && seen.path.Revision > 0 && b.mayReplace() {
		writer, err := b.checkWriter(ctx, seen)
		if err != nil {
			answer.Answer, answer.Err = b.unreachableState(), err
			return StoreResponded, answer, nil
		}
		if b.silentSince = (time.Time{}); writer != nil {
			answer.Answer, answer.Err = StoreInUse, writer
			return StoreResponded, answer, nil
		}
	}
	b.retries, b.silentSince = 0, time.Time{}
	answer.Err = b.describe(state)
	if state == relation.Ours && seen.path.Revision == 0 {
		answer.Answer = StoreNoBackup
	}
	return StoreResponded, answer, nil
}

// storeAnswer returns the event for a store in the given state. why is the error to show to the user.
func storeAnswer(state StoreState, why error) (Event, Facts, error) {
	return StoreResponded, Facts{StoreFacts: StoreFacts{Answer: state}, Err: why}, nil
}

// limitWait returns a context with a timeout for a request to the store. The timeout is limit or, if valid data is
// waiting for the store, the remaining time that the data may wait.
func (b *remoteStore) limitWait(limit time.Duration) (context.Context, context.CancelFunc) {
	if b.silentSince.IsZero() {
		b.silentSince = b.now()
	}
	if f := b.facts; (f.Alone || f.Unidentified) && b.isValid() && !f.Asked && !f.Behind {
		limit = min(limit, max(time.Second, b.serveAfter-b.now().Sub(b.silentSince)))
	}
	return context.WithTimeout(b.ctx, limit)
}

// unreachableState returns the state of an unreachable store.
func (b *remoteStore) unreachableState() StoreState {
	if b.now().Sub(b.silentSince) >= b.serveAfter {
		return StoreLongUnreachable
	}
	return StoreUnreachable
}

// queryFailed returns the state of a store that could not be read, and the reason. A valid volume needs no restore,
// so the error only affects backups unless object names suggest that the volume was rolled back.
func (b *remoteStore) queryFailed(ctx context.Context, why error) (StoreState, error) {
	if b.requested && b.member.Peers != nil {
		why = fmt.Errorf("%w; if restore %q has already been done, remove --restore-to, and this member will get its data from the others", why, b.options.Request.ID)
	}
	if !notVerified(why) {
		return b.unreachableState(), why
	}
	if f := b.facts; (f.Alone || f.Unidentified) && b.isValid() && !b.requested {
		older, err := b.compareNames(ctx, why)
		switch {
		case err != nil:
			return b.unreachableState(), err
		case older == nil:
			b.options.Log.Warn().Err(why).Msg("recovery: cannot verify the store; starting etcd anyway because the data is valid and no object name suggests missing revisions")
			return StoreUnverified, why
		}
		why = older
	}
	b.last = contents{} // earlier answers are outdated
	if errors.Is(why, format.ErrUntrusted) {
		return StoreNoKeys, why
	}
	return StoreDamaged, why
}

// compareNames returns the reason why a valid volume may have been rolled back, judging by the object names in a
// store that cannot be verified. Object names can be forged, but a volume that was not rolled back has every
// revision in genuine names. All other errors from the store are returned unchanged.
func (b *remoteStore) compareNames(ctx context.Context, why error) (older, err error) {
	if !notVerified(why) {
		return nil, why
	}
	reported, err := b.options.Archive.LastNamed(ctx)
	if err != nil {
		return nil, err
	}
	return b.compareRevision(reported, why), nil
}

// compareRevision returns an error if the object names suggest that the store has revisions that a valid volume
// lacks.
func (b *remoteStore) compareRevision(revision int64, why error) error {
	if revision <= b.volume.position.HighestRevision {
		return nil
	}
	return fmt.Errorf("the data ends at revision %d, but object names in the store go up to revision %d, so the volume may have been rolled back; "+
		"the objects cannot be verified: %w; to serve the data as it is, start with --recover=never", b.volume.position.HighestRevision, revision, why)
}

// findMissingKey returns an error if more trusted keys are needed for a decision: all restorable backups, or all
// objects that seem to contain newer data, are signed with untrusted keys.
func (b *remoteStore) findMissingKey(seen contents) error {
	needed := b.requested || !b.isValid() || seen.judgment.Lacks
	switch {
	case needed && errors.Is(seen.notKept, format.ErrUntrusted):
		return seen.notKept
	case needed && seen.path.Revision > 0: // the restored cluster must be able to write to the store
		return b.options.Archive.MayAdd(seen.Newest())
	case !needed && errors.Is(seen.path.PastEnd, format.ErrUntrusted):
		return b.compareRevision(seen.path.Reported, seen.path.PastEnd)
	}
	return nil
}

// describe returns details about the store to append to the rule's reason.
func (b *remoteStore) describe(state StoreState) error {
	switch seen := b.last; {
	case slices.Contains(foreignStates, state) && b.options.Adopt != "":
		return fmt.Errorf("%s, but --adopt=%s names another cluster or has already been applied; to adopt this store, set --adopt=%s/%d",
			b.describeRelation(seen), b.options.Adopt, seen.Cluster.Cluster, seen.Newest().Number)
	case slices.Contains(foreignStates, state):
		return errors.New(b.describeRelation(seen))
	case state != relation.Empty && b.facts.peerState() == PeersUnnamed && seen.Cluster.Cluster != "":
		return fmt.Errorf("%s belongs to cluster %s", b.options.Archive, seen.Cluster.Cluster)
	case (b.requested || seen.Newest().Number == 0) && seen.notKept != nil:
		return seen.notKept
	case b.survey.Membership == peers.SomeStarted && b.survey.Missing != nil:
		return b.survey.Missing
	}
	return b.volume.damage
}

// mayReplace reports whether a new generation may replace the newest one in the store. In a multi-member cluster, the
// generation must be kept, because the other members provide the data and continue to write backups, unless all
// members have lost their data or a restore is requested.
func (b *remoteStore) mayReplace() bool {
	f := b.facts
	return f.Alone || b.requested || f.isLost() || !f.Peers && !b.isValid()
}

// stillness is the time for which a generation must be idle, by the store's clock, before another process may
// replace it. An idle writer adds a heartbeat every 40s. The value is a string so that test suites can shorten it
// with a linker flag.
var stillness = "90s"

// A heartbeat tracks evidence that another process is still writing to the newest generation.
type heartbeat struct {
	ahead *time.Duration // offset of the store's clock from the local clock; nil if unknown
	added time.Time      // creation time of the generation's last object, by the store's clock
	seen  time.Time      // time at which this run first saw that object, by the local clock
	until time.Time      // local time at which the generation will be idle for long enough; zero for no wait
}

// checkWriter returns the reason why the process that writes to the newest generation may still be running. The
// process is considered stopped if it released the generation or ran on this volume, if the user ruled it out, or
// if the generation has been idle for long enough. The check only keeps users from running two clusters by
// accident, because ending the generation protects the data in any case.
func (b *remoteStore) checkWriter(ctx context.Context, seen contents) (why, err error) {
	beat := &b.heartbeat
	beat.until = time.Time{}
	ended := seen.Head.Newest().Released || seen.Head.Ending() != nil
	if b.idleTime == 0 || ended || seen.adopted || b.isLocalWriter(seen) {
		return nil, nil
	}
	added, err := b.options.Archive.LastAdded(ctx, seen.Newest(), seen.Head)
	if err != nil {
		return nil, err
	}
	if beat.ahead == nil {
		clock, err := store.Clock(ctx, b.options.Archive.Store())
		if clock.IsZero() { // an error with a valid time only means that the object used for reading it remains
			return nil, cmp.Or(err, errors.New("the store does not report object creation times"))
		}
		beat.ahead = new(clock.Sub(b.now()))
	}
	if !added.Equal(beat.added) {
		beat.added, beat.seen = added, b.now()
	}
	until := added.Add(b.idleTime - *beat.ahead)
	if latest := beat.seen.Add(b.idleTime); until.After(latest) { // a creation time in the future counts as now
		until = latest
	}
	if !b.now().Before(until) {
		return nil, nil
	}
	beat.until = until
	return fmt.Errorf("%s last wrote to generation %d of %s at %s (store clock); a restore can start at %s if nothing else is written",
		b.describeWriter(seen), seen.Newest().Number, b.options.Archive, added.UTC().Format(time.TimeOnly), until.UTC().Format(time.TimeOnly)), nil
}

// describeWriter describes the process that wrote last to the newest generation.
func (b *remoteStore) describeWriter(seen contents) string {
	id := seen.Head.Newest().Member
	if id == hex(b.volume.position.MemberID) {
		return "this member (on this volume or a copy of it)"
	}
	member := "a member"
	if id != "" {
		member = "member " + id
	}
	if at := slices.IndexFunc(b.survey.Members, func(m peers.Member) bool { return m.ID.String() == id && m.Name != "" }); at >= 0 {
		member = "member " + b.survey.Members[at].Name
	}
	return fmt.Sprintf("%s of this cluster (%s)", member, seen.Newest().Cluster)
}

// isLocalWriter reports whether the process that writes to the newest generation ran on this volume. etcd syncs a
// revision before it is uploaded, so valid data that lacks uploaded revisions is a copy or was rolled back.
func (b *remoteStore) isLocalWriter(seen contents) bool {
	if b.isValid() {
		return !seen.judgment.Lacks && seen.Owner() == b.owner()
	}
	return b.volume.identity.Session != "" && b.volume.identity.Session == seen.Head.Newest().Session
}

// uploadSpool uploads the segments queued on the volume unless valid data on the volume already includes them.
// Recovery waits while the store is unavailable, because the segments cannot be added after a restore.
func (b *remoteStore) uploadSpool() (Event, Facts, error) {
	data := b.volume.identity
	if b.volume.damage != nil {
		data = archive.Identity{}
	}
	ctx, cancel := b.limitWait(math.MaxInt64)
	defer cancel()
	err := b.options.FlushSpool(ctx, data, b.volume.position.HighestRevision)
	var errno syscall.Errno
	switch {
	case err == nil:
		return "", Facts{}, nil
	case b.ctx.Err() != nil:
		return "", Facts{}, b.ctx.Err()
	case store.FailureOf(err) != "":
		return storeAnswer(b.unreachableState(), fmt.Errorf("uploading the segments queued on the volume: %w", err))
	case isOneOf(err, format.ErrUntrusted, format.ErrNoIdentity, archive.ErrUnsigned):
		return storeAnswer(StoreNoKeys, err)
	case errors.Is(err, archive.ErrNameless): // the store will accept the segments once it is repaired
		return storeAnswer(StoreDamaged, err)
	}
	err = fmt.Errorf("%w; to continue without these segments, move %s aside", err, b.options.SpoolDir)
	if errors.As(err, &errno) || isOneOf(err, store.ErrExists, store.ErrNotFound) { // a disk error, or another member has stored or merged the object
		return "", Facts{}, fmt.Errorf("cannot upload the segments queued on the volume: %w", err)
	}
	return Stuck, Facts{Err: err}, nil
}

// uploadVolume uploads data that exists only on the volume. A failure does not stop the restore because the volume is
// preserved.
func (b *remoteStore) uploadVolume() (Event, Facts, error) {
	if b.options.Flush == nil || b.last.judgment.Lacks {
		return Flushed, Facts{}, nil
	}
	ctx, cancel := context.WithTimeout(b.ctx, storeTimeout)
	defer cancel()
	position := b.volume.position
	if err := b.options.Flush(ctx, b.member.DataDir, position); err != nil {
		head, failed := b.options.Archive.Head(ctx, b.last.Newest().Number)
		// After a clean stop, the store has every revision even if this upload fails.
		if failed == nil && head.Revision() >= position.Revision {
			b.options.Log.Info().Err(err).Msg("recovery: the store has every revision on the volume; later changes to leases and users are only in the preserved copy")
		} else {
			b.options.Log.Warn().Err(err).Msg("recovery: some revisions on the volume could not be uploaded; the preserved copy still has them")
		}
		return Flushed, Facts{Err: err}, nil
	}
	if logged := position.HighestRevision - position.Revision; logged > 0 {
		b.options.Log.Warn().Msgf("recovery: up to %d of the latest changes were not uploaded because they are only in the write-ahead log; the preserved copy still has them", logged)
	}
	return Flushed, Facts{}, nil
}

// findEnd reads the end of the backups again after volumes have uploaded their data. Any object that appears
// afterwards comes from another process. If another process has created a generation in the meantime, the claim
// will fail later.
func (b *remoteStore) findEnd() (Event, Facts, error) {
	ctx, cancel := context.WithTimeout(b.ctx, storeTimeout)
	defer cancel()
	seen, err := b.find(ctx)
	switch {
	case errors.Is(err, format.ErrUntrusted):
		return storeAnswer(StoreNoKeys, err)
	case err != nil:
		return StoreUnavailable, Facts{Err: err}, nil
	}
	if seen.Newest().Number == b.last.Newest().Number && seen.path.Revision > 0 {
		b.last = seen
	}
	return "", Facts{}, nil
}

// storeWayOut returns what the user can do about an error from the store. The result is fallback if the store reported
// no specific problem, and "" if the error already contains the advice.
func storeWayOut(err error, fallback string) string {
	switch failure := store.FailureOf(err); {
	case failure == "" || failure == store.ErrUnavailable:
		return fallback
	case strings.Contains(err.Error(), failure.NextStep()):
		return ""
	default:
		return store.NextStep(err)
	}
}

// notVerified reports whether the store returned data that cannot be verified, in which case retrying is pointless.
func notVerified(err error) bool {
	return archive.NotVerified(err) || errors.Is(err, format.ErrNewer)
}

// isOneOf reports whether err matches any of the given errors.
func isOneOf(err error, several ...error) bool {
	return slices.ContainsFunc(several, func(one error) bool { return errors.Is(err, one) })
}

// The functions below create, adopt and end generations in the store for the data that etcd will serve.

// adoptOwners returns the owners that have adopted the store. If the user requests an adoption, the list includes
// this owner.
func (b *remoteStore) adoptOwners(seen contents) []string {
	before := archive.Adoptions(seen.Generations)
	if !seen.adopted || slices.Contains(before, b.owner()) {
		return before
	}
	return append(before, b.owner())
}

// endNamed ends the generation that the user named, before it is restored. Otherwise, a cluster that still writes
// to that generation would add objects during every build and make it outdated.
func (b *remoteStore) endNamed() (Event, Facts, error) {
	if !b.last.adopted || b.last.Newest().Number == 0 || b.last.Head.Ending() != nil {
		return "", Facts{}, nil
	}
	ctx, cancel := context.WithTimeout(b.ctx, storeTimeout)
	defer cancel()
	next := archive.Generation{Number: b.last.Next, Cluster: b.last.Cluster.Cluster, Session: b.id, Created: b.now()}
	err := archive.ErrMoved
	for errors.Is(err, archive.ErrMoved) { // retry until this process wins or ctx is done
		err = b.endGeneration(ctx, b.last.Newest(), next, format.Position{})
	}
	if err != nil {
		return StoreUnavailable, Facts{Err: err}, nil
	}
	return b.findEnd()
}

// adopt ends the newest generation and creates the next one for the data on the volume. After an error, recovery
// queries the store again.
func (b *remoteStore) adopt() (Event, Facts, error) {
	ctx, cancel := context.WithTimeout(b.ctx, storeTimeout)
	defer cancel()
	seen := b.last
	lineage, err := b.options.Archive.Lineage(ctx)
	seen.Lineage = lineage
	next := archive.Generation{
		Number: lineage.Next, Cluster: seen.Cluster.Cluster, Owner: b.owner(), Etcd: hex(b.volume.position.ClusterID), Session: b.id, Created: b.now(),
		Restored: archive.Restores(lineage.Generations), Adopted: b.adoptOwners(seen),
	}
	if err == nil && lineage.Newest().Number > 0 {
		err = b.endGeneration(ctx, lineage.Newest(), next, format.Position{})
	}
	if err == nil {
		err = b.options.Archive.BeginGeneration(ctx, next)
	}
	if err != nil {
		return StoreUnavailable, Facts{Err: err}, nil
	}
	b.volume.identity = archive.Identity{Cluster: next.Cluster, Generation: next.Number}
	b.options.Log.Warn().Str("cluster", next.Cluster).Int("generation", next.Number).
		Msg("recovery: adopted the store; the new generation starts with the data on the volume")
	return StoreAdopted, Facts{}, nil
}

// endGeneration ends the generation last in favor of the generation next, so that nothing can be added to it anymore.
// If the generation was read, read is the position of its end at that time, and objects that were added since are an
// error. If another process has started to end the generation, endGeneration finishes the job. If the generation was
// not read and its head cannot be verified, there is no need to end it, because writers cannot extend it either.
func (b *remoteStore) endGeneration(ctx context.Context, last, next archive.Generation, read format.Position) error {
	head, err := b.options.Archive.Head(ctx, last.Number)
	switch {
	case archive.NotVerified(err) && read.IsZero():
		return nil
	case err != nil:
		return err
	case !read.IsZero() && head.Position.Compare(read) > 0: // heartbeats count as activity, too
		return archive.ErrMoved
	}
	err = b.options.Archive.End(ctx, last, head, next.Session, format.Ending{Successor: next.Number, Nonce: cmp.Or(next.Session, next.Cluster), At: next.Created})
	if errors.Is(err, archive.ErrEnded) {
		return nil
	}
	return err
}

// writeIdentity records on the volume which cluster the data belongs to before etcd opens the data. A new cluster
// must not be created until its ID is recorded, because a member without an ID would be rejected once another
// member has initialized the store. For existing data, the cluster can be recorded later, by the backup writer or
// the next start.
func (b *remoteStore) writeIdentity(result Event) error {
	if b.options.Archive == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(b.ctx, shortStoreTimeout)
	defer cancel()
	identity, err := b.volume.identity, error(nil)
	switch {
	case result == CreateCluster, b.isValid() && !identity.Known() && b.facts.Answer == relation.Empty:
		identity, err = b.createClusterID(ctx)
	case !b.isValid() && b.survey.ID != "":
		identity = archive.Identity{Cluster: b.survey.ID, Generation: b.survey.Generation}
	case !b.isValid() && result != RestoreData: // the members that provide the data reported no identity
		var seen contents
		identity = archive.Identity{}
		if seen, err = b.readCluster(ctx); err == nil && seen.Cluster.Cluster != "" {
			identity = seen.Identity()
		}
	}
	_, isFinal := errors.AsType[*exitcode.FinalError](err)
	switch {
	case isFinal && result == CreateCluster:
		return err
	case err != nil && result == CreateCluster && !errors.Is(err, store.ErrDenied):
		return fmt.Errorf("cannot create an ID for the new cluster: %w; %s", err, cmp.Or(storeWayOut(err, reachStore), "retrying"))
	case err != nil:
		b.options.Log.Warn().Err(err).Msg("recovery: cannot record the cluster ID on the volume yet; retrying later")
		return nil
	}
	b.volume.identity = identity
	before, err := archive.ReadIdentity(b.member.DataDir)
	if err != nil || before.Cluster == identity.Cluster && before.Generation == identity.Generation || !identity.Known() {
		return err
	}
	return identity.Write(b.member.DataDir)
}

// createClusterID creates the ID of a new cluster, or returns the one that another member has created.
func (b *remoteStore) createClusterID(ctx context.Context) (archive.Identity, error) {
	etcd := b.volume.position.ClusterID
	if etcd == 0 {
		members := b.member.Members
		if len(members) == 0 {
			members = types.URLsMap{b.member.Name: b.member.PeerURLs}
		}
		cluster, err := membership.NewClusterFromURLsMap(zap.NewNop(), b.member.InitialClusterToken, members)
		if err != nil {
			return archive.Identity{}, err
		}
		etcd = uint64(cluster.ID())
	}
	manifest, err := b.options.Archive.CreateCluster(ctx, archive.Cluster{Cluster: archive.NewID(), Owner: b.owner(), Etcd: hex(etcd), Created: b.now()})
	if err == nil && (manifest.Owner != b.owner() || manifest.Etcd != hex(etcd)) {
		err = &exitcode.FinalError{Status: exitcode.EtcdFailed, Err: fmt.Errorf("%s was initialized by a cluster of %s with a different initial-cluster or initial-cluster-token; "+
			"correct these settings or, if that cluster has never started, delete cluster.json", b.options.Archive, manifest.Owner)}
	}
	return archive.Identity{Cluster: manifest.Cluster, Generation: 1}, err
}
