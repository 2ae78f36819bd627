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
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/relation"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/internal/disk"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/recovery/seed"
)

const (
	patience = 2 * time.Minute // for a question to the store, an upload of what only the volume has, or a claim
	// margin bounds the revisions that were handed out since the last reservation: no client sees one twice.
	margin = archive.Margin
)

// askTheStore asks which cluster the store belongs to and what it has.
func (r *run) askTheStore() (Event, Facts) {
	ctx, cancel := r.beforeServing(patience)
	defer cancel()
	now, owner, err := r.ask(ctx)
	if err != nil {
		return r.notTold(ctx, err)
	}
	r.kept = now
	restoreDone := r.asked && r.usedBefore(now)
	if restoreDone { // so that the next start need not ask the store
		if err := r.change(func(kept *record) { kept.use(r.options.Request.ID) }); err != nil {
			return broke(err)
		}
		r.asked = false
		r.sayUsed()
	}
	if why := r.untrusted(now); why != nil && owner != StoreOthers && owner != StoreNotOwned && owner != StoreUnclaimed {
		return Answered, Facts{Told: StoreLocked, RestoreDone: restoreDone, Err: why}
	}
	if owner == StoreOurs && now.path.Revision > 0 && r.mayTakeItsPlace() {
		switch why, err := r.lives(ctx, now); {
		case err != nil:
			event, facts := r.silence(err)
			facts.Behind, facts.RestoreDone = r.behind(now), restoreDone
			return event, facts
		case why != nil:
			r.silentSince = time.Time{}
			return Answered, Facts{Told: StoreInUse, Behind: r.behind(now), RestoreDone: restoreDone, Err: why}
		}
	}
	r.silent, r.silentSince = 0, time.Time{}
	why := r.about(owner)
	if owner == StoreOurs && now.path.Revision == 0 {
		owner = StoreBare
	}
	return Answered, Facts{Told: owner, Behind: r.behind(now), RestoreDone: restoreDone, Err: why}
}

// silence returns the event for a store that cannot be asked now.
func (r *run) silence(why error) (Event, Facts) {
	told := StoreAway
	if r.now().Sub(r.silentSince) >= r.serveAfter {
		told = StoreLongAway
	}
	return Answered, Facts{Told: told, Err: why}
}

func (r *run) ask(ctx context.Context) (now inStore, owner StoreState, err error) {
	if now, err = r.observe(ctx); err != nil {
		return inStore{Store: relation.Store{Cluster: now.Cluster}}, "", err
	}
	now.judgment = r.judge(now)
	r.identity, owner = now.judgment.Identity, storeStates[now.judgment.Relation]
	switch now.judgment.Relation { //nolint:exhaustive // the others say what they are
	case relation.Nameless, relation.Emptied:
		now.notKept = r.sentence(now)
		return now, owner, nil
	case relation.Empty, relation.Founded:
		return now, owner, nil
	}
	if now.Newest().Number == 0 {
		return now, owner, nil
	}
	if owner == StoreOurs && !now.adopted && now.Owner() != r.owns() && r.mayTakeItsPlace() && r.behind(now) {
		owner, now.judgment.Relation = StoreNotOwned, relation.OtherOwner // it may be a copy of the owner's volume
	}
	target := archive.Target{}
	if r.asked && !r.usedBefore(now) {
		target = r.options.Request.Target
	}
	now.path, err = r.options.Archive.Find(ctx, target)
	if errors.Is(err, archive.ErrNotKept) {
		now.path, now.notKept, err = archive.Path{}, err, nil
	}
	return now, owner, err
}

// sentence says how the volume relates to the store, and the way out.
func (r *run) sentence(now inStore) error {
	text := now.judgment.Sentence(r.data(), now.Store, r.options.Archive.String())
	if wayOut := now.judgment.WayOut(); wayOut != "" {
		text += "; " + wayOut
	}
	return errors.New(text)
}

