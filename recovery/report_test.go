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
		happen  func(*world)
		message string
	}{
		"a moment":                 {730 * time.Millisecond, (*world).damage, "; nothing is known to be lost; the backups end at most 800ms before the last write of etcd to the volume"},
		"a moment, with revisions": {730 * time.Millisecond, func(w *world) { w.put("a", "b") }, "; 2 revisions are lost; the backups end at most 800ms before the last write of etcd"},
		"nothing":                  {-time.Minute, (*world).damage, "the backups end at most 0s before the last write"},
		"hours":                    {3*time.Hour + time.Millisecond, (*world).damage, "the backups end at most 3h0m1s before the last write"},
		"not known":                {time.Second, (*world).lose, "; nothing is known to be lost\""},
		"log is gone": {time.Second, func(w *world) {
			require.NoError(w.t, os.RemoveAll(filepath.Join(w.member.DataDir, "member", "wal")))
			w.damage()
		}, "; nothing is known to be lost\""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFilledWorld(t)
			head, err := w.archive.Head(t.Context(), 1)
			require.NoError(t, err)
			test.happen(w)
			w.writtenAt(head.Full.Time.Add(test.gap))
			_, err = w.recovery().prepare(t.Context(), w.member, func(context.Context) error {
				if _, err := os.Stat(w.member.DataDir); err != nil {
					return nil
				}
				return errors.New("a page is damaged")
			})
			require.NoError(t, err)
			assert.Contains(t, w.log.String(), test.message)
		})
	}
}

// writtenAt sets the time of the last write to etcd's log.
func (w *world) writtenAt(at time.Time) {
	w.t.Helper()
	segments, err := filepath.Glob(filepath.Join(w.member.DataDir, "member", "wal", "*.wal"))
	require.NoError(w.t, err)
	for _, segment := range segments {
		require.NoError(w.t, os.Chtimes(segment, at, at))
	}
}

func TestMemberOfConfig(t *testing.T) {
	for name, test := range map[string]struct {
		yaml    string
		alone   bool
		members int
	}{
		"alone":                      {"initial-cluster: m-0=http://127.0.0.1:1", true, 1},
		"alone in one that exists":   {"initial-cluster: m-0=http://127.0.0.1:1\ninitial-cluster-state: existing", true, 1},
		"one of several":             {"initial-cluster: m-0=http://127.0.0.1:1,m-1=http://127.0.0.1:2", false, 2},
		"one that is to be found":    {"discovery-srv: cluster.invalid", false, 0},
		"that are found and exist":   {"discovery-srv: cluster.invalid\ninitial-cluster-state: existing", false, 0},
		"alone, and nothing is said": {"initial-cluster-state: new", true, 1},
		"forced to go on alone":      {"initial-cluster: m-0=http://127.0.0.1:1,m-1=http://127.0.0.1:2\nforce-new-cluster: true", false, 2},
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
	w := newFilledWorld(t)
	server, err := datadirtest.Start(w.member.DataDir)
	require.NoError(t, err)
	_, err = v3client.New(server.Server).Put(t.Context(), "a", "value")
	require.NoError(t, err)
	_, err = server.Server.Alarm(t.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: uint64(server.Server.MemberID()), Alarm: etcdserverpb.AlarmType_CORRUPT,
	})
	require.NoError(t, err)
	server.Close()
	w.backUp()
	w.lose()
	require.NoError(t, w.run())
	assert.Contains(t, w.log.String(), `"alarms":["CORRUPT"]`)
}

// A sole voter must start even if another member wrote the backups, provided that the data records that member's
// removal.
func TestSoleVoterStartsNextToBackupsOfARemovedMember(t *testing.T) {
	w, o := soleVoter(t)
	o.noQuorum = true
	server, err := datadirtest.Start(w.member.DataDir)
	require.NoError(t, err)
	client := v3client.New(server.Server)
	added, err := client.MemberAddAsLearner(t.Context(), []string{"http://127.0.0.1:2"})
	require.NoError(t, err)
	_, err = client.MemberRemove(t.Context(), added.Member.ID)
	require.NoError(t, err)
	server.Close()
	w.emptyStore()
	w.backUpAs(hex(added.Member.ID))
	w.requireStarts()
}

