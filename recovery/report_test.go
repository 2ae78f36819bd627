package recovery

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/recovery/peers"
)

// Recovery must report the time between the last backup and the last write, unless the time of the last write is
// unknown.
func TestIntervalBetweenLastBackupAndLastWrite(t *testing.T) {
	for name, test := range map[string]struct {
		gap     time.Duration
		happen  func(*fixture)
		message string
	}{
		"less than a second":  {730 * time.Millisecond, (*fixture).damage, "; nothing is known to be lost; the backups end at most 800ms before etcd's last write to the volume"},
		"with lost revisions": {730 * time.Millisecond, func(f *fixture) { f.put("a", "b") }, "; revisions lost: 2; the backups end at most 800ms before etcd's last write"},
		"no write since then": {-time.Minute, (*fixture).damage, "the backups end at most 0s before etcd's last write"},
		"hours":               {3*time.Hour + time.Millisecond, (*fixture).damage, "the backups end at most 3h0m1s before etcd's last write"},
		"the volume is empty": {time.Second, (*fixture).lose, "; nothing is known to be lost\""},
		"the log is missing": {time.Second, func(f *fixture) {
			require.NoError(f.t, os.RemoveAll(filepath.Join(f.member.DataDir, "member", "wal")))
			f.damage()
		}, "; nothing is known to be lost\""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFilledFixture(t)
			head, err := f.archive.Head(t.Context(), 1)
			require.NoError(t, err)
			test.happen(f)
			f.writtenAt(head.Full.Time.Add(test.gap))
			_, err = f.recovery().prepare(t.Context(), f.member, func(context.Context) error {
				if _, err := os.Stat(f.member.DataDir); err != nil {
					return nil
				}
				return errors.New("a page is damaged")
			})
			require.NoError(t, err)
			assert.Contains(t, f.log.String(), test.message)
		})
	}
}

// writtenAt sets the time of the last write to etcd's log.
func (f *fixture) writtenAt(at time.Time) {
	f.t.Helper()
	segments, err := filepath.Glob(filepath.Join(f.member.DataDir, "member", "wal", "*.wal"))
	require.NoError(f.t, err)
	for _, segment := range segments {
		require.NoError(f.t, os.Chtimes(segment, at, at))
	}
}

func TestMemberOfConfig(t *testing.T) {
	for name, test := range map[string]struct {
		yaml    string
		alone   bool
		members int
	}{
		"single member":            {"initial-cluster: m-0=http://127.0.0.1:1", true, 1},
		"single member that joins": {"initial-cluster: m-0=http://127.0.0.1:1\ninitial-cluster-state: existing", true, 1},
		"multiple members":         {"initial-cluster: m-0=http://127.0.0.1:1,m-1=http://127.0.0.1:2", false, 2},
		"discovery":                {"discovery-srv: cluster.invalid", false, 0},
		"discovery, and joins":     {"discovery-srv: cluster.invalid\ninitial-cluster-state: existing", false, 0},
		"no initial-cluster":       {"initial-cluster-state: new", true, 1},
		"force-new-cluster":        {"initial-cluster: m-0=http://127.0.0.1:1,m-1=http://127.0.0.1:2\nforce-new-cluster: true", false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			checked, err := etcdconf.Parse([]byte("name: m-0\ndata-dir: /data\ninitial-advertise-peer-urls: http://127.0.0.1:1\n" + test.yaml))
			require.NoError(t, err)
			member := memberOf(checked, "/data")
			assert.Equal(t, test.alone, member.Alone)
			assert.Len(t, member.Members, test.members)
		})
	}
}

// before returns a hook that calls happens once, before the given action.
func before(action Action, happens func() error) func(Action) error {
	seen := false
	return func(next Action) error {
		if next != action || seen {
			return nil
		}
		seen = true
		return happens()
	}
}

func TestDroppedAlarmsAreLogged(t *testing.T) {
	f := newFilledFixture(t)
	server, err := datadirtest.Start(f.member.DataDir)
	require.NoError(t, err)
	_, err = v3client.New(server.Server).Put(t.Context(), "a", "value")
	require.NoError(t, err)
	_, err = server.Server.Alarm(t.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: uint64(server.Server.MemberID()), Alarm: etcdserverpb.AlarmType_CORRUPT,
	})
	require.NoError(t, err)
	server.Close()
	f.backUp()
	f.lose()
	require.NoError(t, f.run())
	assert.Contains(t, f.log.String(), `"alarms":["CORRUPT"]`)
}

