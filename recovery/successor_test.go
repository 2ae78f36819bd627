package recovery

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
	"etcd-wrapper/recovery/peers"
)

// By its log the member would be a quorum, while the others are one without it.
func TestSoleVoterWaitsIfOthersMayHaveContinued(t *testing.T) {
	const (
		another = "the data are from when the cluster had one voting member, but another member lists 3"
		silent  = "by its log this member is the only one with a vote, but initial-cluster names others"
	)
	for name, of := range map[string]struct {
		happens func(w *world, o *fakePeers)
		says    string
	}{
		"there are later revisions": {func(w *world, _ *fakePeers) { w.advanceStore() }, "the data end with revision 2, and the store has revision 3"},
		"others have written since": {func(w *world, _ *fakePeers) {
			w.emptyStore()
			w.backUpAs("abc")
		}, "member abc, which they do not list, has written to the store"},
		"later revisions were reserved": {func(w *world, _ *fakePeers) { w.reserveMore() }, "the data end with revision 2, and by the store the cluster had come to revision 3"},
		"the store cannot be asked": {func(w *world, _ *fakePeers) {
			w.store.Inject(memory.Fault{Err: store.ErrUnavailable})
		}, "the store does not show whether others have continued"},
		"the others disagree about this one": {func(_ *world, o *fakePeers) { o.listing, o.voters = peers.Claimed, 3 }, another},
		"the cluster has grown since, which takes no store": {func(w *world, o *fakePeers) {
			w.options.Archive, o.voters, o.run = nil, 3, 1
		}, another},
		"the cluster has grown since, also if it is forced": {func(w *world, o *fakePeers) {
			w.options.Archive, w.member.Forced, o.voters, o.run = nil, true, 3, 1
		}, another},
		"nobody does, and there is no store":           {func(w *world, _ *fakePeers) { w.options.Archive = nil }, silent},
		"nobody does, and the store has nothing newer": {func(*world, *fakePeers) {}, silent},
		"nobody does, and this member wrote to the store": {func(w *world, _ *fakePeers) {
			w.backUpAs(hex(positionOf(w.t, w.member.DataDir).MemberID))
		}, silent},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := soleVoter(t)
			of.happens(w, o)
			said := w.requireWaiting(o)
			assert.Contains(t, said, of.says)
			assert.Equal(t, o.listing == peers.Unknown, strings.Contains(said, "m-0 does not answer"))
		})
	}
}

func TestSoleVoterStartsIfNoOthersContinued(t *testing.T) {
	for name, happens := range map[string]func(w *world, o *fakePeers){
		"its own last write": func(w *world, _ *fakePeers) { w.backUpAs(hex(positionOf(w.t, w.member.DataDir).MemberID)) },
		"another cluster's reservation": func(w *world, _ *fakePeers) {
			require.NoError(w.t, w.archive.Reserve(w.t.Context(), archive.Reservation{Cluster: "beef", Generation: 2, Revision: 5 * margin, Created: at}))
		},
		"what a member wrote that it has let go": func(w *world, _ *fakePeers) {
			server, err := datadirtest.Start(w.member.DataDir)
			require.NoError(w.t, err)
			client := v3client.New(server.Server)
			added, err := client.MemberAddAsLearner(w.t.Context(), []string{"http://127.0.0.1:2"})
			require.NoError(w.t, err)
			_, err = client.MemberRemove(w.t.Context(), added.Member.ID)
			require.NoError(w.t, err)
			server.Close()
			w.emptyStore()
			w.backUpAs(hex(added.Member.ID))
		},
		"one that runs tells so":                                 func(_ *world, o *fakePeers) { o.noQuorum, o.voters, o.run = false, 1, 1 },
		"without a store, one that runs tells so":                func(w *world, o *fakePeers) { w.options.Archive, o.noQuorum, o.voters, o.run = nil, false, 1, 1 },
		"without a store, one waits that is to join it":          func(w *world, _ *fakePeers) { w.options.Archive = nil },
		"force-new-cluster, after which it votes alone for good": func(w *world, o *fakePeers) { o.noQuorum, w.member.Forced = false, true },
		"force-new-cluster without a store":                      func(w *world, o *fakePeers) { w.options.Archive, o.noQuorum, w.member.Forced = nil, false, true },
	} {
		t.Run(name, func(t *testing.T) {
			w, o := soleVoter(t)
			o.noQuorum = true
			happens(w, o)
			w.requireOpened()
		})
	}
}

