package recovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/lifecycle/machine"
)

// sentence is one expectation of recovery: standing in a state and knowing Given, when On happens with its payload, the
// machine goes to To and does Do. It is written down here a second time on purpose: a change of the table must be a change
// of a sentence that a reviewer reads.
type sentence struct {
	story   string
	in      machine.Source
	given   Facts
	on      Event
	payload Payload
	to      State
	do      []Action
}

// What a member that is alone finds on its volume, and what its store answers.
var (
	alone       = Facts{Alone: true}
	never       = Facts{Alone: true, Never: true}
	asVolume    = func(c Condition) Facts { return Facts{Alone: true, Condition: c} }
	asNever     = func(c Condition) Facts { return Facts{Alone: true, Condition: c, Never: true} }
	nothing     = Payload{Owner: Nobody}
	kept        = Payload{Owner: Ours, Kept: true}
	ahead       = Payload{Owner: Ours, Kept: true, Behind: true}
	certificate = Payload{Owner: Ours, Behind: true}
	asked       = Payload{Owner: Ours, Kept: true, Asked: true}
	bringBack   = []Action{TellLoss, MeasureRoom}
)

var sentences = []sentence{
	// Resume: what an earlier run left
	{"a run first looks for one that was cut off", Resume, Facts{}, Begun, Payload{}, Resume, []Action{ReadPosition}},
	{"one that claimed nothing is begun again", Resume, Facts{}, NothingBegun, Payload{}, Examine, []Action{DropUnfinished, ValidateVolume}},
	{"one that may have claimed goes on with what it built", Resume, Facts{}, ClaimFound, Payload{}, Prove, []Action{ProveData}},
	{"one that has installed only has to remember it", Resume, Facts{}, InstallFound, Payload{}, Install, []Action{Remember}},

	// Examine: a member of several
	{"a valid member of several starts as ever", Examine, Facts{}, Examined, Payload{Condition: Valid}, Ready, nil},
	{"an empty member of several starts as ever", Examine, Facts{}, Examined, Payload{Condition: Empty}, Ready, nil},
	{"a broken member of several is refused as ever", Examine, Facts{}, Examined, Payload{Condition: Broken}, Refused, nil},
	{"a member of several cannot go back alone", Examine, Facts{}, Examined, Payload{Condition: Valid, Asked: true}, Refused, nil},
	{"nor if it is broken", Examine, Facts{}, Examined, Payload{Condition: Broken, Asked: true}, Refused, nil},

	// Examine: a member alone
	{"a valid volume is compared with the store", Examine, alone, Examined, Payload{Alone: true, Condition: Valid}, AskStore, []Action{AskTheStore}},
	{"so is an empty one", Examine, alone, Examined, Payload{Alone: true, Condition: Empty}, AskStore, []Action{AskTheStore}},
	{"so is a broken one, beside which something may wait for the store", Examine, alone, Examined, Payload{Alone: true, Condition: Broken}, AskStore, []Action{FlushSpool, AskTheStore}},
	{"--recover=never starts a valid volume without asking", Examine, never, Examined, Payload{Alone: true, Condition: Valid}, Ready, nil},
	{"--recover=never asks about an empty one, which may be a loss", Examine, never, Examined, Payload{Alone: true, Condition: Empty}, AskStore, []Action{AskTheStore}},
	{"--recover=never asks about a broken one, to say what could be had", Examine, never, Examined, Payload{Alone: true, Condition: Broken}, AskStore, []Action{FlushSpool, AskTheStore}},
	{"a restore that is asked for counts in spite of --recover=never", Examine, never, Examined, Payload{Alone: true, Condition: Valid, Asked: true}, AskStore, []Action{AskTheStore}},

	// AskStore: no answer
	{"a valid volume waits for the store, which may know better", AskStore, asVolume(Valid), StoreSilent, Payload{}, AskStore, []Action{PaceStore}},
	{"so does an empty one", AskStore, asVolume(Empty), StoreSilent, Payload{}, AskStore, []Action{PaceStore}},
	{"a broken one does not", AskStore, asVolume(Broken), StoreSilent, Payload{}, Refused, nil},
	{"--recover=never does not wait", AskStore, asNever(Empty), StoreSilent, Payload{}, Refused, nil},
	{"the store is asked again", AskStore, alone, Elapsed, Payload{}, AskStore, []Action{AskTheStore}},

	// AskStore: another cluster's
	{"another cluster's store is refused by a valid volume", AskStore, asVolume(Valid), Answered, Payload{Owner: Others, Kept: true}, Refused, nil},
	{"also if a restore is asked for", AskStore, asVolume(Valid), Answered, Payload{Owner: Others, Kept: true, Asked: true}, Refused, nil},
	{"and if its target is not kept", AskStore, asVolume(Broken), Answered, Payload{Owner: Others, Asked: true}, Refused, nil},
	{"a store that may be another cluster's is refused", AskStore, asVolume(Empty), Answered, Payload{Owner: Doubtful, Kept: true}, Refused, nil},
	{"unless it is asked for", AskStore, asVolume(Empty), Answered, Payload{Owner: Doubtful, Kept: true, Asked: true}, MakeRoom, bringBack},

	// AskStore: the column of a member alone, each cell
	{"valid, nothing kept: start", AskStore, asVolume(Valid), Answered, nothing, Ready, nil},
	{"valid, not behind: start", AskStore, asVolume(Valid), Answered, kept, Ready, nil},
	{"valid, not behind, no chain yet: start", AskStore, asVolume(Valid), Answered, Payload{Owner: Ours}, Ready, nil},
	{"valid, behind: restore", AskStore, asVolume(Valid), Answered, ahead, MakeRoom, bringBack},
	{"valid, behind, no chain: refuse", AskStore, asVolume(Valid), Answered, certificate, Refused, nil},
	{"broken, chain: restore", AskStore, asVolume(Broken), Answered, kept, MakeRoom, bringBack},
	{"broken, no chain: refuse", AskStore, asVolume(Broken), Answered, Payload{Owner: Ours}, Refused, nil},
	{"broken, nothing kept: refuse", AskStore, asVolume(Broken), Answered, nothing, Refused, nil},
	{"empty, chain: restore", AskStore, asVolume(Empty), Answered, ahead, MakeRoom, bringBack},
	{"empty, certificate without a chain: refuse, for new is said once", AskStore, asVolume(Empty), Answered, certificate, Refused, nil},
	{"empty, no certificate: new", AskStore, asVolume(Empty), Answered, nothing, Ready, nil},

	// AskStore: --recover=never
	{"never: broken data stay, and what could be had is said", AskStore, asNever(Broken), Answered, kept, Refused, nil},
	{"never: lost data stay lost, and no new cluster is begun", AskStore, asNever(Empty), Answered, ahead, Refused, nil},
	{"never: an empty volume without a certificate is a new cluster", AskStore, asNever(Empty), Answered, nothing, Ready, nil},
	{"never: the id was used, so a valid volume starts", AskStore, asNever(Valid), Answered, kept, Ready, nil},

	// AskStore: a restore that is asked for
	{"what a valid volume has comes into the store before it goes back", AskStore, asVolume(Valid), Answered, asked, Flush, []Action{TellLoss, FlushVolume}},
	{"of a broken one nothing can be read", AskStore, asVolume(Broken), Answered, asked, MakeRoom, bringBack},
	{"of an empty one neither", AskStore, asVolume(Empty), Answered, asked, MakeRoom, bringBack},
	{"a target that is not kept moves nothing", AskStore, asVolume(Valid), Answered, Payload{Owner: Ours, Asked: true}, Refused, nil},
	{"nor does one in a store that has nothing", AskStore, asVolume(Empty), Answered, Payload{Owner: Nobody, Asked: true}, Refused, nil},

	// On the way
	{"flushed or not, it is set aside later", Flush, alone, Flushed, Payload{Err: assert.AnError}, MakeRoom, []Action{MeasureRoom}},
	{"with room it is built", MakeRoom, alone, RoomEnough, Payload{}, Build, []Action{BuildData}},
	{"without room nothing is fetched", MakeRoom, alone, RoomLacking, Payload{}, Refused, nil},
	{"what is built is proved", Build, alone, Built, Payload{}, Prove, []Action{ProveData}},
	{"a store that goes away is asked again", Build, alone, StoreSilent, Payload{}, AskStore, []Action{PaceStore}},
	{"damaged backups are refused", Build, alone, Unbuildable, Payload{}, Refused, nil},
	{"the position is durable before the claim", Prove, alone, Proved, Payload{}, Claim, []Action{NotePosition, ClaimGeneration}},
	{"what is not valid is never claimed", Prove, alone, Unproved, Payload{}, Refused, []Action{ForgetClaim}},
	{"only what is claimed takes the place", Claim, alone, Claimed, Payload{}, SetAside, []Action{SetVolumeAside}},
	{"who comes second begins again", Claim, alone, ClaimLost, Payload{}, Examine, []Action{ForgetClaim, DropUnfinished, ValidateVolume}},
	{"a claim that got no answer is made again", Claim, alone, StoreSilent, Payload{}, Claim, []Action{PaceStore}},
	{"after a while", Claim, alone, Elapsed, Payload{}, Claim, []Action{ClaimGeneration}},
	{"the old data are out of the way before the new ones come", SetAside, alone, Moved, Payload{}, Install, []Action{InstallData, Remember}},
	{"restored data may be opened", Install, alone, Installed, Payload{}, Ready, nil},
	{"what the volume cannot do ends the run", working, alone, Broke, Payload{}, Refused, nil},
}

