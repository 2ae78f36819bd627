package recovery

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
	"etcd-wrapper/statemachine/statemachinetest"
)

// A transition is an expectation of the table: in a state with these facts, an event with this payload leads to a
// state and its actions. It repeats the table on purpose, so that a reviewer sees each change of the table as a
// changed expectation.
type transition struct {
	story   string
	from    statemachine.Source
	facts   Facts
	on      Event
	payload Facts
	to      State
	do      []Action
}

// failures describes where rules differ from the transition.
func (e transition) failures(rules *statemachine.Rules[Facts, Facts]) (failures []string) {
	for from, d := range e.steps(rules) {
		switch {
		case d.Row < 0:
			failures = append(failures, fmt.Sprintf("%s/%s: no row answers; the event is %sed", from, e.story, d.Answer))
		case d.To != e.to || !slices.Equal(d.Do, e.do):
			failures = append(failures, fmt.Sprintf("%s/%s: leads to %s and does %q, not to %s and %q", from, e.story, d.To, d.Do, e.to, e.do))
		}
	}
	return failures
}

func (e transition) steps(rules *statemachine.Rules[Facts, Facts]) map[State]statemachine.Decision {
	all := map[State]statemachine.Decision{}
	for _, from := range e.from.States() {
		_, all[from] = rules.Step(statemachine.Core[Facts]{State: from, Facts: e.facts}, e.on, e.payload)
	}
	return all
}

var program = statemachine.NewRules[Facts](Table, Elsewhere, Ready)

func TestTransitions(t *testing.T) {
	for _, e := range transitions {
		t.Run(e.story, func(t *testing.T) { assert.Empty(t, e.failures(program)) })
	}
}

func TestEveryRowAndGuardHasATransition(t *testing.T) {
	taken, refused := map[int]bool{}, map[int]bool{}
	for _, e := range transitions {
		for _, d := range e.steps(program) {
			row := Table[d.Row]
			taken[d.Row] = true
			for i := d.Row - 1; i >= 0 && Table[i].From == row.From && Table[i].On == row.On; i-- {
				refused[i] = true
			}
		}
	}
	for i, row := range Table {
		assert.True(t, taken[i], "no transition takes the row %s, %s [%s]", row.From, row.On, row.When)
		assert.True(t, refused[i] || row.When == statemachine.Always, "no transition is refused by the guard of %s, %s [%s]", row.From, row.On, row.When)
	}
}

func TestEventsWithoutARowAreIgnoredAtTheEndAndRejectedElsewhere(t *testing.T) {
	defaults.AssertDefaults(t)
}

var defaults = statemachinetest.Suite[Facts, Facts]{Machine: machine, Final: Ready, Rest: func(state State, _ Event) statemachine.Answer {
	if state == Ready {
		return statemachine.Ignore
	}
	return statemachine.Reject
}}

// machine describes the table for the tests shared by all state machines.
var machine = statemachinetest.Machine{Table: Table, Elsewhere: Elsewhere, States: States, Guards: slices.Collect(maps.Keys(conditions))}

func TestTableIsConsistent(t *testing.T) {
	statemachinetest.AssertConsistent(t, machine, written)
	actions := newRun(t.Context(), &environment{}, Member{}, nil, false).actions
	machine.AssertNames(t, append(slices.Collect(maps.Keys(actions)), DecideNow, PaceStore, PacePeers)...)
}

func TestEveryStateIsReachedAndLeadsToAnEnd(t *testing.T) {
	assert.ElementsMatch(t, machine.StateNames(), machine.Reachable(Resume))
	for _, state := range machine.StateNames() {
		if state != Ready && state != Refused {
			assert.Contains(t, machine.Reachable(state), Ready, "from %s", state)
		} else {
			assert.Equal(t, []State{state}, machine.Reachable(state))
		}
	}
}