func TestOutdatedVolumeIsReplacedOnceTheOthersRun(t *testing.T) {
	w, o := soleVoter(t)
	w.advanceStore()
	w.requireWaiting(o)
	o.listing, o.outdated = peers.Started, errors.New("of one voting member")
	w.requireRejoined()
	assert.Len(t, w.preserved(), 1)
}

// A member that was down when the cluster continued is behind the store, which is harmless: it must not block those that
// have everything. Only if such members are a quorum were volumes rolled back.
func TestMemberBehindStartsOnceOneRunsThatIsNot(t *testing.T) {
	for name, of := range map[string]struct {
		run, older int
		reach      int64
		starts     bool
	}{
		"nobody runs":                         {0, 0, 0, false},
		"one runs that has them":              {1, 0, 3, true},
		"one runs that lacks some":            {1, 0, 2, false},
		"one runs that does not say":          {1, 0, 0, false},
		"one runs, and another is older, too": {1, 1, 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := soleVoter(t)
			w.joinedBy("aa")
			w.reserveMore()
			o.run, o.older, o.reach = of.run, of.older, of.reach
			if !of.starts {
				w.requireWaiting(o)
				return
			}
			w.requireOpened()
			assert.Equal(t, peers.Older, o.holds, "the others have heard of it before")
		})
	}
}

// All volumes were rolled back to the same revision, so no member has more than the others.
func TestClusterRolledBackEntirelyIsRestored(t *testing.T) {
	w, o := soleVoter(t)
	w.advanceStore()
	o.hears = func(self peers.Self) Membership {
		if self.Volume == peers.Older || self.Volume == peers.Restores {
			return peers.Gone
		}
		return peers.Unknown
	}
	start, err := w.start(nil)
	require.NoError(t, err)
	assert.Empty(t, start, "it is the cluster")
	w.requireKeys("a", "key")
	assert.Len(t, w.preserved(), 1, "nothing is deleted")
	assert.Len(t, w.generations(), 2)
	assert.Empty(t, o.changes)
	assert.Contains(t, w.log.String(), "the volume is at revision 2; the cluster is restored to revision 3")
}

// The reason names the cause and the next step.
func TestMemberThatCannotRejoinNamesTheWayOut(t *testing.T) {
	tooFew := slices.Repeat([]error{peers.ErrTooFew}, 4)
	const restore, without = "stop all members and start all of them with --restore-to=latest and the same new --restore-id",
		"remove it from initial-cluster, and start the others with --restore-to=latest"
	for name, of := range map[string]struct {
		happens func(w *world, o *fakePeers)
		says    string
		not     string
	}{
		"one of two, with a store": {func(_ *world, o *fakePeers) { o.inTheWay = tooFew }, restore, "force-new-cluster"},
		"one of two, without a store": {func(w *world, o *fakePeers) {
			w.options.Archive, o.inTheWay = nil, tooFew
		}, "start one member that still has them once with force-new-cluster: true", "from the store"},
		"two of three": {func(_ *world, o *fakePeers) { o.silent = 9 }, "m-1 does not answer; if the data are lost for good, restore them from the store", without},
		// One of the missing members may never return.
		"all of three":                  {func(_ *world, o *fakePeers) { o.listing = peers.Unknown }, without, restore},
		"all of three, without a store": {func(w *world, o *fakePeers) { o.listing, w.options.Archive = peers.Unknown, nil }, "m-0 does not answer", without},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := ofThree(t)
			w.lose()
			of.happens(w, o)
			said := w.requireWaiting(o)
			assert.Contains(t, said, of.says)
			assert.NotContains(t, said, of.not)
		})
	}
}

