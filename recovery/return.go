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
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/internal/disk"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
)

// askThePeers asks how the other members list this one. Every answer can be asked for again, so no step of a rejoin
// is stored: the cluster's list of members is the state.
func (r *run) askThePeers() (Event, Facts) {
	restore := ""
	if r.asked {
		restore = r.options.Request.ID
	}
	r.survey = r.member.Peers.Query(r.ctx, peers.Self{
		ClusterID: r.stands.ClusterID, MemberID: r.stands.MemberID, SoleVoter: r.stands.VotesAlone(), Index: r.stands.Index,
		Volume: r.holds(), Restore: restore, Uploaded: r.core.Facts.Brought || r.options.Archive == nil,
	})
	if r.ctx.Err() != nil {
		return broke(r.ctx.Err())
	}
	c := &r.survey
	if c.Cluster != "" {
		r.silent = 0
	}
	r.findSuccessor(c)
	if c.Outdated == nil && r.core.Facts.Volume == VolumeValid {
		c.Outdated = r.ofAnother()
	}
	c.Blocked = cmp.Or(c.Blocked, r.mayLackWrites(c), r.roomFor(c))
	return PeersTold, Facts{
		Listing: c.Membership, Outdated: c.Outdated != nil, Free: c.Blocked == nil, AllBrought: c.Uploaded, Settled: r.settled(), Err: r.because(c),
	}
}

// mayLackWrites prevents valid data from being given up for a cluster that may lack writes that they acknowledged.
// Members that were removed in order were removed by a quorum of those that the data know, which has every
// acknowledged write. A member that was forced to continue alone is not such a quorum.
func (r *run) mayLackWrites(c *peers.Survey) error {
	if c.Membership != peers.Unlisted || c.Outdated == nil || c.Cluster != hex(r.stands.ClusterID) || r.core.Facts.Volume != VolumeValid {
		return nil
	}
	common := 0
	for _, m := range c.Members {
		if slices.Contains(r.stands.Known, m.ID.String()) {
			common++
		}
	}
	if common > r.stands.Members/2 {
		return nil
	}
	return fmt.Errorf("the cluster that answers has %d of the %d members that the data know, no quorum of them, as after force-new-cluster, so it may lack writes that this member "+
		"has acknowledged: to keep these data, stop the members that answer and start the others; to give them up, move the data directory away", common, r.stands.Members)
}

// roomFor reports that the volume has no room for the data of the others. What it had is moved by then, and is
// deleted as for a restore. Otherwise etcd would fail in the middle of a snapshot, at every start.
func (r *run) roomFor(c *peers.Survey) error {
	joins := c.Membership == peers.Started || c.Membership == peers.Added || c.Membership == peers.Unlisted
	if !joins || c.Blocked != nil || r.core.Facts.Volume != VolumeEmpty || r.core.Facts.Remains || r.asked {
		return nil
	}
	err := r.makeRoom(restore.Source{DatabaseBytes: c.Size}, relieving)
	if !errors.Is(err, restore.ErrNoRoom) {
		return err
	}
	wayOut := "enlarge it"
	for _, old := range r.preserved(func(disk.PreservedCopy) bool { return false }) {
		wayOut += ", or delete " + old.Path
	}
	return fmt.Errorf("the data of the others do not fit: %w: %s", err, wayOut)
}

// holds returns what the others are told about the volume.
func (r *run) holds() peers.Volume {
	switch volume := r.core.Facts.Volume; {
	case volume == VolumeCorrupt:
		return peers.Ruins
	case volume == VolumeEmpty && r.lost: // so that no other member founds a new cluster with this one
		return peers.Ruins
	case volume == VolumeEmpty:
		return peers.Nothing
	case volume == VolumeValid && r.older != nil:
		return peers.Older
	default:
		return peers.Data
	}
}

// because returns what is reported in addition to the reason of the row.
func (r *run) because(c *peers.Survey) error {
	switch {
	case c.Outdated == nil && r.result == nil && r.stands.MemberID != 0 && !r.asked:
		return nil
	case r.asked:
		return c.Missing
	case errors.Is(c.Outdated, peers.ErrMixedUp):
		return c.Outdated
	case errors.Is(c.Blocked, peers.ErrTooFew):
		return fmt.Errorf("%w; %s", c.Blocked, r.lostForGood())
	case c.Blocked != nil:
		return c.Blocked
	case c.Missing != nil && (c.Membership == peers.Claimed || r.older != nil && c.Cluster == ""):
		return fmt.Errorf("%w; %s", lacking(c), r.lostForGood())
	case c.Missing != nil && c.Membership == peers.Unknown:
		if r.options.Archive == nil || r.core.Facts.Volume == VolumeValid {
			return lacking(c)
		}
		return fmt.Errorf("%w; if one that had data is gone for good, take it out of initial-cluster, and start the others with --restore-to=latest and one --restore-id that was not used before", lacking(c))
	case c.Outdated != nil:
		return c.Outdated
	default:
		return r.result
	}
}