// refusals are told apart by nothing but their reasons, which people read.
var refusals = []struct {
	given   Facts
	payload Payload
	because string
}{
	{asVolume(Valid), Payload{Owner: Others, Kept: true, Behind: true}, "another cluster's backups"},
	{asVolume(Broken), Payload{Owner: Others, Kept: true, Asked: true}, "another cluster's backups"},
	{asVolume(Empty), Payload{Owner: Doubtful, Kept: true}, "does not tell whose it was"},
	{asVolume(Valid), Payload{Owner: Ours, Asked: true}, "the target is not kept"},
	{asNever(Broken), kept, "but --recover=never"},
	{asNever(Empty), ahead, "but --recover=never"},
	{asVolume(Broken), nothing, "nothing is kept"},
	{asVolume(Empty), certificate, "nothing is kept"},
}

func refusalFailures(rules *rulesOf) (failures []string) {
	for _, r := range refusals {
		_, decision := rules.Step(machine.Core[Facts]{State: AskStore, Facts: r.given}, Answered, r.payload)
		if decision.To != Refused || !strings.Contains(decision.Why, r.because) {
			failures = append(failures, fmt.Sprintf("%+v of %+v leads to %s, because %s", r.payload, r.given, decision.To, decision.Why))
		}
	}
	return failures
}