// soleVoter returns a member of three with data from when it was alone, whose peers do not answer.
func soleVoter(t *testing.T) (*world, *fakePeers) {
	t.Helper()
	w, o := ofThree(t)
	require.Equal(t, 1, positionOf(t, w.member.DataDir).Voters)
	o.listing = peers.Unknown
	return w, o
}

// advanceStore stores revisions that the volume lacks.
func (w *world) advanceStore() {
	w.t.Helper()
	w.copyVolume()
	w.put("a")
	w.backUp(1)
	w.rollBack()
}

// patient runs until the third pause.
func (w *world) patient() (string, error) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	pauses := 0
	w.wait = func(context.Context, int) {
		if pauses++; pauses == 3 {
			cancel()
		}
	}
	return w.startWithin(ctx, nil)
}

// requireWaiting requires that a run waits and changes nothing, and returns its log.
func (w *world) requireWaiting(o *fakePeers) string {
	w.t.Helper()
	_, err := w.patient()
	require.ErrorIs(w.t, err, context.Canceled)
	assert.Empty(w.t, w.preserved())
	assert.Empty(w.t, o.changes)
	return w.log.String()
}

// requireOpened requires that the volume is opened unchanged.
func (w *world) requireOpened() {
	w.t.Helper()
	start, err := w.patient()
	require.NoError(w.t, err, w.log.String())
	assert.Empty(w.t, start)
	assert.Empty(w.t, w.preserved())
}

func (w *world) emptyStore() {
	w.store = memory.New()
	w.archive = archive.New(w.store, w.archive.Keys())
	w.options.Archive = w.archive
}

// backUpAs stores a full snapshot of the volume, as another member.
func (w *world) backUpAs(member string) {
	w.t.Helper()
	w.found(at)
	w.uploadFullAs(member, ours, 1, at)
}

// reserveMore stores a reservation of a revision that the volume lacks.
func (w *world) reserveMore() {
	w.t.Helper()
	require.NoError(w.t, w.archive.Reserve(w.t.Context(), archive.Reservation{Cluster: ours, Generation: 1, Revision: margin + 3, Created: at}))
}

// A volume that was rolled back or copied, and written to since, has the same identity.
func TestValidDataOfAnotherHistoryAreKept(t *testing.T) {
	w := newFilledWorld(t)
	w.copyVolume()
	w.put("a", "b", "c")
	w.backUp(1)
	w.rollBack()
	w.put("acknowledged elsewhere")
	w.requireRefused("differs from the one in", "move the data directory away")
	w.requireKeys("acknowledged elsewhere", "key")
}

// The configuration names one member, but the cluster has three, and two of them may be a quorum.
func TestMemberOfSeveralIsNotRestoredAsASingleOne(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, os.Rename(datadirtest.Initialized(t), w.member.DataDir))
	w.joinedBy("aa", "bb")
	require.Equal(t, 3, positionOf(t, w.member.DataDir).Members)
	w.backUp(1)
	w.lose()
	w.requireRefused("there were 3 voting members", "name all members in initial-cluster")

	w.options.Request = &Request{ID: "the others are gone"}
	require.NoError(t, w.run())
	assert.Len(t, w.generations(), 2)
	assert.Equal(t, 1, positionOf(t, w.member.DataDir).Members)
}

// joinedBy adds members to the closed database.
func (w *world) joinedBy(ids ...string) {
	w.t.Helper()
	db, err := bolt.Open(w.database(), 0o600, nil)
	require.NoError(w.t, err)
	defer db.Close()
	require.NoError(w.t, db.Update(func(tx *bolt.Tx) error {
		members := tx.Bucket(schema.Members.Name())
		_, first := members.Cursor().First()
		value := bytes.Clone(first)
		for _, id := range ids {
			if err := members.Put([]byte(strings.Repeat("0", 16-len(id))+id), value); err != nil {
				return err
			}
		}
		return nil
	}))
}

// A damaged volume is replaced without a comparison, also by the run after a crash.
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