// lacking joins what speaks against the volume and what the answers lack.
func lacking(c *peers.Survey) error {
	if c.Outdated != nil {
		return fmt.Errorf("%w; %w", c.Outdated, c.Missing)
	}
	return c.Missing
}

// lostForGood returns the way out if too few members are left.
func (r *run) lostForGood() string {
	if r.options.Archive != nil {
		return "to restore what is lost for good from the store, stop all members and start all of them with --restore-to=latest and one --restore-id that was not used before"
	}
	return "if data are lost for good, start one member that has them once with force-new-cluster: true in etcd's configuration, and the others join it"
}

// tellReturn reports what is replaced, and from which members the data come.
func (r *run) tellReturn() (Event, Facts) {
	r.replaced = true
	r.noteCause()
	r.outcome.Ended = Rejoined
	volume := "the volume is empty"
	switch {
	case r.result != nil && r.core.Facts.Remains:
		volume = "the volume is broken: " + r.result.Error()
	case errors.Is(r.survey.Outdated, peers.ErrMixedUp):
		volume = "the data on the volume are not this member's: " + r.survey.Outdated.Error()
	case r.survey.Outdated != nil:
		volume = "the volume was put back to an older state: " + r.survey.Outdated.Error()
	}
	var from []string
	for _, m := range r.survey.Others() {
		if m.Name != "" {
			from = append(from, m.Name)
		}
	}
	told := fmt.Sprintf("%s; the member gets its data from %s of cluster %s", volume, strings.Join(from, " and "), r.survey.Cluster)
	if r.Progress().Loss == "" {
		r.tell(func(p *Progress) { p.Loss = told })
		r.options.Log.Warn().Msg("recovery: " + told)
	}
	return "", Facts{}
}

// removeMember removes the identity whose log was lost from the cluster.
func (r *run) removeMember() (Event, Facts) {
	return r.changed(r.member.Peers.Remove(r.ctx, &r.survey), Left, fmt.Sprintf("this member's old identity is out of the cluster; it was %s", r.survey.Own.ID))
}

func (r *run) addMember() (Event, Facts) {
	return r.changed(r.member.Peers.Add(r.ctx, &r.survey), Entered, "the cluster has taken this member in anew")
}

// changed returns the event of a change of the members.
func (r *run) changed(err error, done Event, told string) (Event, Facts) {
	if err != nil {
		return PeersSilent, Facts{Err: err}
	}
	r.options.Log.Info().Msg("recovery: " + told)
	return done, Facts{}
}

// tellPeers comes before a generation is created: a member that finds it in the store and asks the others must not
// take this one for one without data.
func (r *run) tellPeers() (Event, Facts) {
	if r.member.Peers != nil {
		r.member.Peers.Publish(peers.Self{Volume: peers.Restores, Restore: r.position.Generation.Restore, Uploaded: true})
	}
	return "", Facts{}
}

// adoptCluster makes etcd start with the members of the cluster.
func (r *run) adoptCluster() (Event, Facts) {
	r.joins = r.survey.InitialCluster(r.member.Name)
	return "", Facts{}
}

// waitsAnew reports that the peers are waited for with another reason than before.
func (r *run) waitsAnew(event Event, payload Facts, decision statemachine.Decision, reason string) bool {
	if event == PeersTold && decision.To == AskPeers || event == PeersSilent || event == Answered && payload.Told.answers() && decision.To == AskPeers {
		news := reason != r.waitsFor
		r.waitsFor = reason
		return news
	}
	return false
}

// brief bounds a question to the store that may stay unanswered.
const brief = 10 * time.Second

