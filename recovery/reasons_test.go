package recovery

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
)

// reasons are all that tells some steps apart for people.
var reasons = []struct {
	in      State
	on      Event
	given   Facts
	payload Payload
	because string
}{
	{AskStore, Answered, asVolume(Valid), Payload{Owner: Others, Kept: true, Behind: true}, "another cluster's backups"},
	{AskStore, Answered, asVolume(Broken), Payload{Owner: Others, Kept: true, Asked: true}, "another cluster's backups"},
	{AskStore, Answered, asVolume(Empty), Payload{Owner: Doubtful, Kept: true}, "does not tell whose it was"},
	{AskStore, Answered, asVolume(Valid), Payload{Owner: Ours, Asked: true}, "the target is not kept"},
	{AskStore, Answered, asNever(Broken), kept, "but --recover=never"},
	{AskStore, Answered, asNever(Empty), ahead, "but --recover=never"},
	{AskStore, Answered, asVolume(Broken), nothing, "nothing is kept"},
	{AskStore, Answered, asVolume(Empty), certificate, "nothing is kept"},
	{AskPeers, PeersTold, ofNever, told(peers.Started), "but --recover=never"},
	{AskPeers, PeersTold, ofPeers(Broken), told(peers.Gone), "there is no store"},
	{AskPeers, PeersTold, together(Broken), told(peers.Asking), "comes into the store first"},
	{AskPeers, PeersTold, has(Empty), told(peers.Founding), "comes into the store first"},
	{AskPeers, PeersTold, together(Valid), told(peers.Unknown), "every member has to be stopped"},
	{AskStore, Answered, gone(Empty, peers.Gone), nothing, "nothing is kept"},
	{AskStore, Answered, together(Valid), Payload{Owner: Ours, Asked: true}, "the target is not kept"},
	{AskStore, Answered, gone(Empty, peers.Founding), Payload{Owner: Doubtful, Kept: true}, "does not tell whose it was"},
	{AskPeers, PeersTold, ofPeers(Empty), hindered(peers.Started), "as soon as nothing is in the way"},
	{AskPeers, PeersTold, ofPeers(Broken), told(peers.Claimed), "a quorum of the other members is waited for"},
	{AskPeers, PeersTold, ofPeers(Broken), told(peers.Unknown), "a quorum of the other members is waited for"},
	{AskPeers, PeersTold, ofPeers(Broken), lagging(peers.Claimed), "a quorum of the other members is waited for"},
	{AskPeers, PeersTold, ofPeers(Empty), told(peers.Claimed), "a quorum of the other members is waited for"},
	{AskPeers, PeersTold, ofPeers(Empty), told(peers.Unknown), "one of the others may have data"},
	{AskPeers, PeersTold, together(Empty), told(peers.Unknown), "every member has to be stopped"},
	{AskPeers, PeersTold, together(Valid), lagging(peers.Unknown), "every member has to be stopped"},
	{AskPeers, PeersTold, ofPeers(Valid), lagging(peers.Unknown), "perhaps not the last ones"},
	{AskPeers, PeersTold, ofPeers(Valid), lagging(peers.Claimed), "perhaps not the last ones"},
	{AskPeers, PeersTold, ofPeers(Valid), Payload{Listing: peers.Started, Outdated: true}, "as soon as nothing is in the way"},
	{AskPeers, PeersTold, ofPeers(Broken), told(peers.Expected), "never had any"},
	{Examine, Examined, Facts{}, Payload{Condition: Broken}, "the others would not"},
	{Examine, Examined, Facts{}, Payload{Alone: true, Condition: Broken}, "neither a store nor another member to bring them back from"},
	{Examine, Examined, Facts{}, Payload{Alone: true, Condition: Valid}, "neither a store nor another member that could know better"},
	{Examine, Examined, never, Payload{Alone: true, Condition: Valid}, "without asking the store"},
	{AskStore, Answered, unnamed, nothing, "looks for the other members"},
	{AskStore, Answered, unnamed, certificate, "was founded before"},
}

func reasonFailures(rules *rulesOf) (failures []string) {
	for _, r := range reasons {
		_, decision := rules.Step(statemachine.Core[Facts]{State: r.in, Facts: r.given}, r.on, r.payload)
		if !strings.Contains(decision.Why, r.because) {
			failures = append(failures, fmt.Sprintf("%+v of %+v leads to %s, because %s", r.payload, r.given, decision.To, decision.Why))
		}
	}
	return failures
}

func TestStepsThatLookTheSameSayTheirOwnReasons(t *testing.T) {
	assert.Empty(t, reasonFailures(NewRules(Table, Elsewhere)))
}
