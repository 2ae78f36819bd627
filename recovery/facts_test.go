package recovery

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/backup/relation"
	"etcd-wrapper/recovery/peers"
)

func TestVolumeStateOfFacts(t *testing.T) {
	behind := Facts{VolumeFacts: VolumeFacts{Alone: true, Volume: VolumeValid}, StoreFacts: StoreFacts{Behind: true}}
	for _, c := range []struct {
		facts Facts
		want  VolumeState
	}{
		{Facts{}, VolumeValid}, // not examined yet: an early refusal is handled as for valid data
		{Facts{VolumeFacts: VolumeFacts{Volume: VolumeEmpty}}, VolumeEmpty},
		{Facts{VolumeFacts: VolumeFacts{Volume: VolumeEmpty, Lost: true}}, VolumeLost},
		{Facts{VolumeFacts: VolumeFacts{Volume: VolumeCorrupt}, Asked: true, Uploaded: true}, VolumeCorrupt},
		{Facts{VolumeFacts: VolumeFacts{Volume: VolumeValid}, Asked: true}, VolumeValid},
		{Facts{VolumeFacts: VolumeFacts{Volume: VolumeValid}, Asked: true, Uploaded: true}, VolumeStored},
		{Facts{VolumeFacts: VolumeFacts{Volume: VolumeValid}, Uploaded: true}, VolumeValid},
		{behind, VolumeBehind},
		// A member of a multi-member cluster gets missing data from the other members.
		{Facts{StoreFacts: StoreFacts{Behind: true}, VolumeFacts: VolumeFacts{Volume: VolumeValid}}, VolumeValid},
		{Facts{PeerFacts: PeerFacts{Outdated: true}, VolumeFacts: VolumeFacts{Volume: VolumeValid}}, VolumeBehind},
		{Facts{PeerFacts: PeerFacts{Outdated: true}, Asked: true, VolumeFacts: VolumeFacts{Volume: VolumeValid}}, VolumeValid},
		{Facts{VolumeFacts: VolumeFacts{Rejected: true, Volume: VolumeValid}, Store: true}, VolumeRefused},
		{Facts{VolumeFacts: VolumeFacts{Rejected: true, Volume: VolumeValid}, Store: true, StoreFacts: StoreFacts{Answer: StoreLongAway}}, VolumeRefused},
		{Facts{VolumeFacts: VolumeFacts{Rejected: true, Volume: VolumeValid}, Store: true, StoreFacts: StoreFacts{Answer: relation.Ours}}, VolumeValid},
		{Facts{VolumeFacts: VolumeFacts{Rejected: true, Volume: VolumeValid}, Store: true, Never: true}, VolumeValid},
		{Facts{VolumeFacts: VolumeFacts{Rejected: true, Volume: VolumeValid}, Store: true, Asked: true}, VolumeValid},
		{Facts{VolumeFacts: VolumeFacts{Rejected: true, Volume: VolumeValid}}, VolumeValid},
		{Facts{VolumeFacts: VolumeFacts{Unidentified: true, Volume: VolumeValid}, Store: true}, VolumeUnnamed},
		{Facts{VolumeFacts: VolumeFacts{Unidentified: true, Volume: VolumeValid}, Store: true, StoreFacts: StoreFacts{Answer: StoreAway}}, VolumeValid},
		{Facts{VolumeFacts: VolumeFacts{Unidentified: true, Volume: VolumeValid}, Store: true, Never: true}, VolumeValid},
		{Facts{VolumeFacts: VolumeFacts{Unidentified: true, Volume: VolumeValid}}, VolumeValid},
	} {
		assert.Equal(t, c.want, c.facts.caseOf().Volume, "%+v", c.facts)
	}
}