// A waiting state has its timer set; any other starts with work.
func TestEveryStateHasWorkOrATimer(t *testing.T) {
	for _, row := range Table {
		if row.To != Ready && row.To != Refused {
			assert.NotEmpty(t, row.Do, "%s would wait for nothing after %q in %s", row.To, row.On, row.From)
		}
		if slices.Contains(row.Do, PaceStore) {
			assert.True(t, machine.Has(row.To, Elapsed), "%s sets a timer that %s does not answer", row.On, row.To)
		}
	}
}

func TestEveryRefusalNamesTheWayOut(t *testing.T) {
	explained := map[Event]bool{ClaimFound: true, Stuck: true} // their rows or causes explain the next step
	refused := map[Event]bool{}
	for _, row := range Table {
		if row.To == Refused && row.On != Broke && row.From != Decide {
			refused[row.On] = true
			assert.NotEqual(t, explained[row.On], waysOut[row.On] != "", "%s, %s [%s]", row.From, row.On, row.When)
		}
	}
	for event := range waysOut {
		assert.True(t, refused[event], "nothing is refused for %v", event)
	}
	for _, r := range rules {
		if r.Result == Refuse || r.Result == Decline {
			assert.True(t, r.WayOut != "" || slices.Contains(r.volumes, VolumeCorrupt), r.Why) // the validation error has it
		}
	}
}

func TestCommittedFilesShowTheTable(t *testing.T) {
	machine.AssertCommitted(t, Diagram, program.Matrix(States), "../docs/recovery.dot", "../testdata/recovery.golden", "recovery.svg")
}

var (
	alone      = Facts{Alone: true, Store: true}
	several    = Facts{Peers: true, Store: true}
	asking     = Facts{Peers: true, Store: true, Asked: true}
	answered   = Facts{Peers: true, Store: true, Heard: true}
	occupied   = Facts{Peers: true, Remains: true, Listing: peers.Started}
	listed     = Facts{Peers: true, Listing: peers.Started}
	removed    = Facts{Peers: true, Listing: peers.Unlisted}
	requested  = Facts{Asked: true}
	none       Facts
	queryPeers = []Action{AskThePeers}
	queryStore = []Action{FlushSpool, AskTheStore}
	pausePeers = []Action{PacePeers}
	pauseStore = []Action{PaceStore}
	restoreAll = []Action{FindEnd, TellLoss, MeasureRoom}
	decideNow  = []Action{DecideNow}
)