// soleVoter returns a member of a three-member cluster with peers that do not respond and with data from a time
// when it was the only voter.
func soleVoter(t *testing.T) (*world, *fakePeers) {
	t.Helper()
	w, o := ofThree(t)
	require.Equal(t, 1, positionOf(t, w.member.DataDir).Voters)
	o.listing = peers.Unknown
	return w, o
}

// backUpAs stores a full snapshot of the volume as the given member.
func (w *world) backUpAs(member string) {
	w.t.Helper()
	w.found(at)
	w.uploadFullAs(member, ours, 1, at)
}

// Damaged data must be replaced without comparing it, even in the first run after a crash.
func TestDamagedVolumeIsNotComparedAfterAKill(t *testing.T) {
	w := newFilledWorld(t)
	w.advanceStore()
	w.put("damaged")
	broken := func(context.Context) error { return errors.New("a page is damaged") }
	r := w.recovery()
	r.interrupt = before(ClaimGeneration, func() error { return errCut })
	_, err := r.prepare(t.Context(), w.member, broken)
	require.ErrorIs(t, err, errCut)
	_, err = w.recovery().prepare(t.Context(), w.member, broken)
	require.NoError(t, err)
	w.requireKeys("a", "key")
	assert.Len(t, w.preserved(), 1)
}

func TestMembersThatFoundTogetherHaveOneID(t *testing.T) {
	members, err := types.NewURLsMap("m-0=http://m-0:2380,m-1=http://m-1:2380,m-2=http://m-2:2380")
	require.NoError(t, err)
	w, o := ofThree(t)
	w.member.Members, w.member.PeerURLs = members, members["m-2"]
	w.emptyStore()
	w.lose()
	o.listing = peers.Founding
	require.NoError(t, w.run())
	etcd, err := membership.NewClusterFromURLsMap(zap.NewNop(), w.member.InitialClusterToken, members)
	require.NoError(t, err)
	assert.Equal(t, hex(uint64(etcd.ID())), w.clusterManifest().Etcd, "the ID that etcd gives the cluster")
	other, o := ofThree(t)
	other.archive, other.options.Archive = w.archive, w.archive
	other.member.Name, other.member.Members, other.member.PeerURLs = "m-1", members, members["m-1"]
	other.lose()
	o.listing = peers.Founding
	require.NoError(t, other.run())
	assert.Equal(t, w.identity(), other.identity())
}

func TestUnreadableIdentityIsRefused(t *testing.T) {
	w := newFilledWorld(t)
	require.NoError(t, os.WriteFile(filepath.Join(w.member.DataDir, archive.IdentityFile), []byte("{"), 0o600))
	err := w.run()
	require.ErrorContains(t, err, archive.IdentityFile)
	require.ErrorContains(t, err, "move the file aside")
	assert.Len(t, w.generations(), 1)
}

// An adoption must end the generation before the build, because the store's cluster keeps writing and would make
// every build outdated.
func TestAdoptionEndsTheGenerationBeforeItBuilds(t *testing.T) {
	w := newFilledWorld(t)
	w.lose()
	w.options.Owner = func(token string) string { return "second/" + token }
	w.options.Adopt = ours
	builds := 0
	writes := func() error {
		builds++
		head, err := w.archive.Head(t.Context(), 1)
		require.NoError(t, err)
		return w.archive.PutStored(t.Context(), 1, head.Position, formattest.Segment(t, w.archive.Keys(), head.Start, format.Source{Session: "theirs"}).Reader())
	}
	require.NoError(t, w.runWith(func(next Action) error {
		if next == EndAdopted && builds < 3 {
			return writes()
		}
		if next == BuildData {
			head, err := w.archive.Head(t.Context(), 1)
			require.NoError(t, err)
			require.NotNil(t, head.Ending(), "nothing can be added any more")
		}
		return nil
	}))
	assert.Equal(t, 1, builds)
	assert.Len(t, w.generations(), 2)
}

