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
	"etcd-wrapper/backup/relation"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/internal/disk"
	"etcd-wrapper/recovery/peers"
)

// A peerGroup queries the other members of the cluster and compares the volume with their responses.
type peerGroup struct {
	*session
	volume           *localVolume
	backups          *remoteStore
	newer            error     // data in the store that a valid volume lacks; nil if there is none or the store was not read
	needed           int64     // revision that any quorum must have, according to the store; 0 if unknown
	id               string    // ID of this member's cluster, from the volume or the store
	etcdID           string    // etcd cluster ID recorded in the store; used for peers that report only that ID
	storeUnreachable bool      // whether the store was unreachable when id was read
	askedAt          time.Time // time of the last request to the store
	lostSince        time.Time // time since which no member has reported usable data; zero if one has
}

// queryPeers asks the other members how they list this member. The steps of a rejoin are not recorded, because
// recovery can always reread the member list.
func (c *peerGroup) queryPeers() (Event, Facts, error) {
	v := c.volume
	self := peers.Self{Position: v.position, Volume: c.stateForPeers(), Uploaded: c.facts.Uploaded || c.options.Archive == nil}
	if c.requested {
		self.Restore = c.options.Request.ID
	}
	c.survey = c.member.Peers.Query(c.ctx, self)
	if c.ctx.Err() != nil {
		return "", Facts{}, c.ctx.Err()
	}
	s := &c.survey
	if s.Cluster != "" {
		c.retries = 0
	}
	c.id = cmp.Or(c.id, v.identity.Cluster)
	c.compare(s)
	if s.Outdated == nil && c.isValid() {
		s.Outdated = c.checkMember()
	}
	s.Blocked = cmp.Or(s.Blocked, c.checkQuorum(s), c.checkFreeSpace(s))
	return PeersResponded, Facts{Err: c.reason(s), PeerFacts: PeerFacts{
		Listing: s.Membership, Outdated: s.Outdated != nil, Free: s.Blocked == nil, AllUploaded: s.Uploaded, Settled: c.isWaitDone(),
	}}, nil
}

// isWaitDone reports whether no member has had usable data for so long that a late mount is ruled out.
func (c *peerGroup) isWaitDone() bool {
	if listing := c.survey.Membership; listing != peers.AllLost && listing != peers.AllEmpty {
		c.lostSince = time.Time{}
		return false
	}
	if c.lostSince.IsZero() {
		c.lostSince = c.now()
	}
	return c.now().Sub(c.lostSince) >= c.lateMounts
}

// stateForPeers returns the volume state to report to the peers.
func (c *peerGroup) stateForPeers() peers.Volume {
	switch state := c.facts.Volume; {
	case state == VolumeCorrupt, state == VolumeEmpty && c.volume.served: // data was lost, so no other member may create a new cluster with this one
		return peers.Unusable
	case state == VolumeEmpty:
		return peers.Nothing
	case state == VolumeValid && c.newer != nil:
		return peers.Older
	}
	return peers.Data
}

// compare checks whether the peers belong to the cluster of this volume, and whether that cluster has continued
// without the volume.
func (c *peerGroup) compare(s *peers.Survey) {
	v := c.volume
	if err := c.checkCluster(s); err != nil {
		s.Blocked = cmp.Or(s.Blocked, err)
		return
	}
	switch id := hex(v.position.ClusterID); {
	case v.position.ClusterID == 0 || s.Cluster == id && s.Membership != peers.NoQuorum:
		if v.identity.Known() && s.ID == v.identity.Cluster { // an adoption by the peers may have created a generation
			v.identity.Generation = max(v.identity.Generation, s.Generation)
		}
	case s.Cluster != "" && s.Cluster != id:
		c.compareCluster(s, id)
	case c.isValid(): // with any other volume, the member waits for the other members anyway
		s.Outdated = c.compareStore(s)
	}
	if s.Outdated == nil && (s.Membership == peers.Started || s.Membership == peers.NoQuorum) && v.position.MemberID != 0 {
		s.Outdated = c.checkCrash()
	}
}