func TestPeerStateOfFacts(t *testing.T) {
	lost := func(l PeerState, f Facts) Facts {
		f.Peers, f.Heard, f.Listing, f.Answer = true, true, l, relation.Ours
		return f
	}
	for _, c := range []struct {
		facts Facts
		want  PeerState
	}{
		{Facts{VolumeFacts: VolumeFacts{Alone: true}}, PeersNone},
		{Facts{VolumeFacts: VolumeFacts{Alone: true, Joins: true, Volume: VolumeEmpty}}, PeersItself},
		{Facts{VolumeFacts: VolumeFacts{Alone: true, Joins: true, Volume: VolumeValid}}, PeersNone},
		{Facts{}, PeersUnnamed},
		{Facts{VolumeFacts: VolumeFacts{Joins: true}}, PeersExisting},
		{Facts{VolumeFacts: VolumeFacts{Peers: true}}, PeersUnasked},
		// The store was queried after the peers.
		{Facts{VolumeFacts: VolumeFacts{Peers: true}, PeerFacts: PeerFacts{Listing: peers.Started}}, PeersUnasked},
		{Facts{VolumeFacts: VolumeFacts{Peers: true}, Heard: true, PeerFacts: PeerFacts{Listing: peers.Unknown}}, peers.Unknown},
		{Facts{VolumeFacts: VolumeFacts{Peers: true}, Heard: true, PeerFacts: PeerFacts{Listing: peers.Claimed}}, peers.Claimed},
		{Facts{VolumeFacts: VolumeFacts{Peers: true}, Heard: true, PeerFacts: PeerFacts{Listing: peers.Expected}}, peers.Expected},
		{Facts{VolumeFacts: VolumeFacts{Peers: true}, Heard: true, PeerFacts: PeerFacts{Listing: peers.Started, Free: true}}, peers.Started},
		{Facts{VolumeFacts: VolumeFacts{Peers: true}, Heard: true, PeerFacts: PeerFacts{Listing: peers.Added, Free: true}}, peers.Added},
		{Facts{VolumeFacts: VolumeFacts{Peers: true}, Heard: true, PeerFacts: PeerFacts{Listing: peers.Unlisted, Free: true}}, peers.Unlisted},
		{Facts{VolumeFacts: VolumeFacts{Peers: true}, Heard: true, PeerFacts: PeerFacts{Listing: peers.Started}}, PeersBusy},
		{Facts{VolumeFacts: VolumeFacts{Peers: true}, Heard: true, PeerFacts: PeerFacts{Listing: peers.Started}, Never: true}, peers.Started},
		{Facts{VolumeFacts: VolumeFacts{Peers: true}, Asked: true}, PeersUnasked},
		{Facts{VolumeFacts: VolumeFacts{Peers: true}, Asked: true, Heard: true, PeerFacts: PeerFacts{Listing: peers.Started}}, PeersNotAgreed},
		{Facts{VolumeFacts: VolumeFacts{Peers: true}, Asked: true, Heard: true, PeerFacts: PeerFacts{Listing: peers.Asking}}, PeersUnstored},
		{Facts{VolumeFacts: VolumeFacts{Peers: true}, Asked: true, Heard: true, PeerFacts: PeerFacts{Listing: peers.Asking, AllUploaded: true}}, peers.Asking},
		{Facts{VolumeFacts: VolumeFacts{Peers: true}, Heard: true, PeerFacts: PeerFacts{Listing: peers.Partial}}, peers.Partial},
		{Facts{VolumeFacts: VolumeFacts{Peers: true, Volume: VolumeEmpty}, Heard: true, PeerFacts: PeerFacts{Listing: peers.Founding}}, peers.Founding},
		{Facts{VolumeFacts: VolumeFacts{Peers: true, Volume: VolumeEmpty}, PeerFacts: PeerFacts{Listing: peers.Founding}, StoreFacts: StoreFacts{Answer: relation.Ours}}, peers.Founding},
		{Facts{VolumeFacts: VolumeFacts{Peers: true, Volume: VolumeEmpty}, Heard: true, PeerFacts: PeerFacts{Listing: peers.Founding}, StoreFacts: StoreFacts{Answer: StoreAway}}, peers.Founding},
		{Facts{VolumeFacts: VolumeFacts{Peers: true, Volume: VolumeCorrupt}, Heard: true, PeerFacts: PeerFacts{Listing: peers.Founding}}, peers.Gone},
		{Facts{VolumeFacts: VolumeFacts{Peers: true, Volume: VolumeEmpty}, Heard: true, PeerFacts: PeerFacts{Listing: peers.Gone}}, peers.Gone},
		{lost(peers.Gone, Facts{}), PeersUnstored},
		{lost(peers.Gone, Facts{PeerFacts: PeerFacts{AllUploaded: true}}), PeersJustLost},
		{lost(peers.Founding, Facts{PeerFacts: PeerFacts{AllUploaded: true, Settled: true}}), PeersStillLost},
	} {
		assert.Equal(t, c.want, c.facts.caseOf().Peers, "%+v", c.facts)
	}
}

func TestStoreStateAndRequestOfFacts(t *testing.T) {
	assert.Equal(t, Case{VolumeValid, PeersNone, StoreNone, AskedNothing}, Facts{VolumeFacts: VolumeFacts{Alone: true}}.caseOf())
	assert.Equal(t, Case{VolumeValid, PeersNone, StoreUnasked, AskedNever}, Facts{VolumeFacts: VolumeFacts{Alone: true}, Store: true, Never: true}.caseOf())
	assert.Equal(t, Case{VolumeValid, PeersNone, StoreAway, AskedRestore}, Facts{VolumeFacts: VolumeFacts{Alone: true}, Store: true, Never: true, Asked: true, StoreFacts: StoreFacts{Answer: StoreAway}}.caseOf())
}

func TestFactsLearnAnswersOfTheStore(t *testing.T) {
	learn := func(f Facts, told Facts) Facts { return f.Learn(Answered, told) }
	asked := Facts{Asked: true, VolumeFacts: VolumeFacts{Volume: VolumeValid}, Heard: true}
	assert.Equal(t, Facts{Asked: true, VolumeFacts: VolumeFacts{Volume: VolumeValid}, Heard: true, StoreFacts: StoreFacts{Answer: StoreInUse, Behind: true}}, learn(asked, Facts{StoreFacts: StoreFacts{Answer: StoreInUse, Behind: true}}))
	assert.False(t, learn(asked, Facts{StoreFacts: StoreFacts{Answer: StoreInUse, RestoreDone: true}}).Asked, "whatever the store answers otherwise")
	assert.True(t, learn(Facts{StoreFacts: StoreFacts{Behind: true}}, Facts{StoreFacts: StoreFacts{Answer: StoreAway}}).Behind, "an earlier answer counts until another one comes")
	assert.False(t, learn(Facts{StoreFacts: StoreFacts{Behind: true}}, Facts{StoreFacts: StoreFacts{Answer: relation.Ours}}).Behind)
	assert.False(t, learn(asked, Facts{StoreFacts: StoreFacts{Answer: relation.Ours}}).Heard, "the peers are queried again")
	assert.False(t, learn(asked, Facts{StoreFacts: StoreFacts{Answer: relation.Ours}}).Uploaded, "a valid volume is uploaded only before a requested restore")
	assert.True(t, learn(Facts{VolumeFacts: VolumeFacts{Volume: VolumeEmpty}, Asked: true}, Facts{StoreFacts: StoreFacts{Answer: relation.Ours}}).Uploaded, "the spool is uploaded before the store is queried")
	assert.True(t, learn(Facts{VolumeFacts: VolumeFacts{Volume: VolumeValid}}, Facts{StoreFacts: StoreFacts{Answer: relation.Ours}}).Uploaded)
}
