package recovery

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/types"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/recovery/peers"
)

func TestMemberRejoinsTheOthers(t *testing.T) {
	for name, of := range map[string]struct {
		happens func(*world, *fakePeers)
		asides  int
		changes []string
	}{
		"lost":             {func(w *world, _ *fakePeers) { w.lose() }, 0, []string{"removed", "added"}},
		"broken":           {func(w *world, _ *fakePeers) { w.damage() }, 1, []string{"removed", "added"}},
		"put back":         {func(_ *world, o *fakePeers) { o.outdated = errors.New("older") }, 1, []string{"removed", "added"}},
		"removed, broken":  {func(w *world, o *fakePeers) { w.damage(); o.listing = peers.Unlisted }, 1, []string{"added"}},
		"added by someone": {func(w *world, o *fakePeers) { w.damage(); o.listing = peers.Added }, 1, nil},
		"hindered at first": {func(w *world, o *fakePeers) {
			w.damage()
			o.silent, o.inTheWay = 2, []error{errors.New("a learner"), errors.New("a learner")}
		}, 1, []string{"removed", "added"}},
		"without a store": {func(w *world, _ *fakePeers) { w.damage(); w.options.Archive = nil }, 1, []string{"removed", "added"}},
		"with a store that is away": {func(w *world, _ *fakePeers) {
			w.damage()
			w.store.Inject(memory.Fault{Err: store.ErrUnavailable})
		}, 1, []string{"removed", "added"}},
		"a change that fails":           {func(w *world, o *fakePeers) { w.damage(); o.fail = "before" }, 1, []string{"removed", "added"}},
		"a change that gets no reply":   {func(w *world, o *fakePeers) { w.damage(); o.fail = "after" }, 1, []string{"removed", "added"}},
		"an etcd that had barely begun": {func(w *world, _ *fakePeers) { barely(w) }, 1, []string{"removed", "added"}},
		"a join that had barely begun":  {func(w *world, o *fakePeers) { barely(w); o.listing = peers.Added }, 1, nil},
		"a growth that nobody had begun": {func(w *world, o *fakePeers) {
			w.lose()
			o.listing = peers.Unlisted
		}, 0, []string{"added"}},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := ofThree(t)
			of.happens(w, o)
			asked := len(w.store.Calls())
			w.requireRejoined()
			assert.Len(t, w.preserved(), of.asides)
			assert.Equal(t, of.changes, o.changes)
			assert.NoDirExists(t, filepath.Join(w.member.DataDir, "member"))
			for _, call := range w.store.Calls()[asked:] { // whose cluster it is, and no more
				names := []string{"cluster.json", "gen/000001/generation.json", "gen/000002/generation.json"} // the last one is not there
				assert.True(t, call.Op == memory.List || call.Op == memory.Get && slices.Contains(names, call.Name), "%v", call)
			}
		})
	}
}

// barely leaves the directories of an etcd that was killed right after its first start.
func barely(w *world) {
	w.t.Helper()
	w.lose()
	require.NoError(w.t, os.MkdirAll(filepath.Join(w.member.DataDir, "member", "snap"), 0o700))
}

func TestMemberOfSeveralStartsUnchanged(t *testing.T) {
	listed := func(listing Membership) func(*world, *fakePeers) {
		return func(_ *world, o *fakePeers) { o.listing = listing }
	}
	first := func(listing Membership, founded bool) func(*world, *fakePeers) {
		return func(w *world, o *fakePeers) {
			w.lose()
			if o.listing = listing; !founded {
				w.options.Archive = newWorld(t).archive
			}
		}
	}
	for name, happens := range map[string]func(*world, *fakePeers){
		"known":                        listed(peers.Started),
		"removed":                      listed(peers.Unlisted),
		"nobody answers":               listed(peers.Unknown),
		"one knows it":                 listed(peers.Claimed),
		"there is no quorum":           func(_ *world, o *fakePeers) { o.silent = 1 },
		"there is neither nor a store": func(w *world, o *fakePeers) { o.silent, w.options.Archive = 1, nil },
		"there is neither, and the store is away": func(w *world, o *fakePeers) {
			w.store.Inject(memory.Fault{Err: store.ErrUnavailable})
			o.silent = 1
		},
		"empty, and nobody has data":                     first(peers.Founding, false),
		"empty, and the others are there already":        first(peers.Expected, false),
		"empty, and they were, and have founded a store": first(peers.Expected, true),
	} {
		t.Run(name, func(t *testing.T) {
			w, o := ofThree(t)
			w.joinedBy("aa", "bb")
			happens(w, o)
			w.requireStarts()
			assert.Empty(t, o.changes)
		})
	}
}

// The member that has restored is not there yet: the others must not form the old cluster again without it.
func TestMemberOfAReplacedClusterWaitsForTheOthers(t *testing.T) {
	w, o := ofThree(t)
	require.NoError(t, archivetest.BeginGeneration(t.Context(), w.archive, archive.Generation{Number: 2, Cluster: ours, Owner: "etcd-cluster", Etcd: "beef", Parent: 1, ParentRevision: 2, Created: at}))
	o.silent, o.listing, o.cluster = 2, peers.Unlisted, 0xbeef
	w.requireRejoined()
	assert.Zero(t, o.silent)
	assert.Len(t, w.preserved(), 1)
	assert.Equal(t, []string{"added"}, o.changes)
}