// checkCluster returns an error if the peers belong to a different cluster, because this member must not change
// that cluster's membership. The ID of this member's cluster comes from the volume or from a store that this member
// owns. Without a store, clusters are compared by etcd's cluster ID.
func (c *peerGroup) checkCluster(s *peers.Survey) error {
	if s.Cluster == "" || c.options.Archive == nil || c.volume.position.ClusterID != 0 && s.ID == "" {
		return nil
	}
	if (c.id == "" || s.ID == "" && c.etcdID != s.Cluster) && c.now().Sub(c.askedAt) >= shortStoreTimeout {
		c.askedAt = c.now()
		ctx, cancel := context.WithTimeout(c.ctx, shortStoreTimeout)
		defer cancel()
		seen, err := c.backups.readCluster(ctx)
		if c.storeUnreachable = err != nil; err == nil && seen.Cluster.Cluster != "" {
			c.etcdID, c.id = seen.Etcd(), seen.Cluster.Cluster
		}
	}
	const leave = "not changing their membership; check that the URLs in initial-cluster point to members of this cluster"
	switch {
	case s.ID == "" && c.etcdID != "" && c.etcdID != s.Cluster:
		return fmt.Errorf("the other members belong to cluster %s (etcd ID), but %s belongs to cluster %s; %s", s.Cluster, c.options.Archive, c.etcdID, leave)
	case s.ID != "" && c.id != "" && s.ID != c.id:
		return fmt.Errorf("the other members belong to cluster %s, but this member belongs to cluster %s; %s", s.ID, c.id, leave)
	case s.ID != "" && c.id == "" && c.storeUnreachable:
		return fmt.Errorf("the other members belong to cluster %s, but this member's cluster is unknown while the store is unreachable; %s; if it is the same cluster and the store is gone for good, start without --backup-store", s.ID, leave)
	}
	return nil
}

// compareCluster compares the volume with peers that have a different etcd cluster ID, for example after the cluster
// was restored.
func (c *peerGroup) compareCluster(s *peers.Survey, id string) {
	own, theirs := c.volume.identity.Generation, s.Generation
	if s.ID == "" || s.ID != c.volume.identity.Cluster || theirs <= own {
		own, theirs = 0, 0
		if c.options.Archive != nil {
			ctx, cancel := context.WithTimeout(c.ctx, storeTimeout)
			defer cancel()
			lineage, err := c.options.Archive.Lineage(ctx)
			if err != nil || lineage.Newest().Number == 0 {
				err = cmp.Or(err, errors.New("the store has no generations"))
				s.Outdated = fmt.Errorf("the other members belong to a different cluster, and the store does not show whether that cluster was restored from this one: %w", err)
				s.Blocked = s.Outdated
				return
			}
			own, theirs = relation.OfEtcd(lineage, id).Number, relation.OfEtcd(lineage, s.Cluster).Number
		}
	}
	if own == 0 || theirs <= own {
		s.Blocked = fmt.Errorf("the data belongs to cluster %s (etcd ID), but the other members belong to cluster %s; mount this member's volume or move the data directory aside", id, s.Cluster)
		return
	}
	s.Outdated = fmt.Errorf("the data belongs to generation %d, but the cluster has since been restored as generation %d", own, theirs)
}

// compareStore returns nil if etcd may open a valid volume even if no quorum of the peers responds, and the reason
// otherwise. After a power failure, no peer responds at first, so a member normally starts without waiting for its
// peers. However, a quorum has acknowledged everything in the store, so a quorum must not form without that data.
// If the volume is older than the store, the member waits for a running member that has the data.
func (c *peerGroup) compareStore(s *peers.Survey) error {
	// If reported is true, this member reported in its last query that the volume is older than the store.
	position, reported := c.volume.position, c.newer != nil
	alone := position.IsOnlyVoter()
	if alone && s.Voters > 1 {
		return fmt.Errorf("the data is outdated: it lists one voting member, but another member lists %d", s.Voters)
	}
	if !reported && c.options.Archive != nil {
		var err error
		if c.newer, err = c.findNewer(); err != nil && alone {
			return fmt.Errorf("this member is the only voter according to its log, but the store does not show whether the cluster has continued without it: %w", err)
		}
	}
	switch {
	case c.newer == nil && alone && s.Running == 0 && !s.NoQuorumElsewhere && !c.member.ForceNewCluster:
		return errVotesAlone
	case c.newer == nil, reported && c.needed > 0 && s.Revision >= c.needed && 1+s.Older < position.Voters/2+1:
		return nil
	}
	return c.newer
}