// findSuccessor checks whether the cluster has continued without the volume, and whether the others belong to this
// member's cluster.
func (r *run) findSuccessor(c *peers.Survey) {
	id := hex(r.stands.ClusterID)
	if err := r.notOurs(c); err != nil {
		c.Blocked = cmp.Or(c.Blocked, err)
		return
	}
	switch {
	case r.stands.ClusterID == 0 || c.Cluster == id && c.Membership != peers.Claimed:
		if r.identity.Known() && c.ID == r.identity.Cluster { // they have adopted a store meanwhile
			r.identity.Generation = max(r.identity.Generation, c.Generation)
		}
	case c.Cluster != "" && c.Cluster != id:
		r.compareClusters(c, id)
	case r.core.Facts.Volume == VolumeValid: // other volumes wait for the others in any case
		c.Outdated = r.overtaken(c)
	}
	if c.Outdated == nil && (c.Membership == peers.Started || c.Membership == peers.Claimed) && r.stands.MemberID != 0 {
		c.Outdated = r.diedOfThem()
	}
}

// ofAnother reports that the volume belongs to another member of this cluster. etcd would use that identity, which
// would exist twice.
func (r *run) ofAnother() error {
	is, self := r.stands, r.member
	listed := self.Members[is.Name] != nil
	moved := slices.ContainsFunc(is.PeerURLs, func(at string) bool { return slices.Contains(self.PeerURLs.StringSlice(), at) })
	if is.Name == self.Name || !listed || moved {
		return nil
	}
	return fmt.Errorf("the data in %s are those of member %s, and this is %s: %w: mount the right volume, or move the data directory away", self.DataDir, is.Name, self.Name, peers.ErrMixedUp)
}

// contradictions are the panics of etcd at every start when the data contradict those of the other members. Only
// these know it, and only while they run.
var contradictions = map[string]string{
	"tocommit(":                     "they lack what this member has confirmed to its leader",
	"conflict with committed entry": "their log differs from the leader's where both are committed",
	"member unknown":                "they do not know a member that the cluster has",
}

// diedOfThem returns how the data contradict those of the other members, if etcd died of that at its last start.
func (r *run) diedOfThem() error {
	if r.replaced || r.options.Died == nil {
		return nil
	}
	died := r.options.Died()
	for text, why := range contradictions {
		if strings.Contains(died, text) {
			return fmt.Errorf("etcd died of them at its last start: %s", why)
		}
	}
	return nil
}

// notOurs reports that the others do not belong to this member's cluster, so that their members are not changed. The
// volume names the cluster, or the store if it has this owner. Others without a store are identified by etcd's
// cluster ID. An empty store says nothing.
func (r *run) notOurs(c *peers.Survey) error {
	if c.Cluster == "" || r.options.Archive == nil || r.stands.ClusterID != 0 && c.ID == "" {
		return nil
	}
	if (r.own == "" || c.ID == "" && r.etcd != c.Cluster) && r.now().Sub(r.whoseAsked) >= brief {
		r.askWhose()
	}
	const leave = "their members are not changed; see that the names in initial-cluster lead to this cluster's members"
	switch {
	case c.ID == "" && r.etcd != "" && r.etcd != c.Cluster:
		return fmt.Errorf("the others are cluster %s by etcd, and %s is that of cluster %s: %s", c.Cluster, r.options.Archive, r.etcd, leave)
	case c.ID != "" && r.own != "" && c.ID != r.own:
		return fmt.Errorf("the others are cluster %s, and this member is one of cluster %s: %s", c.ID, r.own, leave)
	case c.ID != "" && r.own == "" && r.storeAway:
		return fmt.Errorf("the others are cluster %s, and neither the volume nor the store tells whether that is this member's: %s; if it is, and the store is gone for good, start without --backup-store", c.ID, leave)
	}
	return nil
}

// askWhose asks the store for this member's cluster, less often than the others are asked.
func (r *run) askWhose() {
	r.whoseAsked = r.now()
	ctx, cancel := context.WithTimeout(r.ctx, brief)
	defer cancel()
	there, err := r.identified(ctx)
	if r.storeAway = err != nil; !r.storeAway && there.Cluster.Cluster != "" {
		r.etcd, r.own = there.Etcd(), there.Cluster.Cluster
	}
}

// compareClusters handles a volume and peers with different etcd cluster IDs.
func (r *run) compareClusters(c *peers.Survey, id string) {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	if c.ID != "" && c.ID == r.identity.Cluster && c.Generation > r.identity.Generation {
		c.Outdated = restoredSince(r.identity.Generation, c.Generation)
		return
	}
	var generations []archive.Generation
	if r.options.Archive != nil {
		var err error
		if generations, err = r.options.Archive.Generations(ctx); err != nil || generations == nil {
			err = cmp.Or(err, errors.New("there is nothing in it"))
			c.Outdated = fmt.Errorf("the others are another cluster, and the store does not tell whether that was restored from this one: %w", err)
			c.Blocked = c.Outdated
			return
		}
	}
	if was, is := placeOf(generations, id), placeOf(generations, c.Cluster); was >= 0 && is > was {
		c.Outdated = restoredSince(generations[was].Number, generations[is].Number)
		return
	}
	c.Blocked = fmt.Errorf("the volume is cluster %s's by etcd, and the others are cluster %s: mount this member's volume, or move the data directory away", id, c.Cluster)
}