var transitions = []transition{
	{"a run first checks for a claim", Resume, alone, Begun, none, Resume, []Action{ReadPosition}},
	{"without a claim, the data directory is validated", Resume, alone, NothingBegun, none, Examine, []Action{DropUnfinished, ValidateVolume}},
	{"a claim needs the store", Resume, Facts{Alone: true}, ClaimFound, none, Refused, nil},
	{"a claim is completed", Resume, alone, ClaimFound, none, Prove, []Action{ProveData}},
	{"an installed restore is recorded", Resume, alone, InstallFound, none, Install, []Action{Remember}},
	{"a validated volume is decided on", Examine, alone, Examined, none, Decide, decideNow},
	{"answers of the peers are decided on", AskPeers, alone, PeersTold, none, Decide, decideNow},
	{"answers of the store are decided on", statemachine.Group{AskStore, Flush, MakeRoom, Build}, alone, Answered, none, Decide, decideNow},

	{"valid data are opened", Decide, alone, StartEtcd, none, Ready, nil},
	{"a cluster is founded", Decide, alone, FoundCluster, none, Ready, nil},
	{"the peers are queried", Decide, alone, ConsultPeers, none, AskPeers, queryPeers},
	{"the store is queried once the spool is uploaded", Decide, alone, ConsultStore, none, AskStore, queryStore},
	{"peers that answered are waited for", Decide, answered, Wait, none, AskPeers, pausePeers},
	{"otherwise the store is waited for", Decide, several, Wait, none, AskStore, pauseStore},
	{"a volume is uploaded before it is replaced", Decide, alone, FlushFirst, none, Flush, []Action{TellLoss, FlushVolume}},
	{"a single member is restored", Decide, alone, RestoreData, none, MakeRoom, []Action{TellLoss, MeasureRoom}},
	{"several members are restored from what all have uploaded", Decide, several, RestoreData, none, MakeRoom, restoreAll},
	{"data are preserved before the member rejoins", Decide, occupied, Rejoin, none, GiveWay, []Action{TellReturn, SetVolumeAside}},
	{"the old identity is removed", Decide, listed, Rejoin, none, Leave, []Action{TellReturn, RemoveMember}},
	{"a removed member is added", Decide, removed, Rejoin, none, Enter, []Action{TellReturn, AddMember}},
	{"an added member joins", Decide, alone, Rejoin, none, Ready, []Action{AdoptCluster}},
	{"a store is adopted", Decide, alone, AdoptStore, none, Adopt, []Action{TakeStore}},
	{"data are refused", Decide, alone, Refuse, none, Refused, nil},
	{"a request is declined", Decide, alone, Decline, none, Refused, nil},

	{"the peers are queried again", AskPeers, alone, Elapsed, none, AskPeers, queryPeers},
	{"the store is queried again", AskStore, alone, Elapsed, none, AskStore, queryStore},
	{"the peers are queried once the data are moved", GiveWay, alone, Moved, none, AskPeers, queryPeers},
	{"the peers are queried once the members have changed", statemachine.Group{Leave, Enter}, alone, Changed, none, AskPeers, queryPeers},
	{"a change of members that may have failed is followed by a pause", statemachine.Group{Leave, Enter}, alone, PeersSilent, none, AskPeers, pausePeers},
	{"adopted data are opened", Adopt, alone, Taken, none, Ready, nil},
	{"an unreachable store is queried after a pause", statemachine.Group{Adopt, MakeRoom, Build}, alone, StoreSilent, none, AskStore, pauseStore},

	{"several: the peers are queried once the volume is uploaded", Flush, several, Flushed, none, AskPeers, queryPeers},
	{"a failed upload does not stop the restore", Flush, alone, Flushed, Facts{Err: assert.AnError}, MakeRoom, restoreAll},
	{"with room, the data are built", MakeRoom, alone, RoomEnough, none, Build, []Action{EndAdopted, BuildData}},
	{"without room, nothing is built", statemachine.Group{MakeRoom, Build}, alone, RoomLacking, none, Refused, nil},
	{"built data are validated", Build, alone, Built, none, Prove, []Action{ProveData}},
	{"a missing object is searched again", weighing, alone, Missing, none, AskStore, pauseStore},
	{"a spool that cannot be uploaded stops a restore", AskStore, alone, Stuck, none, Refused, nil},
	{"damaged backups are refused", Build, alone, Unbuildable, none, Refused, nil},
	{"a cluster of several is not restored as one of one", Build, alone, Grown, none, Refused, []Action{DropUnfinished}},
	{"the claim is recorded before it is made", Prove, alone, Proved, none, Claim, []Action{NotePosition, ClaimGeneration}},
	{"invalid data are never claimed", Prove, alone, Unproved, none, Refused, []Action{ForgetClaim}},
	{"another history does not replace valid data", Prove, alone, Diverged, none, Refused, []Action{ForgetClaim, DropUnfinished}},
	{"claimed data replace the volume's", Claim, alone, Claimed, none, SetAside, []Action{SetVolumeAside}},
	{"a lost claim starts again", Claim, alone, ClaimLost, none, Examine, []Action{ForgetClaim, DropUnfinished, ValidateVolume}},
	{"a claim without an answer is repeated", Claim, alone, StoreSilent, none, Claim, pauseStore},
	{"a claim waits for missing members", Claim, alone, PeersSilent, none, Claim, pausePeers},
	{"a claim is made after a pause", Claim, alone, Elapsed, none, Claim, []Action{ClaimGeneration}},
	{"restored data are installed once the place is free", SetAside, alone, Moved, none, Install, []Action{InstallData, Remember}},
	{"restored data are opened", Install, asking, Installed, none, Ready, nil},
	{"another request is carried out first", Install, alone, Installed, requested, Examine, []Action{ValidateVolume}},
	{"a failure ends the run", working, alone, Broke, none, Refused, nil},
}
