package recovery

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/backup/relation"
	"etcd-wrapper/recovery/peers"
)

func TestVolumeStateOfFacts(t *testing.T) {
	behind := Facts{Alone: true, Behind: true, Volume: VolumeValid}
	for _, c := range []struct {
		facts Facts
		want  VolumeState
	}{
		{Facts{}, VolumeValid}, // before it is examined: an early refusal counts as one of valid data
		{Facts{Volume: VolumeEmpty}, VolumeEmpty},
		{Facts{Volume: VolumeEmpty, Lost: true}, VolumeLost},
		{Facts{Volume: VolumeCorrupt, Asked: true, Brought: true}, VolumeCorrupt},
		{Facts{Volume: VolumeValid, Asked: true}, VolumeValid},
		{Facts{Volume: VolumeValid, Asked: true, Brought: true}, VolumeStored},
		{Facts{Volume: VolumeValid, Brought: true}, VolumeValid},
		{behind, VolumeBehind},
		{Facts{Behind: true, Volume: VolumeValid}, VolumeValid}, // one of several gets the rest from the others
		{Facts{Outdated: true, Volume: VolumeValid}, VolumeBehind},
		{Facts{Outdated: true, Asked: true, Volume: VolumeValid}, VolumeValid},
		{Facts{Rejected: true, Store: true, Volume: VolumeValid}, VolumeRefused},
		{Facts{Rejected: true, Store: true, Volume: VolumeValid, Told: StoreLongAway}, VolumeRefused},
		{Facts{Rejected: true, Store: true, Volume: VolumeValid, Told: relation.Ours}, VolumeValid},
		{Facts{Rejected: true, Store: true, Volume: VolumeValid, Never: true}, VolumeValid},
		{Facts{Rejected: true, Store: true, Volume: VolumeValid, Asked: true}, VolumeValid},
		{Facts{Rejected: true, Volume: VolumeValid}, VolumeValid},
		{Facts{Unidentified: true, Store: true, Volume: VolumeValid}, VolumeUnnamed},
		{Facts{Unidentified: true, Store: true, Volume: VolumeValid, Told: StoreAway}, VolumeValid},
		{Facts{Unidentified: true, Store: true, Volume: VolumeValid, Never: true}, VolumeValid},
		{Facts{Unidentified: true, Volume: VolumeValid}, VolumeValid},
	} {
		assert.Equal(t, c.want, c.facts.caseOf().Volume, "%+v", c.facts)
	}
}

func TestPeerStateOfFacts(t *testing.T) {
	lost := func(l PeerState, f Facts) Facts {
		f.Peers, f.Heard, f.Listing, f.Told = true, true, l, relation.Ours
		return f
	}
	for _, c := range []struct {
		facts Facts
		want  PeerState
	}{
		{Facts{Alone: true}, PeersNone},
		{Facts{Alone: true, Joins: true, Volume: VolumeEmpty}, PeersItself},
		{Facts{Alone: true, Joins: true, Volume: VolumeValid}, PeersNone},
		{Facts{}, PeersUnnamed},
		{Facts{Joins: true}, PeersExisting},
		{Facts{Peers: true}, PeersUnasked},
		{Facts{Peers: true, Listing: peers.Started}, PeersUnasked}, // the store was asked since
		{Facts{Peers: true, Heard: true, Listing: peers.Unknown}, peers.Unknown},
		{Facts{Peers: true, Heard: true, Listing: peers.Claimed}, peers.Claimed},
		{Facts{Peers: true, Heard: true, Listing: peers.Expected}, peers.Expected},
		{Facts{Peers: true, Heard: true, Listing: peers.Started, Free: true}, peers.Started},
		{Facts{Peers: true, Heard: true, Listing: peers.Added, Free: true}, peers.Added},
		{Facts{Peers: true, Heard: true, Listing: peers.Unlisted, Free: true}, peers.Unlisted},
		{Facts{Peers: true, Heard: true, Listing: peers.Started}, PeersBusy},
		{Facts{Peers: true, Heard: true, Listing: peers.Started, Never: true}, peers.Started},
		{Facts{Peers: true, Asked: true}, PeersUnasked},
		{Facts{Peers: true, Asked: true, Heard: true, Listing: peers.Started}, PeersNotAgreed},
		{Facts{Peers: true, Asked: true, Heard: true, Listing: peers.Asking}, PeersUnstored},
		{Facts{Peers: true, Asked: true, Heard: true, Listing: peers.Asking, AllBrought: true}, peers.Asking},
		{Facts{Peers: true, Heard: true, Listing: peers.Partial}, peers.Partial},
		{Facts{Peers: true, Heard: true, Listing: peers.Founding, Volume: VolumeEmpty}, peers.Founding},
		{Facts{Peers: true, Listing: peers.Founding, Volume: VolumeEmpty, Told: relation.Ours}, peers.Founding},
		{Facts{Peers: true, Heard: true, Listing: peers.Founding, Volume: VolumeEmpty, Told: StoreAway}, peers.Founding},
		{Facts{Peers: true, Heard: true, Listing: peers.Founding, Volume: VolumeCorrupt}, peers.Gone},
		{Facts{Peers: true, Heard: true, Listing: peers.Gone, Volume: VolumeEmpty}, peers.Gone},
		{lost(peers.Gone, Facts{}), PeersUnstored},
		{lost(peers.Gone, Facts{AllBrought: true}), PeersJustLost},
		{lost(peers.Founding, Facts{AllBrought: true, Settled: true}), PeersStillLost},
	} {
		assert.Equal(t, c.want, c.facts.caseOf().Peers, "%+v", c.facts)
	}
}

func TestStoreStateAndRequestOfFacts(t *testing.T) {
	assert.Equal(t, Case{VolumeValid, PeersNone, StoreNone, AskedNothing}, Facts{Alone: true}.caseOf())
	assert.Equal(t, Case{VolumeValid, PeersNone, StoreUnasked, AskedNever}, Facts{Alone: true, Store: true, Never: true}.caseOf())
	assert.Equal(t, Case{VolumeValid, PeersNone, StoreAway, AskedRestore}, Facts{Alone: true, Store: true, Never: true, Asked: true, Told: StoreAway}.caseOf())
}

func TestFactsLearnAnswersOfTheStore(t *testing.T) {
	learn := func(f Facts, told Facts) Facts { return f.Learn(Answered, told) }
	asked := Facts{Asked: true, Volume: VolumeValid, Heard: true}
	assert.Equal(t, Facts{Asked: true, Volume: VolumeValid, Heard: true, Told: StoreInUse, Behind: true}, learn(asked, Facts{Told: StoreInUse, Behind: true}))
	assert.False(t, learn(asked, Facts{Told: StoreInUse, RestoreDone: true}).Asked, "whatever the store answers otherwise")
	assert.True(t, learn(Facts{Behind: true}, Facts{Told: StoreAway}).Behind, "an earlier answer counts until another one comes")
	assert.False(t, learn(Facts{Behind: true}, Facts{Told: relation.Ours}).Behind)
	assert.False(t, learn(asked, Facts{Told: relation.Ours}).Heard, "the peers are queried again")
	assert.False(t, learn(asked, Facts{Told: relation.Ours}).Brought, "a valid volume is uploaded only before a requested restore")
	assert.True(t, learn(Facts{Volume: VolumeEmpty, Asked: true}, Facts{Told: relation.Ours}).Brought, "the spool is uploaded before the store is queried")
	assert.True(t, learn(Facts{Volume: VolumeValid}, Facts{Told: relation.Ours}).Brought)
}