// Names lead to another cluster for a moment, which has a member with this name.
func TestMembersOfAnotherClusterAreNotChanged(t *testing.T) {
	for _, listing := range []Membership{peers.Started, peers.Unlisted} {
		w, o := ofThree(t)
		w.lose()
		mine := o.cluster
		o.listing, o.cluster = listing, 0xbeef
		pauses := w.inPause(3, func() {
			assert.Empty(t, o.changes)
			o.cluster = mine
		})
		w.requireRejoined()
		assert.Equal(t, 3, *pauses)
		assert.Regexp(t, "the other members belong to cluster beef .etcd's ID., but .* to cluster "+hex(mine)+": their members are not changed", w.log.String())
	}
}

// Without answers, an empty member waits.
func TestLostMemberWaitsForItsPeers(t *testing.T) {
	w, o := ofThree(t)
	w.lose()
	o.listing = peers.Unknown
	w.wait = func(context.Context, int) { o.listing = peers.Started }
	w.requireRejoined()
	assert.Contains(t, w.log.String(), "another member may have data")
}

// Validating a large database takes longer than a quorum without data waits.
func TestMemberReportsItsDataDuringValidation(t *testing.T) {
	w, o := ofThree(t)
	heard := false
	_, err := w.recovery().prepare(t.Context(), w.member, func(context.Context) error { heard = o.told; return nil })
	require.NoError(t, err)
	assert.True(t, heard)
}

func TestNeverRefusesALostMemberOfSeveral(t *testing.T) {
	w, o := ofThree(t)
	w.options.Never = true
	w.lose()
	_, err := w.start(nil)
	require.ErrorContains(t, err, "but --recover=never; start with --recover=auto")
	o.listing = peers.Founding
	_, err = w.start(nil)
	require.ErrorContains(t, err, "the data could be restored, but --recover=never")
	assert.Empty(t, o.changes)
}

func TestDamagedDataOfAnotherClusterAreKept(t *testing.T) {
	w, o := ofThree(t)
	w.damage()
	o.cluster = 0xabc
	assert.Contains(t, w.requireWaiting(o), "but the other members to cluster abc")
}

// After a crash, a rejoin continues from the cluster's list of members.
func TestRejoinCutOffBeforeAnyActionIsCompleted(t *testing.T) {
	for at := 0; ; at++ {
		w, o := ofThree(t)
		w.damage()
		seen := 0
		start, err := w.start(func(Action) error {
			if seen++; seen > at {
				return errCut
			}
			return nil
		})
		cut := err != nil
		if cut {
			require.ErrorIs(t, err, errCut)
			start, err = w.start(nil)
			require.NoError(t, err)
		}
		assert.Equal(t, takenIn, start)
		assert.Len(t, w.preserved(), 1)
		assert.Equal(t, []string{"removed", "added"}, o.changes)
		if !cut {
			require.Greater(t, at, 9)
			return
		}
	}
}

// The flags may stay, and only the store shows whether that restore was done.
func TestUnknownStateOfARequestNamesTheWayOut(t *testing.T) {
	w, o := ofThree(t)
	w.options.Request = &Request{ID: "drop"}
	w.lose()
	w.store.Inject(memory.Fault{Err: store.ErrUnavailable})
	assert.Contains(t, w.requireWaiting(o), `if restore \"drop\" was done before, remove --restore-to`)
	w.options.Request = nil
	require.NoError(t, w.run())
	assert.Equal(t, []string{"removed", "added"}, o.changes)
}

// fakePeers are the two other members of a cluster.
type fakePeers struct {
	listing  Membership
	cluster  uint64
	id       string  // of their cluster in its store, as they tell; empty if they tell none
	of       int     // which generation
	other    uint64  // the id of the one that answers
	own      uint64  // the id that this member has there; 0 for one that its volume does not know
	inTheWay []error // of the next answers
	outdated error
	silent   int    // so many answers have no quorum
	fail     string // the change that fails once: "before" it is done, or "after"
	changes  []string
	told     bool // they have heard of this member before it has asked
	holds    peers.Volume
	run      int                         // how many of them run
	reach    int64                       // how far these are
	noQuorum bool                        // too many wait without data
	older    int                         // how many run none, and have data that the store has more than
	voters   int                         // of the volume's cluster, as one of them tells
	hears    func(peers.Self) Membership // how they answer to what they hear; nil for always the same
	size     int64                       // of their databases
	late     bool                        // one of them has not brought what only its volume has
	brought  bool                        // this member's last report on itself
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

func (o *fakePeers) change(what string, to Membership) error {
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

// ofThree returns a member of three.
func ofThree(t *testing.T) (*world, *fakePeers) {
	t.Helper()
	w := newFilledWorld(t)
	o := &fakePeers{listing: peers.Started, cluster: positionOf(t, w.member.DataDir).ClusterID}
	w.member.Alone, w.member.Name, w.member.Peers = false, "m-2", o
	return w, o
}

const takenIn = "m-0=http://m-0,m-2=http://m-2"