func TestEveryRefusalSaysItsOwnReason(t *testing.T) {
	assert.Empty(t, refusalFailures(NewRules(Table, Elsewhere)))
}

// failure says how rules differ from the sentence in one of its states; empty if they don't.
func (s sentence) failure(rules *rulesOf, from State) string {
	_, decision := rules.Step(machine.Core[Facts]{State: from, Facts: s.given}, s.on, s.payload)
	switch {
	case decision.Row < 0:
		return fmt.Sprintf("no row answers; the event is %sed", decision.Answer)
	case decision.To != s.to:
		return fmt.Sprintf("goes to %s, not to %s", decision.To, s.to)
	case !slices.Equal(decision.Do, s.do):
		return fmt.Sprintf("does %q, not %q", decision.Do, s.do)
	}
	return ""
}

type rulesOf = machine.Rules[Facts, Payload]

func TestEveryStepOfRecovery(t *testing.T) {
	for _, s := range sentences {
		for _, from := range s.in.Each() {
			t.Run(fmt.Sprintf("%s/%s", from, s.story), func(t *testing.T) {
				assert.Empty(t, s.failure(NewRules(Table, Elsewhere), from))
			})
		}
	}
}

func TestEveryRowIsTakenAndEveryGuardIsRefused(t *testing.T) {
	rules := NewRules(Table, Elsewhere)
	for i, row := range Table {
		taken, refused := false, row.When == machine.Always
		for _, s := range sentences {
			if !slices.Contains(s.in.Each(), row.From) || s.on != row.On {
				continue
			}
			_, decision := rules.Step(machine.Core[Facts]{State: row.From, Facts: s.given}, s.on, s.payload)
			taken, refused = taken || decision.Row == i, refused || decision.Row > i
		}
		assert.True(t, taken, "no sentence takes the row %s, %s [%s]", row.From, row.On, row.When)
		assert.True(t, refused, "no sentence is refused by the guard of %s, %s [%s]", row.From, row.On, row.When)
	}
}

// Where there is no row: at the end nothing matters any more, all else cannot come.
func TestWhatHasNoRowIsIgnoredOrRejected(t *testing.T) {
	for _, state := range states() {
		for _, event := range events() {
			if !hasRow(state, event) {
				assert.Empty(t, restFailure(NewRules(Table, Elsewhere), state, event), "%s, %s", state, event)
			}
		}
	}
}

func restFailure(rules *rulesOf, state State, event Event) string {
	want := machine.Reject
	if state == Ready {
		want = machine.Ignore
	}
	_, decision := rules.Step(machine.Core[Facts]{State: state}, event, Payload{})
	switch {
	case decision.Answer != want:
		return fmt.Sprintf("is answered with %s, not %s", decision.Answer, want)
	case decision.Why == "":
		return "gives no reason"
	}
	return ""
}

// stepFailures is everything that the tests above have against a table.
func stepFailures(table []Row, elsewhere []machine.Default) (failures []string) {
	rules := NewRules(table, elsewhere)
	failures = refusalFailures(rules)
	for _, s := range sentences {
		for _, from := range s.in.Each() {
			if failure := s.failure(rules, from); failure != "" {
				failures = append(failures, s.story+": "+failure)
			}
		}
	}
	for _, state := range states() {
		for _, event := range events() {
			if hasRow(state, event) {
				continue
			}
			if failure := restFailure(rules, state, event); failure != "" {
				failures = append(failures, fmt.Sprintf("%s, %s %s", state, event, failure))
			}
		}
	}
	return failures
}

func states() (names []State) {
	for _, state := range States {
		names = append(names, state.Name)
	}
	return names
}

func events() (names []Event) {
	for _, answer := range Elsewhere {
		names = append(names, answer.On)
	}
	return names
}

func hasRow(state State, event Event) bool {
	return slices.ContainsFunc(Table, func(row Row) bool { return row.From == state && row.On == event })
}