// A sole voter must start even if another member wrote the backups, provided that the data records that member's
// removal.
func TestSoleVoterStartsNextToBackupsOfARemovedMember(t *testing.T) {
	f, o := soleVoter(t)
	o.noQuorum = true
	server, err := datadirtest.Start(f.member.DataDir)
	require.NoError(t, err)
	client := v3client.New(server.Server)
	added, err := client.MemberAddAsLearner(t.Context(), []string{"http://127.0.0.1:2"})
	require.NoError(t, err)
	_, err = client.MemberRemove(t.Context(), added.Member.ID)
	require.NoError(t, err)
	server.Close()
	f.emptyStore()
	f.backUpAs(hex(added.Member.ID))
	f.requireStarts()
}

// soleVoter returns a member of a three-member cluster with peers that do not respond and with data from a time
// when it was the only voter.
func soleVoter(t *testing.T) (*fixture, *fakePeers) {
	t.Helper()
	f, o := memberOfThree(t)
	require.Equal(t, 1, positionOf(t, f.member.DataDir).Voters)
	o.listing = peers.Unknown
	return f, o
}

// backUpAs stores a full snapshot of the volume as the given member.
func (f *fixture) backUpAs(member string) {
	f.t.Helper()
	f.initStore(at)
	f.uploadFullAs(member, ours, 1, at)
}

// Damaged data must be replaced without comparing it with the restored data, even if the previous run was interrupted
// just before its claim.
func TestDamagedVolumeIsNotComparedAfterAKill(t *testing.T) {
	f := newFilledFixture(t)
	f.advanceStore()
	f.put("damaged")
	broken := func(context.Context) error { return errors.New("a page is damaged") }
	r := f.recovery()
	r.interrupt = before(ClaimGeneration, func() error { return errInterrupted })
	_, err := r.prepare(t.Context(), f.member, broken)
	require.ErrorIs(t, err, errInterrupted)
	_, err = f.recovery().prepare(t.Context(), f.member, broken)
	require.NoError(t, err)
	f.requireKeys("a", "key")
	assert.Len(t, f.preserved(), 1)
}

func TestMembersThatFoundTogetherHaveOneID(t *testing.T) {
	members, err := types.NewURLsMap("m-0=http://m-0:2380,m-1=http://m-1:2380,m-2=http://m-2:2380")
	require.NoError(t, err)
	f, o := memberOfThree(t)
	f.member.Members, f.member.PeerURLs = members, members["m-2"]
	f.emptyStore()
	f.lose()
	o.listing = peers.AllEmpty
	require.NoError(t, f.run())
	etcd, err := membership.NewClusterFromURLsMap(zap.NewNop(), f.member.InitialClusterToken, members)
	require.NoError(t, err)
	assert.Equal(t, hex(uint64(etcd.ID())), f.clusterManifest().Etcd, "the store has the ID that etcd gives the cluster")
	other, o := memberOfThree(t)
	other.archive, other.options.Archive = f.archive, f.archive
	other.member.Name, other.member.Members, other.member.PeerURLs = "m-1", members, members["m-1"]
	other.lose()
	o.listing = peers.AllEmpty
	require.NoError(t, other.run())
	assert.Equal(t, f.identity(), other.identity())
}

func TestUnreadableIdentityIsRefused(t *testing.T) {
	f := newFilledFixture(t)
	require.NoError(t, os.WriteFile(filepath.Join(f.member.DataDir, archive.IdentityFile), []byte("{"), 0o600))
	err := f.run()
	require.ErrorContains(t, err, archive.IdentityFile)
	require.ErrorContains(t, err, "move the file aside")
	assert.Len(t, f.generations(), 1)
}

// An adoption must end the generation before the build, because the store's cluster keeps writing and would make
// every build outdated.
func TestAdoptionEndsTheGenerationBeforeItBuilds(t *testing.T) {
	f := newFilledFixture(t)
	f.lose()
	f.options.Owner = func(token string) string { return "second/" + token }
	f.options.Adopt = ours
	writes := 0
	write := func() error {
		writes++
		head, err := f.archive.Head(t.Context(), 1)
		require.NoError(t, err)
		return f.archive.PutStored(t.Context(), 1, head.Position, formattest.Segment(t, f.archive.Keys(), head.Start, format.Source{Session: "theirs"}).Reader())
	}
	require.NoError(t, f.runWith(func(next Action) error {
		if next == EndAdopted && writes < 3 {
			return write()
		}
		if next == BuildData {
			head, err := f.archive.Head(t.Context(), 1)
			require.NoError(t, err)
			require.NotNil(t, head.Ending(), "nothing can be added to the generation during the build")
		}
		return nil
	}))
	assert.Equal(t, 1, writes)
	assert.Len(t, f.generations(), 2)
}