// errVotesAlone reports that this member would serve its data immediately even though the other members may have
// formed a quorum without it. A store without newer data does not prove that there was no such quorum: the quorum
// may not have written anything, or the store may have been rolled back together with the volume.
var errVotesAlone = errors.New("this member is the only voter according to its log, but initial-cluster lists other members, which may have continued as a quorum; " +
	"start the other members; if they are lost for good, start once with force-new-cluster: true in etcd's configuration")

// findNewer describes the cluster's data that the store has but the volume lacks. If there is no such data, newer
// is nil. If the store cannot be read, findNewer returns err.
func (c *peerGroup) findNewer() (newer, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, shortStoreTimeout)
	defer cancel()
	position, data := c.volume.position, c.backups.describeVolume()
	seen, err := c.backups.observe(ctx)
	switch {
	case err != nil && position.IsOnlyVoter():
		return c.backups.compareNames(ctx, err)
	case err != nil:
		return nil, err
	}
	judgment := relation.Compare(data, seen.Store, false)
	c.needed, newer = judgment.Newer(data, seen.Store, c.options.Archive.String())
	writer := seen.Head.Newest().Member
	if newer == nil && judgment.Relation == relation.Same && position.IsOnlyVoter() && writer != "" && !slices.Contains(position.Known, writer) {
		newer = fmt.Errorf("the data is outdated: it does not list member %s, which has written to the store", writer)
	}
	return newer, nil
}

// crashes maps etcd's panics to their causes. If the data on the volume contradicts the data of the running
// members, etcd panics at every start, even though the data looks valid by itself.
var crashes = map[string]string{
	"tocommit(":                     "the data lacks entries that this member has acknowledged to the leader",
	"conflict with committed entry": "committed entries in the log differ from the leader's",
	"member unknown":                "a member of the cluster is missing from the data",
}

// checkCrash returns an error if etcd crashed at the last start because its data contradicts that of the other
// members.
func (c *peerGroup) checkCrash() error {
	if c.replaced || c.options.Died == nil {
		return nil
	}
	died := c.options.Died()
	for text, why := range crashes {
		if strings.Contains(died, text) {
			return fmt.Errorf("etcd crashed with this data at the last start: %s", why)
		}
	}
	return nil
}

// checkMember returns an error if the volume belongs to a different member of this cluster. If etcd started with the
// data, two processes could run as the same member.
func (c *peerGroup) checkMember() error {
	data, self := c.volume.position, c.member
	moved := slices.ContainsFunc(data.PeerURLs, func(url string) bool { return slices.Contains(self.PeerURLs.StringSlice(), url) })
	if data.Name == self.Name || self.Members[data.Name] == nil || moved {
		return nil
	}
	return fmt.Errorf("the data in %s belongs to member %s, but this is member %s: %w; mount the right volume or move the data directory aside", self.DataDir, data.Name, self.Name, peers.ErrMixedUp)
}

// checkQuorum keeps a member from giving up valid data for a cluster that may lack acknowledged writes. A regular
// removal requires a quorum of the members listed in the data, and that quorum has every acknowledged write. After
// force-new-cluster, however, a single member may continue without such a quorum. The check passes if the data
// records the removal of this member: the member has acknowledged nothing since, and the members listed in its data
// may have been removed later.
func (c *peerGroup) checkQuorum(s *peers.Survey) error {
	data := c.volume.position
	if s.Membership != peers.Unlisted || s.Outdated == nil || s.Cluster != hex(data.ClusterID) || !c.isValid() || data.Removed {
		return nil
	}
	common := 0
	for _, m := range s.Members {
		if slices.Contains(data.Known, m.ID.String()) {
			common++
		}
	}
	if common > data.Members/2 {
		return nil
	}
	return fmt.Errorf("the running cluster has only %d of the %d members that the data lists, as after force-new-cluster, and may lack writes that this member "+
		"acknowledged; to keep this data, stop the running members and start the others; to drop it, move the data directory aside", common, data.Members)
}