// overtaken returns why a valid volume is not opened while no quorum of the others answers; nil if it is, as etcd
// would: after a power cut all are silent. Everything in the store was acknowledged by a quorum, so no quorum without
// all of it must form: a member that is older than the store waits for one that runs and has it.
func (r *run) overtaken(c *peers.Survey) error {
	if r.stands.VotesAlone() && c.Voters > 1 {
		return fmt.Errorf("the data are of a time when the cluster had one voting member, and another one tells of %d", c.Voters)
	}
	heard := r.older != nil // reported by the others when they were asked
	if !heard {
		var err error
		if r.older, err = r.storeHasMore(); err != nil && r.stands.VotesAlone() {
			return fmt.Errorf("this member can go on alone by its log, and the store does not tell whether others went on since: %w", err)
		}
	}
	switch {
	case r.older == nil && r.stands.VotesAlone() && c.Running == 0 && !c.NoQuorumElsewhere && !r.member.Forced:
		return errVotesAlone
	case r.older == nil, heard && r.needs > 0 && c.Revision >= r.needs && 1+c.Older < r.stands.Voters/2+1 && !errors.Is(r.older, errRestored):
		return nil
	}
	return r.older
}

// errVotesAlone reports data with which this member would serve immediately, while the silent members may be a quorum
// by now. The store cannot rule that out: they may have written nothing, or the store may have been rolled back with
// the volume.
var errVotesAlone = errors.New("by its log this member is the only one with a vote, and initial-cluster names others, which may have gone on since as a quorum: " +
	"start the others; if they are lost for good, set force-new-cluster: true once in etcd's configuration")

// storeHasMore returns what the store has of the cluster and the volume lacks; older is nil if that is nothing. err
// says why the store cannot be asked.
func (r *run) storeHasMore() (older, err error) {
	ctx, cancel := context.WithTimeout(r.ctx, brief)
	defer cancel()
	if older, err = r.compareStore(ctx); err != nil && r.stands.VotesAlone() {
		return r.byNames(ctx, err)
	}
	return older, err
}

func (r *run) compareStore(ctx context.Context) (older, err error) {
	if r.options.Archive == nil {
		return nil, nil
	}
	lineage, err := r.options.Archive.Lineage(ctx)
	last := lineage.Newest()
	switch {
	case err != nil:
		return nil, err
	case last.Number == 0 || last.Cluster != r.identity.Cluster:
		return nil, nil // the store does not know the volume
	case last.Number > r.identity.Generation:
		return restoredSince(r.identity.Generation, last.Number), nil
	}
	head, reservation, err := r.extent(ctx, last.Number)
	if err != nil {
		return nil, err
	}
	if r.needs = head.Revision(); reservation.Generation == last.Number {
		r.needs = max(r.needs, reservation.Revision-margin)
	}
	return r.olderThan(head, reservation), nil
}

// olderThan compares the volume with what the store has of its cluster.
func (r *run) olderThan(head archive.Head, reservation archive.Reservation) error {
	stands, writer := r.stands, head.Newest().Member
	switch reached := reservation.Revision - margin; {
	case !head.Empty() && head.Revision() > stands.HighestRevision:
		return fmt.Errorf("the data end with revision %d, and the store has revision %d", stands.HighestRevision, head.Revision())
	case reservation.Generation == r.identity.Generation && reached > stands.HighestRevision:
		return fmt.Errorf("the data end with revision %d, and by the store the cluster had come to revision %d", stands.HighestRevision, reached)
	case stands.VotesAlone() && writer != "" && !slices.Contains(stands.Known, writer):
		return fmt.Errorf("the data are of a time when the cluster had one voting member, and member %s, which they do not know, has written to the store", writer)
	}
	return nil
}

// errRestored reports data whose cluster was restored since, so that another one continues.
var errRestored = errors.New("was restored since")

// restoredSince reports that the data of a generation were restored to create another one.
func restoredSince(was, is int) error {
	return fmt.Errorf("the data are of generation %d, and generation %d %w", was, is, errRestored)
}