// A member must report its data to its peers before the validation, because the peers may not wait for the
// validation of a large database.
func TestMemberReportsItsDataDuringValidation(t *testing.T) {
	w, o := ofThree(t)
	heard := false
	_, err := w.recovery().prepare(t.Context(), w.member, func(context.Context) error { heard = o.told; return nil })
	require.NoError(t, err)
	assert.True(t, heard)
}

// fakePeers are the two other members of a cluster.
type fakePeers struct {
	listing  PeerState
	cluster  uint64
	id       string  // cluster ID reported by the peers; empty if they report none
	of       int     // generation reported by the peers
	other    uint64  // ID of the peer that responds
	own      uint64  // ID of this member in the peers' list; 0 means an ID that is not on its volume
	inTheWay []error // errors that block a replacement, one per response
	outdated error
	silent   int    // number of responses without a quorum
	fail     string // whether the next change fails "before" or "after" it takes effect
	changes  []string
	told     bool // whether this member published its state before its first query
	holds    peers.Volume
	run      int                        // number of running peers
	reach    int64                      // highest revision of the running peers
	noQuorum bool                       // whether too many members are waiting without data
	older    int                        // number of peers that are not running etcd and have older data than the store
	voters   int                        // number of voters in the volume's cluster according to a peer
	hears    func(peers.Self) PeerState // computes the response from this member's report; nil for a constant response
	size     int64                      // size of the peers' databases
	late     bool                       // whether a peer has not uploaded the data that only its volume has
	brought  bool                       // value of Uploaded in this member's last report
}

func (o *fakePeers) Query(_ context.Context, self peers.Self) peers.Survey {
	o.brought = self.Uploaded
	if o.holds = self.Volume; o.hears != nil {
		o.listing = o.hears(self)
	}
	c := peers.Survey{Membership: o.listing, Running: o.run, Revision: o.reach, NoQuorumElsewhere: o.noQuorum, Older: o.older, Voters: o.voters, Uploaded: !o.late}
	switch {
	case o.listing == peers.Unknown, o.listing == peers.Gone:
		c.Missing = errors.New("m-0 does not answer")
		return c
	case o.silent > 0:
		o.silent--
		c.Membership, c.Missing = peers.Claimed, errors.New("m-1 does not answer")
		return c
	}
	c.Cluster, c.ID, c.Generation, c.Size = strconv.FormatUint(o.cluster, 16), o.id, o.of, o.size
	c.Own = peers.Member{ID: types.ID(cmp.Or(o.own, 7))}
	c.Own.PeerURLs = []string{"http://m-2"}
	other := peers.Member{ID: types.ID(cmp.Or(o.other, 1))}
	other.Name, other.PeerURLs = "m-0", []string{"http://m-0"}
	c.Members = []peers.Member{other, c.Own}
	if self.MemberID != 0 {
		c.Outdated = o.outdated
	}
	if len(o.inTheWay) > 0 {
		c.Blocked, o.inTheWay = o.inTheWay[0], o.inTheWay[1:]
	}
	return c
}

func (o *fakePeers) Publish(self peers.Self) { o.told, o.holds = true, self.Volume }

func (o *fakePeers) Remove(context.Context, *peers.Survey) error {
	return o.change("removed", peers.Unlisted)
}

func (o *fakePeers) Add(context.Context, *peers.Survey) error { return o.change("added", peers.Added) }

func (o *fakePeers) change(what string, to PeerState) error {
	fail := o.fail
	o.fail = ""
	if fail == "before" {
		return errors.New("no quorum")
	}
	o.listing, o.changes = to, append(o.changes, what)
	if fail == "after" {
		return errors.New("no reply")
	}
	return nil
}

// ofThree returns a member of a three-member cluster, and its peers.
func ofThree(t *testing.T) (*world, *fakePeers) {
	t.Helper()
	w := newFilledWorld(t)
	o := &fakePeers{listing: peers.Started, cluster: positionOf(t, w.member.DataDir).ClusterID}
	w.member.Alone, w.member.Name, w.member.Peers = false, "m-2", o
	return w, o
}
