package recovery

import (
	"bytes"
	"context"
	"errors"
	"os"
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
func TestAVolumeOfAMemberAloneIsNotOpenedIfTheStoreKnowsBetter(t *testing.T) {
	for name, of := range map[string]struct {
		happens func(w *world)
		says    string
	}{
		"there are later revisions": {(*world).goesOn, "the data end with revision 2, and the store has revision 3"},
		"others have written since": {func(w *world) {
			w.emptyStore()
			w.backUpAs("abc")
		}, "member abc, which they do not know, has written to the store"},
		"later revisions were reserved": {(*world).cameFurther, "the data end with revision 2, and by the store the cluster had come to revision 3"},
		"the store cannot be asked": {func(w *world) {
			w.store.Inject(memory.Fault{Err: store.ErrUnavailable})
		}, "the store does not tell whether others went on since"},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := once(t)
			of.happens(w)
			said := w.waits(o)
			assert.Contains(t, said, of.says)
			assert.Contains(t, said, "m-0 does not answer")
		})
	}
}

func TestAVolumeOfAMemberAloneIsOpenedIfTheStoreKnowsNothingElse(t *testing.T) {
	for name, happens := range map[string]func(w *world){
		"its own last write": func(w *world) { w.backUpAs(hex(stand(w.t, w.member.DataDir).MemberID)) },
		"another cluster's reservation": func(w *world) {
			require.NoError(w.t, w.archive.Reserve(w.t.Context(), archive.Reservation{Cluster: "beef", Generation: 2, Revision: 5 * margin, Created: at}))
		},
		"what a member wrote that it has let go": func(w *world) {
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
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := once(t)
			happens(w)
			w.opens()
		})
	}
}

// What they say of this member is not the same, and that they are several is.
func TestAVolumeOfAMemberAloneIsNotOpenedWhileTheOthersDisagree(t *testing.T) {
	w, o := once(t)
	o.listing, o.voters = peers.Claimed, 3
	assert.Contains(t, w.waits(o), "another one tells of 3")
}

// Nobody needs a store to know that the cluster has grown since.
func TestAVolumeOfAMemberAloneIsNotOpenedIfAnotherMemberKnowsBetter(t *testing.T) {
	w, o := once(t)
	w.options.Archive = nil
	o.voters, o.run = 3, 1
	assert.Contains(t, w.waits(o), "the data are of a time when the cluster had one voting member, and another one tells of 3")
	o.voters = 1
	w.opens()
}

// Rolled back to when it was alone, it would be a cluster by itself beside the two others.
func TestAVolumeOfAMemberAloneWaitsWithoutAStoreUntilAnotherOneAnswers(t *testing.T) {
	w, o := once(t)
	w.options.Archive = nil
	said := w.waits(o)
	assert.Contains(t, said, "initial-cluster names others: one of them has to answer first")
	assert.Contains(t, said, "m-0 does not answer")
	o.grows = true // one of those that are to join it
	w.opens()
}

// Started with force-new-cluster it votes alone from then on, and must not wait for the others at its next start.
func TestAVolumeOfAMemberThatIsForcedToGoOnAloneIsOpened(t *testing.T) {
	w, o := once(t)
	w.options.Archive = nil
	w.member.Forced = true
	w.opens()
	o.voters, o.run = 3, 1
	assert.Contains(t, w.waits(o), "another one tells of 3")
}

func TestAVolumeThatTheStoreKnowsBetterThanIsReplacedOnceTheOthersAreThere(t *testing.T) {
	w, o := once(t)
	w.goesOn()
	w.waits(o)
	o.listing, o.outdated = peers.Started, errors.New("of one voting member")
	w.requireTakenIn()
	assert.Len(t, w.asides(), 1)
}

// A member that was away when the cluster went on is older than the store, and none the worse for it: those that have all must
// not wait for it in vain. Only where such members are a quorum has somebody put back a volume.
func TestAMemberThatMissedTheLastWritesStartsAsSoonAsOneRunsThatHasThem(t *testing.T) {
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
func TestAClusterWhoseMembersWereAllPutBackComesBackFromTheStore(t *testing.T) {
	w, o := once(t)
	w.goesOn()
	o.hears = func(self peers.Self) Listing {
		if self.Holds == peers.Older || self.Holds == peers.Restores {
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
	assert.Contains(t, w.log.String(), "the volume is at revision 2; the cluster comes back with revision 3")
}

// The reason has what is the matter, and the next step.
func TestAMemberThatTooFewOthersAreLeftForSaysTheWayOut(t *testing.T) {
	for name, of := range map[string]struct {
		happens func(w *world, o *others)
		says    string
	}{
		"one of two, with a store": {func(_ *world, o *others) {
			o.inTheWay = []error{peers.ErrTooFew, peers.ErrTooFew, peers.ErrTooFew, peers.ErrTooFew}
		}, "what is lost for good comes back from the store: start all members with --restore-to=latest and the same --restore-id"},
		"one of two, without a store": {func(w *world, o *others) {
			w.options.Archive = nil
			o.inTheWay = []error{peers.ErrTooFew, peers.ErrTooFew, peers.ErrTooFew, peers.ErrTooFew}
		}, "start one member that has them once with force-new-cluster: true"},
		"two of three": {func(_ *world, o *others) { o.silent = 9 }, "m-1 does not answer; what is lost for good comes back from the store"},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := ofThree(t)
			require.NoError(t, os.RemoveAll(w.member.DataDir))
			of.happens(w, o)
			assert.Contains(t, w.waits(o), of.says)
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
	w.options.Pause = func(context.Context, int) {
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
func TestValidDataAreNotReplacedByAnotherHistory(t *testing.T) {
	w := usedWorld(t)
	w.copyVolume()
	w.put("a", "b", "c")
	w.backUp(1)
	w.rollBack()
	w.put("acknowledged elsewhere")
	err := w.run()
	require.ErrorContains(t, err, "took different ways")
	require.ErrorContains(t, err, "move the data directory away")
	keys, _ := w.keys()
	assert.Contains(t, keys, "acknowledged elsewhere")
	assert.Empty(t, w.asides())
	assert.Len(t, w.generations(), 1)
}

// The configuration names one member, and the cluster was made one of three by hand: two of them may be a quorum.
func TestAMemberOfSeveralIsNotRestoredAsAClusterOfOneUnlessSomebodySaysSo(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, os.Rename(datadirtest.Initialized(t), w.member.DataDir))
	w.joinedBy("aa", "bb")
	require.Equal(t, 3, stand(t, w.member.DataDir).Members)
	w.backUp(1)
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	err := w.run()
	require.ErrorContains(t, err, "there were 3 voting members")
	require.ErrorContains(t, err, "name all members in initial-cluster")
	assert.Len(t, w.generations(), 1)
	assert.NoDirExists(t, w.member.DataDir+restored)

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
func TestABrokenVolumeIsNotComparedAfterAKillEither(t *testing.T) {
	w := usedWorld(t)
	w.copyVolume()
	w.put("a")
	w.backUp(1)
	w.rollBack()
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
