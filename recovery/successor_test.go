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

// By its log it would be a quorum of one, while the others are one without it.
func TestSoleVoterWaitsIfOthersMayHaveContinued(t *testing.T) {
	const (
		another = "the data are from when the cluster had one voting member, but another member lists 3"
		silent  = "by its log this member is the only one with a vote, but initial-cluster names others"
	)
	for name, of := range map[string]struct {
		happens func(w *world, o *others)
		says    string
	}{
		"there are later revisions": {func(w *world, _ *others) { w.goesOn() }, "the data end with revision 2, and the store has revision 3"},
		"others have written since": {func(w *world, _ *others) {
			w.emptyStore()
			w.backUpAs("abc")
		}, "member abc, which they do not list, has written to the store"},
		"later revisions were reserved": {func(w *world, _ *others) { w.cameFurther() }, "the data end with revision 2, and by the store the cluster had come to revision 3"},
		"the store cannot be asked": {func(w *world, _ *others) {
			w.store.Inject(memory.Fault{Err: store.ErrUnavailable})
		}, "the store does not show whether others have continued"},
		"the others disagree about this one": {func(_ *world, o *others) { o.listing, o.voters = peers.Claimed, 3 }, another},
		"the cluster has grown since, which takes no store": {func(w *world, o *others) {
			w.options.Archive, o.voters, o.run = nil, 3, 1
		}, another},
		"the cluster has grown since, also if it is forced": {func(w *world, o *others) {
			w.options.Archive, w.member.Forced, o.voters, o.run = nil, true, 3, 1
		}, another},
		"nobody does, and there is no store":           {func(w *world, _ *others) { w.options.Archive = nil }, silent},
		"nobody does, and the store has nothing newer": {func(*world, *others) {}, silent},
		"nobody does, and this member wrote to the store": {func(w *world, _ *others) {
			w.backUpAs(hex(stand(w.t, w.member.DataDir).MemberID))
		}, silent},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := once(t)
			of.happens(w, o)
			said := w.waits(o)
			assert.Contains(t, said, of.says)
			assert.Equal(t, o.listing == peers.Unknown, strings.Contains(said, "m-0 does not answer"))
		})
	}
}

func TestSoleVoterStartsIfNoOthersContinued(t *testing.T) {
	for name, happens := range map[string]func(w *world, o *others){
		"its own last write": func(w *world, _ *others) { w.backUpAs(hex(stand(w.t, w.member.DataDir).MemberID)) },
		"another cluster's reservation": func(w *world, _ *others) {
			require.NoError(w.t, w.archive.Reserve(w.t.Context(), archive.Reservation{Cluster: "beef", Generation: 2, Revision: 5 * margin, Created: at}))
		},
		"what a member wrote that it has let go": func(w *world, _ *others) {
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
		"one that runs tells so":                                 func(_ *world, o *others) { o.noQuorum, o.voters, o.run = false, 1, 1 },
		"without a store, one that runs tells so":                func(w *world, o *others) { w.options.Archive, o.noQuorum, o.voters, o.run = nil, false, 1, 1 },
		"without a store, one waits that is to join it":          func(w *world, _ *others) { w.options.Archive = nil },
		"force-new-cluster, after which it votes alone for good": func(w *world, o *others) { o.noQuorum, w.member.Forced = false, true },
		"force-new-cluster without a store":                      func(w *world, o *others) { w.options.Archive, o.noQuorum, w.member.Forced = nil, false, true },
	} {
		t.Run(name, func(t *testing.T) {
			w, o := once(t)
			o.noQuorum = true
			happens(w, o)
			w.opens()
		})
	}
}

func TestOutdatedVolumeIsReplacedOnceTheOthersRun(t *testing.T) {
	w, o := once(t)
	w.goesOn()
	w.waits(o)
	o.listing, o.outdated = peers.Started, errors.New("of one voting member")
	w.requireTakenIn()
	assert.Len(t, w.asides(), 1)
}

// A member that was away when the cluster went on is older than the store, and none the worse for it: those that have all must
// not wait for it in vain. Only where such members are a quorum has somebody put back a volume.
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
			w, o := once(t)
			w.joinedBy("aa")
			w.cameFurther()
			o.run, o.older, o.reach = of.run, of.older, of.reach
			if !of.starts {
				w.waits(o)
				return
			}
			w.opens()
			assert.Equal(t, peers.Older, o.holds, "the others have heard of it before")
		})
	}
}

// All volumes were put back to the same old copies, so that each member has what the others have.
func TestClusterRolledBackEntirelyIsRestored(t *testing.T) {
	w, o := once(t)
	w.goesOn()
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
	assert.Len(t, w.asides(), 1, "nothing is deleted")
	assert.Len(t, w.generations(), 2)
	assert.Empty(t, o.changes)
	assert.Contains(t, w.log.String(), "the volume is at revision 2; the cluster is restored to revision 3")
}