// checkFreeSpace deletes preserved copies until the volume has room for the peers' data, and returns an error if
// there is still no room. Without the check, etcd would fail at every start while receiving a snapshot.
func (c *peerGroup) checkFreeSpace(s *peers.Survey) error {
	if !s.Membership.HasQuorum() || s.Blocked != nil || c.facts.Volume != VolumeEmpty || c.facts.Remains || c.requested {
		return nil
	}
	err := c.volume.freeSpace(restore.Source{DatabaseBytes: s.Size}, roomTimeout)
	if !errors.Is(err, restore.ErrNoRoom) {
		return err
	}
	wayOut := "enlarge the volume"
	for _, old := range c.volume.preserved(func(disk.PreservedCopy) bool { return false }) {
		wayOut += ", or delete " + old.Path
	}
	return fmt.Errorf("the volume has no room for the other members' data: %w; %s", err, wayOut)
}

// reason returns the details of a survey that are appended to the reason for the next state, or nil.
func (c *peerGroup) reason(s *peers.Survey) error {
	damage, archived, missing := c.volume.damage, c.options.Archive != nil, s.Missing
	if missing != nil && s.Outdated != nil {
		missing = fmt.Errorf("%w; %w", s.Outdated, s.Missing)
	}
	switch {
	case c.requested:
		return s.Missing
	case s.Outdated == nil && damage == nil && c.volume.position.MemberID != 0:
		return nil
	case errors.Is(s.Outdated, peers.ErrMixedUp):
		return s.Outdated
	case errors.Is(s.Blocked, peers.ErrTooFew):
		return fmt.Errorf("%w; %s", s.Blocked, c.wayOut())
	case s.Blocked != nil:
		return s.Blocked
	case missing == nil:
	case s.Membership == peers.NoQuorum, c.newer != nil && s.Cluster == "":
		return fmt.Errorf("%w; %s", missing, c.wayOut())
	case s.Membership == peers.Unknown && (!archived || c.isValid()):
		return missing
	case s.Membership == peers.Unknown:
		return fmt.Errorf("%w; if a member that had data is lost for good, remove it from initial-cluster and start the others with --restore-to=latest and a new --restore-id", missing)
	}
	return cmp.Or(s.Outdated, damage)
}

// wayOut returns what the user can do if too few members have data.
func (c *peerGroup) wayOut() string {
	if c.options.Archive != nil {
		return "if the missing data is lost for good, restore from the store: stop all members, then start all of them with --restore-to=latest and the same new --restore-id"
	}
	return "if the missing data is lost for good, set force-new-cluster: true in etcd's configuration for one start of a member that still has data; the others will join it"
}

// removeMember removes the old identity of this member from the cluster, because the member has lost its log.
func (c *peerGroup) removeMember() (Event, Facts, error) {
	return c.changed(c.member.Peers.Remove(c.ctx, &c.survey), fmt.Sprintf("removed this member's old ID %s from the cluster", c.survey.Own.ID))
}

func (c *peerGroup) addMember() (Event, Facts, error) {
	return c.changed(c.member.Peers.Add(c.ctx, &c.survey), "added this member to the cluster again")
}

// changed returns the event for the outcome of a membership change.
func (c *peerGroup) changed(err error, message string) (Event, Facts, error) {
	if err != nil {
		return PeersUnavailable, Facts{Err: err}, nil
	}
	c.options.Log.Info().Msg("recovery: " + message)
	return Changed, Facts{}, nil
}

// errUnconfirmed reports that, according to the last query, a member did not respond or may have data.
var errUnconfirmed = errors.New("some members have not confirmed that they have no usable data")

// confirmPeers queries the peers again before the generation is ended. A peer with data may have started during the
// build or while this program was down.
func (c *peerGroup) confirmPeers(ctx context.Context, next archive.Generation) error {
	if c.member.Peers == nil {
		return nil
	}
	s := c.member.Peers.Query(ctx, selfForRestore(next))
	switch s.Membership { //nolint:exhaustive // all others have a cluster
	case peers.AllLost, peers.AllEmpty, peers.RestoreAgreed:
		return nil
	case peers.Unknown:
		return fmt.Errorf("%w: %w", errUnconfirmed, cmp.Or(s.Missing, errors.New("another member may have data")))
	}
	return lostClaim("a member that has data is running again")
}

// selfForRestore describes a member that restores a generation.
func selfForRestore(next archive.Generation) peers.Self {
	return peers.Self{Volume: peers.Restores, Restore: next.Restore, Uploaded: true}
}
