package recovery

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/recovery/peers"
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
	{AskStore, Answered, asVolume(Corrupt), Payload{Owner: Others, Kept: true, Asked: true}, "another cluster's backups"},
	{AskStore, Answered, asVolume(Empty), Payload{Owner: NotOwned, Kept: true}, "another owner"},
	{AskStore, Answered, asVolume(Valid), Payload{Owner: Unclaimed, Kept: true}, "names no cluster"},
	{AskStore, Answered, asVolume(Valid), Payload{Owner: Ours, Asked: true}, "the target is not kept"},
	{AskStore, Answered, asNever(Corrupt), kept, "but --recover=never"},
	{AskStore, Answered, asNever(Empty), ahead, "but --recover=never"},
	{AskStore, Answered, asVolume(Corrupt), nothing, "nothing is kept"},
	{AskStore, Answered, asVolume(Empty), certificate, "nothing is kept"},
	{AskPeers, PeersTold, ofNever, told(peers.Started), "but --recover=never"},
	{AskPeers, PeersTold, ofPeers(Corrupt), told(peers.Gone), "there is no store"},
	{AskPeers, PeersTold, together(Corrupt), told(peers.Asking), "comes into the store first"},
	{AskPeers, PeersTold, has(Empty), told(peers.Founding), "comes into the store first"},
	{AskPeers, PeersTold, has(Empty), Payload{Listing: peers.Founding, AllBrought: true}, "mounted late come back within 10 s"},
	{AskPeers, PeersTold, together(Valid), told(peers.Unknown), "every member has to be stopped"},
	{AskStore, Answered, gone(Empty, peers.Gone), nothing, "nothing is kept"},
	{AskStore, Answered, together(Valid), Payload{Owner: Ours, Asked: true}, "the target is not kept"},
	{AskStore, Answered, gone(Empty, peers.Founding), Payload{Owner: NotOwned, Kept: true}, "another owner"},
	{AskPeers, PeersTold, ofPeers(Empty), hindered(peers.Started), "as soon as nothing is in the way"},
	{AskPeers, PeersTold, ofPeers(Corrupt), told(peers.Claimed), "a quorum of the other members is waited for"},
	{AskPeers, PeersTold, ofPeers(Corrupt), told(peers.Unknown), "a quorum of the other members is waited for"},
	{AskPeers, PeersTold, ofPeers(Corrupt), lagging(peers.Claimed), "a quorum of the other members is waited for"},
	{AskPeers, PeersTold, ofPeers(Empty), told(peers.Claimed), "a quorum of the other members is waited for"},
	{AskPeers, PeersTold, ofPeers(Empty), told(peers.Unknown), "one of the others may have data"},
	{AskPeers, PeersTold, together(Empty), told(peers.Unknown), "every member has to be stopped"},
	{AskPeers, PeersTold, together(Valid), lagging(peers.Unknown), "every member has to be stopped"},
	{AskPeers, PeersTold, ofPeers(Valid), lagging(peers.Unknown), "perhaps not the last ones"},
	{AskPeers, PeersTold, ofPeers(Valid), lagging(peers.Claimed), "perhaps not the last ones"},
	{AskPeers, PeersTold, ofPeers(Valid), Payload{Listing: peers.Started, Outdated: true}, "as soon as nothing is in the way"},
	{AskPeers, PeersTold, ofPeers(Corrupt), told(peers.Expected), "never had any"},
	{Examine, Examined, Facts{}, Payload{Condition: Corrupt}, "the others would not"},
	{Examine, Examined, Facts{}, Payload{Alone: true, Condition: Corrupt}, "neither a store nor another member to bring them back from"},
	{Examine, Examined, Facts{}, Payload{Alone: true, Condition: Valid}, "neither a store nor another member that could know better"},
	{Examine, Examined, never, Payload{Alone: true, Condition: Valid}, "without asking the store"},
	{AskStore, Answered, unnamed, nothing, "looks for the other members"},
	{AskStore, Answered, unnamed, certificate, "was founded before"},
}

func reasonFailures(by suite) (failures []string) {
	for _, r := range reasons {
		decisions := by.steps(r.in, r.given, r.on, r.payload)
		decision := decisions[len(decisions)-1]
		if !strings.Contains(decision.Why, r.because) {
			failures = append(failures, fmt.Sprintf("%+v of %+v leads to %s, because %s", r.payload, r.given, decision.To, decision.Why))
		}
	}
	return failures
}

func TestStepsThatLookTheSameSayTheirOwnReasons(t *testing.T) {
	assert.Empty(t, reasonFailures(program))
}