// The reason has what is the matter, and the next step.
func TestMemberThatCannotRejoinNamesTheWayOut(t *testing.T) {
	tooFew := slices.Repeat([]error{peers.ErrTooFew}, 4)
	const restore, without = "stop all members and start all of them with --restore-to=latest and the same new --restore-id",
		"remove it from initial-cluster, and start the others with --restore-to=latest"
	for name, of := range map[string]struct {
		happens func(w *world, o *others)
		says    string
		not     string
	}{
		"one of two, with a store": {func(_ *world, o *others) { o.inTheWay = tooFew }, restore, "force-new-cluster"},
		"one of two, without a store": {func(w *world, o *others) {
			w.options.Archive, o.inTheWay = nil, tooFew
		}, "start one member that still has them once with force-new-cluster: true", "from the store"},
		"two of three": {func(_ *world, o *others) { o.silent = 9 }, "m-1 does not answer; if the data are lost for good, restore them from the store", without},
		// Of those that are waited for one may never come.
		"all of three":                  {func(_ *world, o *others) { o.listing = peers.Unknown }, without, restore},
		"all of three, without a store": {func(w *world, o *others) { o.listing, w.options.Archive = peers.Unknown, nil }, "m-0 does not answer", without},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := ofThree(t)
			w.lose()
			of.happens(w, o)
			said := w.waits(o)
			assert.Contains(t, said, of.says)
			assert.NotContains(t, said, of.not)
		})
	}
}

// once is a member of three whose volume is of the time when it was alone, and whose others do not answer.
func once(t *testing.T) (*world, *others) {
	t.Helper()
	w, o := ofThree(t)
	require.Equal(t, 1, stand(t, w.member.DataDir).Voters)
	o.listing = peers.Unknown
	return w, o
}

// goesOn has the store get revisions that the volume does not have.
func (w *world) goesOn() {
	w.t.Helper()
	w.copyVolume()
	w.put("a")
	w.backUp(1)
	w.rollBack()
}

// patient starts, and gives up when that has waited three times.
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

// waits holds that a run waits, with all as it was, and returns what it has said.
func (w *world) waits(o *others) string {
	w.t.Helper()
	_, err := w.patient()
	require.ErrorIs(w.t, err, context.Canceled)
	assert.Empty(w.t, w.asides())
	assert.Empty(w.t, o.changes)
	return w.log.String()
}

// opens holds that a volume is opened as it is, sooner or later.
func (w *world) opens() {
	w.t.Helper()
	start, err := w.patient()
	require.NoError(w.t, err, w.log.String())
	assert.Empty(w.t, start)
	assert.Empty(w.t, w.asides())
}

func (w *world) emptyStore() {
	w.store = memory.New()
	w.archive = archive.New(w.store, w.archive.Keys())
	w.options.Archive = w.archive
}

// backUpAs makes a full of what is on the volume, in a member's name.
func (w *world) backUpAs(member string) {
	w.t.Helper()
	w.found(at)
	w.putFullAs(member, ours, 1, at)
}

// cameFurther has the store know that the cluster had come to a revision that the volume does not have.
func (w *world) cameFurther() {
	w.t.Helper()
	require.NoError(w.t, w.archive.Reserve(w.t.Context(), archive.Reservation{Cluster: ours, Generation: 1, Revision: margin + 3, Created: at}))
}

// A volume that was put back, or copied, and written to since has the same identity.
func TestValidDataOfAnotherHistoryAreKept(t *testing.T) {
	w := usedWorld(t)
	w.copyVolume()
	w.put("a", "b", "c")
	w.backUp(1)
	w.rollBack()
	w.put("acknowledged elsewhere")
	w.requireRefused("differs from the one in", "move the data directory away")
	w.requireKeys("acknowledged elsewhere", "key")
}

// The configuration names one member, and the cluster was made one of three by hand: two of them may be a quorum.
func TestMemberOfSeveralIsNotRestoredAsASingleOne(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, os.Rename(datadirtest.Initialized(t), w.member.DataDir))
	w.joinedBy("aa", "bb")
	require.Equal(t, 3, stand(t, w.member.DataDir).Members)
	w.backUp(1)
	w.lose()
	w.requireRefused("there were 3 voting members", "name all members in initial-cluster")

	w.options.Request = &Request{ID: "the others are gone"}
	require.NoError(t, w.run())
	assert.Len(t, w.generations(), 2)
	assert.Equal(t, 1, stand(t, w.member.DataDir).Members)
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

// Whether it is broken is not looked at again: the restore that was about to be claimed is gone on with as it was begun.
func TestDamagedVolumeIsNotComparedAfterAKill(t *testing.T) {
	w := usedWorld(t)
	w.goesOn()
	w.put("damaged")
	broken := func(context.Context) error { return errors.New("a page is damaged") }
	r := w.recovery()
	r.interrupt = before(ClaimGeneration, func() error { return errCut })
	_, err := r.prepare(t.Context(), w.member, broken)
	require.ErrorIs(t, err, errCut)
	_, err = w.recovery().prepare(t.Context(), w.member, broken)
	require.NoError(t, err)
	w.requireKeys("a", "key")
	assert.Len(t, w.asides(), 1)
}