// usedBefore reports whether the requested restore was done, on any volume.
func (r *run) usedBefore(now inStore) bool {
	return slices.Contains(archive.Restores(now.Generations), r.options.Request.ID)
}

// extent returns the head of a generation, unless that is 0, and the last reservation; zero values if there are none.
func (r *run) extent(ctx context.Context, generation int) (head archive.Head, reserved archive.Reservation, err error) {
	if generation != 0 {
		head, err = r.options.Archive.Head(ctx, generation)
	}
	if err != nil {
		return head, reserved, err
	}
	reserved, err = r.options.Archive.Reserved(ctx)
	if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	return head, reserved, err
}

// findEnd reads the end of the backups again, after volumes have uploaded what only they had: later objects are
// another process's. If a generation was created meanwhile, the claim will be lost.
func (r *run) findEnd() (Event, Facts) {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	now, _, err := r.ask(ctx)
	switch {
	case errors.Is(err, format.ErrUntrusted):
		return Answered, Facts{Told: StoreLocked, Err: err}
	case err != nil:
		return StoreSilent, Facts{Err: err}
	}
	if now.Newest().Number == r.kept.Newest().Number && now.path.Revision > 0 {
		r.kept = now
	}
	return "", Facts{}
}

func hex(id uint64) string { return strconv.FormatUint(id, 16) }

// about returns what is reported about the store in addition to the rule's reason: its cluster, or what it lacks.
func (r *run) about(owner StoreState) error {
	switch {
	case slices.Contains([]StoreState{StoreOthers, StoreNotOwned, StoreUnclaimed}, owner):
		return errors.New(r.kept.judgment.Sentence(r.data(), r.kept.Store, r.options.Archive.String()) + r.notAdopted())
	case owner != StoreEmpty && r.core.Facts.peerState() == PeersUnnamed && r.kept.Cluster.Cluster != "":
		return fmt.Errorf("%s is cluster %s's", r.options.Archive, r.kept.Cluster.Cluster)
	case (r.asked || r.kept.Newest().Number == 0) && r.kept.notKept != nil:
		return r.kept.notKept
	case r.survey.Membership == peers.Partial && r.survey.Missing != nil:
		return r.survey.Missing
	case r.result != nil:
		return r.result
	}
	return nil
}

// notAdopted explains an adoption that was requested and is not done.
func (r *run) notAdopted() string {
	id, _, _ := strings.Cut(r.options.Adopt, "/")
	switch {
	case id == "":
		return ""
	case id != r.kept.Cluster.Cluster:
		return ", which is not the one that --adopt names"
	default:
		return fmt.Sprintf(", and --adopt=%s was done before; --adopt=%s/%d does so once more", r.options.Adopt, id, r.kept.Newest().Number)
	}
}

// seed returns the data directory to build. Its token determines etcd's cluster ID.
func (r *run) seed() seed.Seed {
	return seed.Seed{
		DataDir: r.restoredDir(), Name: r.member.Name, Token: r.member.Token,
		Members: types.URLsMap{r.member.Name: r.member.PeerURLs}, Generation: r.kept.Next,
	}
}

// behind reports whether the store has more than the volume: a later generation, or revisions that the volume's etcd
// cannot reach.
func (r *run) behind(now inStore) bool {
	switch {
	case now.Newest().Number == 0: // its first start was cut off before anything was stored
		return false
	case r.stands.ClusterID == 0, now.Newest().Number > r.identity.Generation:
		return true
	default:
		return !now.Head.Empty() && now.Head.Revision() > r.stands.HighestRevision
	}
}

// source returns what the data directory is built from.
func (r *run) source() restore.Source { return restore.From(r.options.Archive, r.kept.path) }

// measureRoom compares the required space with the free space, before anything is fetched.
func (r *run) measureRoom() (Event, Facts) {
	if err := r.movable(); err != nil {
		return broke(err)
	}
	if err := r.makeRoom(r.source(), patience); err != nil {
		return RoomLacking, Facts{Err: err}
	}
	return RoomEnough, Facts{}
}