// A member must report its data to its peers before the validation, because the peers may not wait for the
// validation of a large database.
func TestMemberReportsItsDataDuringValidation(t *testing.T) {
	f, o := memberOfThree(t)
	published := false
	_, err := f.recovery().prepare(t.Context(), f.member, func(context.Context) error { published = o.published; return nil })
	require.NoError(t, err)
	assert.True(t, published)
}

// fakePeers simulates the other two members of a three-member cluster. Query answers with the values of the fields.
type fakePeers struct {
	listing          PeerState                  // how the peers list this member; changed by Remove and Add
	cluster          uint64                     // etcd cluster ID of the peers
	id               string                     // cluster ID according to the peers' stores; empty if they have no store
	generation       int                        // generation according to the peers' stores
	other            uint64                     // ID of the peer that responds; 0 stands for 1
	own              uint64                     // ID of this member in the peers' list; 0 stands for an ID that differs from the volume's
	blocked          []error                    // reasons why this member cannot be replaced, one for each of the next queries
	outdated         error                      // reason why the data of this member is outdated, according to the peers
	withoutQuorum    int                        // number of queries that get no quorum before the next one that does
	failChange       string                     // "before" or "after" if the next change must fail before or after it takes effect
	changes          []string                   // successful changes: "removed" and "added"
	published        bool                       // whether this member has called Publish
	reported         peers.Volume               // last state of its volume that this member reported
	running          int                        // number of peers that run etcd in the volume's cluster
	revision         int64                      // highest revision of the running peers
	noQuorum         bool                       // whether the peers cannot form a quorum without this member
	older            int                        // number of peers that are not running etcd and have older data than the store
	voters           int                        // number of voters in the volume's cluster according to a peer
	respond          func(peers.Self) PeerState // computes listing from the report of this member; nil if listing is constant
	size             int64                      // size of the peers' databases in bytes
	notUploaded      bool                       // whether a peer still has data that it has not uploaded
	reportedUploaded bool                       // value of Uploaded in the last query
}

func (o *fakePeers) Query(_ context.Context, self peers.Self) peers.Survey {
	o.reportedUploaded = self.Uploaded
	if o.reported = self.Volume; o.respond != nil {
		o.listing = o.respond(self)
	}
	c := peers.Survey{Membership: o.listing, Running: o.running, Revision: o.revision, NoQuorumElsewhere: o.noQuorum, Older: o.older, Voters: o.voters, Uploaded: !o.notUploaded}
	switch {
	case o.listing == peers.Unknown, o.listing == peers.AllLost:
		c.Missing = errors.New("m-0 does not answer")
		return c
	case o.withoutQuorum > 0:
		o.withoutQuorum--
		c.Membership, c.Missing = peers.NoQuorum, errors.New("m-1 does not answer")
		return c
	}
	c.Cluster, c.ID, c.Generation, c.Size = strconv.FormatUint(o.cluster, 16), o.id, o.generation, o.size
	c.Own = peers.Member{ID: types.ID(cmp.Or(o.own, 7))}
	c.Own.PeerURLs = []string{"http://m-2"}
	other := peers.Member{ID: types.ID(cmp.Or(o.other, 1))}
	other.Name, other.PeerURLs = "m-0", []string{"http://m-0"}
	c.Members = []peers.Member{other, c.Own}
	if self.MemberID != 0 {
		c.Outdated = o.outdated
	}
	if len(o.blocked) > 0 {
		c.Blocked, o.blocked = o.blocked[0], o.blocked[1:]
	}
	return c
}

func (o *fakePeers) Publish(self peers.Self) { o.published, o.reported = true, self.Volume }

func (o *fakePeers) Remove(context.Context, *peers.Survey) error {
	return o.change("removed", peers.Unlisted)
}

func (o *fakePeers) Add(context.Context, *peers.Survey) error { return o.change("added", peers.Added) }

func (o *fakePeers) change(what string, to PeerState) error {
	fail := o.failChange
	o.failChange = ""
	if fail == "before" {
		return errors.New("no quorum")
	}
	o.listing, o.changes = to, append(o.changes, what)
	if fail == "after" {
		return errors.New("no reply")
	}
	return nil
}

// memberOfThree returns a member of a three-member cluster with valid data, and its peers.
func memberOfThree(t *testing.T) (*fixture, *fakePeers) {
	t.Helper()
	f := newFilledFixture(t)
	o := &fakePeers{listing: peers.Started, cluster: positionOf(t, f.member.DataDir).ClusterID}
	f.member.Alone, f.member.Name, f.member.Peers = false, "m-2", o
	return f, o
}