// buildData fetches and builds. The error says whether the store, the backup or the volume failed.
func (r *run) buildData() (Event, Facts) {
	if event, payload := r.dropUnfinished(); event != "" {
		return event, payload
	}
	plan := r.seed()
	plan.Token = seed.NewToken()
	began := time.Now()
	var result seed.Result
	_, err := restore.Best(r.ctx, r.options.Archive, r.kept.path, func(archive.Path) (err error) {
		result, err = plan.Build(r.ctx, r.source(), restore.Options{
			Above: r.above(), Inspect: r.options.Inspect,
			Progress: func(p restore.Progress) { r.advance(began, p) },
		})
		return err
	}, r.goInstead)
	if err != nil {
		return r.unbuilt(err)
	}
	if r.member.Alone && !r.asked && result.Voters > 1 {
		return Grown, Facts{Err: fmt.Errorf("there were %d voting members at revision %d", result.Voters, r.kept.path.Revision)}
	}
	r.position = r.plan(result)
	begun := archive.Identity{Cluster: r.position.Generation.Cluster, Generation: r.position.Generation.Number}
	if err := cmp.Or(begun.Write(r.restoredDir()), r.hold()); err != nil {
		return broke(err)
	}
	if len(result.Alarms) > 0 {
		r.options.Log.Warn().Strs("alarms", result.Alarms).Msg("recovery: the alarms of the backed-up cluster are not restored")
	}
	r.options.Log.Info().Int64("revision", r.kept.path.Revision).Int64("continues_above", r.above()).Int64("bytes", result.Bytes).
		Int64("rows", result.Rows).Dur("took_ms", time.Since(began)).Msg("recovery: the backup is rebuilt")
	return Built, Facts{}
}

// above returns the revision from which the restored cluster continues, so that none is handed out twice.
func (r *run) above() int64 {
	return archive.Above(r.kept.Reserved.Revision, max(r.kept.path.Revision, r.stands.HighestRevision, r.endOfBackups()))
}

// plan returns the position of what was built.
func (r *run) plan(result seed.Result) position {
	p := position{
		Generation: archive.Generation{
			Number: r.kept.Next, Cluster: r.kept.Cluster.Cluster, Owner: r.owns(), Etcd: hex(result.ClusterID),
			Parent: r.kept.path.Generation.Number, ParentRevision: r.kept.path.Revision, Created: time.Now().UTC().Truncate(time.Second),
			Session: archive.NewID(), Restored: archive.Restores(r.kept.Generations), // retention may delete the generations that have them
			Adopted: r.adoptions(r.kept),
		},
		Reservation: min(result.Revision, math.MaxInt64-margin) + margin,
		Head:        r.kept.Head.Position, Aside: disk.PreservedName(r.member.DataDir, time.Now()), DataDir: r.member.DataDir, At: time.Now().UTC(), Premises: r.premises(),
	}
	if r.asked {
		p.Generation.Restore = r.options.Request.ID
	}
	return p
}

// stillness is how long a generation must not be extended before another process replaces it, by the store's clock.
// An idle writer adds a heartbeat every 40 s. It is a string for the linker, as the suites build a program that waits
// less.
var stillness = "90s"

// A life is the evidence of a process elsewhere that still writes the newest generation.
type life struct {
	ahead *time.Duration // lead of the store's clock; nil until it was read
	added time.Time      // when the last object of the generation was created, by the store's clock
	seen  time.Time      // when this run first saw it, by the local clock
	until time.Time      // when the generation will have been silent long enough, by the local clock; zero if nothing is waited for
}

// successor returns the generation that was restored from the volume's; the zero value if none was.
func (r *run) successor() (next archive.Generation) {
	all := r.kept.Generations
	if at := placeOf(all, hex(r.stands.ClusterID)); at >= 0 && at+1 < len(all) && all[at+1].Parent == all[at].Number {
		next = all[at+1]
	}
	return next
}

// placeOf returns the index of the generation with an etcd cluster ID; -1 if there is none.
func placeOf(generations []archive.Generation, cluster string) int {
	return slices.IndexFunc(generations, func(g archive.Generation) bool { return g.Etcd == cluster })
}

// leftBehind describes what the volume received after another cluster had replaced its own.
func (r *run) leftBehind() string {
	next := r.successor()
	if next.Number == 0 || r.stands.HighestRevision <= next.ParentRevision {
		return ""
	}
	return fmt.Sprintf("; %d revisions are lost, which generation %d got after revision %d, from which generation %d was restored",
		r.stands.HighestRevision-next.ParentRevision, next.Parent, next.ParentRevision, next.Number)
}

// mayTakeItsPlace reports whether a new generation may replace the newest one in the store. One of several members gets its data
// from the others, who go on writing the backups, unless none of them has any, or a restore is asked for.
func (r *run) mayTakeItsPlace() bool {
	f := r.core.Facts
	return f.Alone || r.asked || f.nobodyHas() || !f.Peers && f.Volume != VolumeValid
}

// lives returns why the process that writes the newest generation may still run: it has not released the generation,
// did not run on this volume, was not ruled out by the user, and has not been silent long enough. The end of the
// generation protects the data in any case; this protects users from two clusters.
func (r *run) lives(ctx context.Context, now inStore) (why, err error) {
	r.life.until = time.Time{}
	head := now.Head
	ended := head.Newest().Released || head.Ending() != nil
	if r.stillness == 0 || ended || now.adopted || r.ranHere(now) {
		return nil, nil
	}
	added, err := r.options.Archive.LastAdded(ctx, now.Newest(), head)
	if err != nil {
		return nil, err
	}
	if r.life.ahead == nil {
		clock, err := store.Clock(ctx, r.options.Archive.Store())
		if clock.IsZero() { // an object that could not be deleted stays
			return nil, cmp.Or(err, errors.New("the store does not say when an object was created"))
		}
		ahead := clock.Sub(r.now())
		r.life.ahead = &ahead
	}
	if !added.Equal(r.life.added) {
		r.life.added, r.life.seen = added, r.now()
	}
	until := added.Add(r.stillness - *r.life.ahead)
	if latest := r.life.seen.Add(r.stillness); until.After(latest) { // an object from the future counts as new from now on
		until = latest
	}
	if !r.now().Before(until) {
		return nil, nil
	}
	r.life.until = until
	return fmt.Errorf("%s added to generation %d of %s at %s by the store's clock; a restore can start at %s if nothing is added until then",
		r.writer(now), now.Newest().Number, r.options.Archive, added.UTC().Format(time.TimeOnly), until.UTC().Format(time.TimeOnly)), nil
}

// writer describes the process that wrote the end of the newest generation.
func (r *run) writer(now inStore) string {
	id := now.Head.Newest().Member
	switch id {
	case "":
		return "a member of this member's own cluster " + now.Newest().Cluster
	case hex(r.stands.MemberID):
		return "this member itself, as a process on this volume or on a copy of it,"
	}
	if at := slices.IndexFunc(r.survey.Members, func(m peers.Member) bool { return m.ID.String() == id && m.Name != "" }); at >= 0 {
		id = r.survey.Members[at].Name
	}
	return fmt.Sprintf("member %s of this member's own cluster %s", id, now.Newest().Cluster)
}

// ranHere reports whether the process that writes the newest generation ran on this volume. Valid data without what
// its session has stored are a copy, or older: etcd had that on disk before it was stored.
func (r *run) ranHere(now inStore) bool {
	if r.core.Facts.Volume == VolumeValid {
		return !r.behind(now) && now.Owner() == r.owns()
	}
	return r.identity.Session != "" && r.identity.Session == now.Head.Newest().Session
}
