package writer

import (
	_ "embed" // for the picture

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/statemachine"
)

type (
	// State is what a member does about the cluster's backups.
	State = statemachine.State
	// Event is what etcd, the store or a job reports.
	Event = statemachine.Event
	// Guard is the name of a condition over what is known.
	Guard = statemachine.Guard
	// Action is the name of something that the writer does.
	Action = statemachine.Action
	// Row is one transition.
	Row = statemachine.Row
)

// The states. unknown is the initial one, drained the final one.
const (
	unknown   State = "Unknown"
	watching  State = "Watching"
	aligning  State = "Aligning"
	writing   State = "Writing"
	opening   State = "Opening"
	beginning State = "Beginning"
	foreign   State = "Foreign"
	drained   State = "Drained"
	ended     State = "Ended"
)

// States describes every state, in the order of a run.
var States = []statemachine.StateInfo{
	{Name: unknown, Meaning: "nothing is known of the store", Bound: statemachine.NoBound, Deadline: "2m for a question, at most 30s between questions"},
	{Name: watching, Meaning: "another member writes; store what waits on the volume, and look whether the backups grow", Bound: statemachine.NoBound, Deadline: "a look each 10 intervals, 10s at least"},
	{Name: aligning, Meaning: "find out where the backups end before anything is stored; capture meanwhile", Bound: statemachine.NoBound, Deadline: "2m for a question, at most 30s between questions"},
	{Name: writing, Meaning: "capture what changes, store it, merge what is small, make full snapshots by schedule", Bound: statemachine.NoBound, Deadline: "none: until another member leads, or the chain cannot go on"},
	{Name: opening, Meaning: "there is no chain to go on with, so a full snapshot is due", Bound: statemachine.NoBound, Deadline: "until nothing else holds the database"},
	{Name: beginning, Meaning: "store the full snapshot that begins a chain; capture what comes behind it", Bound: statemachine.NoBound, Deadline: "none: a large database takes long"},
	{Name: foreign, Meaning: "nothing may be written to this store; one sentence says why", Bound: statemachine.NoBound, Deadline: "a look each minute"},
	{Name: ended, Meaning: "the generation has ended, and another one goes on: etcd is closed", Bound: statemachine.AtEnd, Deadline: "final"},
	{Name: drained, Meaning: "a closed etcd has nothing more to bring", Bound: statemachine.AtEnd, Deadline: "final"},
}

// The events.
const (
	tick    Event = "tick"    // a tenth of a second is over, or a job has ended
	elected Event = "elected" // this member leads the cluster
	deposed Event = "deposed" // it does so no longer
	stalled Event = "stalled" // the leader's backups have not grown, though there is something to add

	nothingBegun Event = "nothing begun" // nobody has written to the store yet
	chainFound   Event = "chain found"   // the backups end there, and this member's data go on from it
	noChain      Event = "no chain"      // the store is this cluster's, and has no full snapshot
	endDamaged   Event = "end damaged"   // what lies at the end of the backups is damaged
	refused      Event = "refused"       // the store is another cluster's, or its backups are not of these data
	storeAhead   Event = "store ahead"   // the store has revisions that this member has not
	emptied      Event = "emptied"       // what the store had is gone
	surpassed    Event = "surpassed"     // the store has all that a closed etcd can bring
	succeeded    Event = "succeeded"     // the generation has an end, or a successor

	expired    Event = "expired"     // too long ago that anybody saw where the backups end
	storeLost  Event = "store lost"  // the store does not have what it had
	collided   Event = "collided"    // another member's segment has the position
	spoolLost  Event = "spool lost"  // what waited on the volume is gone
	broken     Event = "broken"      // compaction has passed the end of the chain
	named      Event = "named"       // the full snapshot that begins a chain has its revision
	chainBegun Event = "chain begun" // it is in the store
	overtaken  Event = "overtaken"   // another member goes on with the backups instead
	fullLost   Event = "full lost"   // it could not be made, or not be kept until it was stored
)

// The guards, beside statemachine.Always.
const (
	ours   Guard = "ours to write"
	guest  Guard = "in the leader's place"
	closed Guard = "closed etcd, segments only"
)

var conditions = map[Guard]func(memberState) bool{
	ours:   memberState.isWriter,
	guest:  func(k memberState) bool { return !k.leads && k.guest },
	closed: func(k memberState) bool { return k.closed },
}

// The actions.
const (
	look          Action = "look"           // where the backups end, if it is time
	captureRows   Action = "capture"        // what has changed, into the spool
	storeSegment  Action = "store segment"  // the oldest that waits
	makeFull      Action = "make full"      // that is due
	storeFull     Action = "store full"     // that was copied
	mergeSegments Action = "merge segments" //
	keepReserved  Action = "keep reserved"  // revisions for a restore to go on above
	lookSoon      Action = "look soon"      //
	countSilence  Action = "count silence"  // of the leader, who should have begun
	takeOver      Action = "take over"      // from the leader
	goOn          Action = "go on"          // from the end that was found
	clearChain    Action = "clear chain"    // what goes on from a full snapshot that is not there
	openChain     Action = "open chain"     // with a full snapshot
	abandonEnd    Action = "abandon end"    // that is damaged: a chain begins behind it
	leaveChain    Action = "leave chain"    // that was about to begin, to the other member
	dropSpool     Action = "drop spool"     // and capture anew
	forgetStore   Action = "forget store"   // what was known of it
	vetStore      Action = "vet store"      // whose it is is looked at, too
	refuse        Action = "refuse"         // say why nothing may be written
	keepWatching  Action = "keep watching"  // quietly
	await         Action = "await"          // what this member has not applied
	finish        Action = "finish"         // tell how bringing ended
	findSuccessor Action = "find successor" // of the generation, if it is time
	checkStored   Action = "check stored"   // segments are still there, if it is time
	endHere       Action = "end here"       // give up what is under way, and have etcd closed
)

// known is what the guards ask about.
type memberState struct {
	leads   bool // this member leads the cluster
	guest   bool // it has taken over, since the leader does not write
	creates bool // the store refuses to overwrite, so that two may write at once
	closed  bool // etcd is closed, and another member wrote: bring segments, begin nothing
}

// ours tells whether this member extends the chain.
func (k memberState) isWriter() bool { return k.leads || k.guest && k.creates }

// Holds implements statemachine.Facts.
func (k memberState) Holds(guard Guard) bool {
	if guard == statemachine.Always {
		return true
	}
	condition, means := conditions[guard]
	return means && condition(k)
}

// payload is what an event tells beside its name.
type payload struct {
	head    archive.Head
	creates bool // what a look says of the store
	grew    bool // the chain has grown by another member's work
	err     error
}

// Learn implements statemachine.Facts.
func (k memberState) Learn(event Event, payload payload) memberState {
	if event == chainFound || event == noChain || event == endDamaged {
		k.creates, k.guest = payload.creates, k.guest && !payload.grew
	}
	return k
}

// Conclude implements statemachine.Facts.
func (k memberState) Conclude(_ State, event Event, _ State, _ payload) memberState {
	if event == elected || event == deposed {
		k.leads, k.guest = event == elected, false
	}
	k.guest = k.guest || event == stalled
	return k
}

// entry is a row as it is written here: it may start in a group.
type entry statemachine.Entry

const always = statemachine.Always

var (
	// looking is where the store may be looked at. Where a chain is about to begin, there is nothing to be seen of it.
	looking = statemachine.Group{unknown, watching, aligning, opening, writing, foreign}
	// settled is where the end of the backups is known.
	endKnown = statemachine.Group{watching, opening, writing}
	// serving is wherever the generation may still be this cluster's.
	serving = statemachine.Group{unknown, watching, aligning, opening, beginning, writing, foreign}
	// asking is where the end of the backups is not known.
	asking = statemachine.Group{unknown, aligning, foreign}
	// ahead is where who has less than the store begins again.
	ahead = statemachine.Group{unknown, aligning, opening, writing, foreign}
)

// Table is the writer. Nobody may change it at run time.
var Table = statemachine.Expand(written)

// written is the table as people read and change it. Rows that share From and On stand together, all but the last of them
// guarded; the first that holds wins. What has no row is answered by Elsewhere.
var written = []entry{
	{unknown, tick, ours, unknown, []Action{look, captureRows}, "etcd compacts whether or not the store answers"},
	{unknown, tick, always, unknown, []Action{look}, "what changes is captured by the member that writes"},
	{watching, tick, always, watching, []Action{findSuccessor, look, storeFull, storeSegment}, "what waits on the volume is brought by whoever has it"},
	{aligning, tick, ours, aligning, []Action{findSuccessor, look, storeFull, captureRows}, "etcd compacts whether or not the store answers"},
	{aligning, tick, always, aligning, []Action{findSuccessor, look, storeFull}, "what changes is captured by the member that writes"},
	{writing, tick, guest, writing, []Action{checkStored, look, storeFull, makeFull, captureRows, storeSegment, mergeSegments, keepReserved}, "the leader may write again"},
	{writing, tick, always, writing, []Action{checkStored, storeFull, makeFull, captureRows, storeSegment, mergeSegments, keepReserved}, "nobody else extends the chain, so there is nothing to look for"},
	{opening, tick, always, opening, []Action{findSuccessor, storeFull, makeFull, storeSegment, keepReserved}, "what waits of the chain before is stored first"},
	{beginning, tick, ours, beginning, []Action{findSuccessor, storeFull, captureRows, keepReserved}, "nothing is stored behind it before it is"},
	{beginning, tick, always, beginning, []Action{findSuccessor, storeFull}, "before it counts, it is asked whether this member writes"},
	{foreign, tick, always, foreign, []Action{look, storeFull}, "somebody may point the store at another place, or empty it"},

	{ended, tick, always, ended, nil, "nothing follows the end of a generation"},
	{ended, elected, always, ended, nil, "nothing follows the end of a generation"},
	{ended, deposed, always, ended, nil, "nothing follows the end of a generation"},

	{asking, elected, always, statemachine.Stays, []Action{lookSoon}, "whoever leads founds a store, or goes on from its end"},
	{endKnown, elected, always, aligning, []Action{lookSoon}, "the leader before may have extended the chain meanwhile"},
	{beginning, elected, always, beginning, nil, "its full snapshot is on its way"},
	{asking, deposed, always, statemachine.Stays, []Action{lookSoon}, "another member may write"},
	{endKnown, deposed, always, aligning, []Action{lookSoon}, "another member may have extended the chain"},
	{beginning, deposed, always, beginning, nil, "before the full snapshot counts, it is asked whether this member writes"},
	{unknown, stalled, always, unknown, []Action{takeOver}, "the leader begins nothing, so this member does"},
	{watching, stalled, always, aligning, []Action{takeOver}, "the leader stores nothing, so this member does"},

	{looking, nothingBegun, closed, drained, []Action{finish}, "to begin a chain is for the member that writes"},
	{looking, nothingBegun, always, unknown, []Action{countSilence}, "to found a store is for the leader"},
	{looking, chainFound, ours, writing, []Action{goOn}, "this member extends the chain"},
	{looking, chainFound, always, watching, []Action{goOn}, "another member extends the chain"},
	{looking, noChain, closed, drained, []Action{finish}, "to begin a chain is for the member that writes"},
	{looking, noChain, ours, opening, []Action{clearChain, openChain}, "a chain begins with a full snapshot"},
	{looking, noChain, always, watching, []Action{clearChain, countSilence}, "to begin a chain is for the leader"},
	{looking, endDamaged, closed, drained, []Action{finish}, "to begin a chain is for the member that writes"},
	{looking, endDamaged, ours, opening, []Action{abandonEnd}, "nobody can go on from there, and it stays as it is"},
	{looking, endDamaged, always, aligning, []Action{keepWatching}, "to begin a chain is for the leader"},
	{looking, refused, always, foreign, []Action{refuse}, "two clusters do not share a store"},
	{beginning, refused, always, foreign, []Action{leaveChain, refuse}, "two clusters do not share a store"},
	{watching, storeAhead, always, watching, []Action{await}, "a member that does not lead may be slow"},
	{ahead, storeAhead, always, aligning, []Action{await}, "a leader has soon applied what was acknowledged before"},
	{looking, emptied, always, unknown, []Action{forgetStore}, "the store is founded again"},
	{looking, surpassed, always, drained, []Action{finish}, "another member goes on with the rest"},

	{serving, succeeded, always, ended, []Action{endHere}, "of two that go on with one, the one whose object came first counts"},

	{endKnown, expired, always, aligning, nil, "what is known of the end holds for so long"},
	{endKnown, storeLost, always, aligning, []Action{vetStore}, "somebody has emptied the store, or taken it"},
	{endKnown, collided, always, aligning, nil, "another member was first, and this one goes on behind it"},
	{endKnown, spoolLost, always, aligning, []Action{dropSpool}, "the database still has it"},
	{writing, broken, closed, drained, []Action{finish}, "to begin a chain is for the member that writes"},
	{writing, broken, always, opening, []Action{openChain}, "only the whole database tells what the keys are now"},
	{opening, named, always, beginning, nil, "from here on the chain is this member's"},
	{opening, fullLost, always, opening, []Action{openChain}, "there is still no chain"},
	{beginning, chainBegun, always, aligning, nil, "should another member have begun a chain as well, the newest counts"},
	{beginning, overtaken, always, aligning, []Action{leaveChain}, "there is a chain to go on with"},
	{beginning, fullLost, ours, opening, []Action{openChain}, "what was to come behind it leads nowhere"},
	{beginning, fullLost, always, aligning, []Action{dropSpool}, "to begin a chain is another member's by now"},
}

// Elsewhere is the answer to an event where the table has no row.
var Elsewhere = statemachine.RejectByDefault(Table,
	statemachine.LateEvents{Why: "the look began before the chain did", On: []Event{nothingBegun, chainFound, noChain, endDamaged, storeAhead, emptied, surpassed}},
	statemachine.LateEvents{Why: "the generation has ended", On: []Event{refused}},
	statemachine.LateEvents{Why: "it is known", On: []Event{succeeded}},
	statemachine.LateEvents{Why: "the store is looked at already", On: []Event{expired, storeLost, collided}},
	statemachine.LateEvents{Why: "the database is read again in any case", On: []Event{spoolLost}},
	statemachine.LateEvents{Why: "the full snapshot was given up", On: []Event{chainBegun, overtaken}},
	statemachine.LateEvents{Why: "there is a chain without it", On: []Event{fullLost}},
)

// Drawing is how the writer is drawn.
var Drawing = statemachine.Drawing{
	Name: "backup", Source: "etcd-wrapper --dump-fsm --machine=backup", Table: Table, States: States, Initial: unknown, Final: drained, Aside: foreign,
	Shapes: map[State]string{
		drained: `peripheries=2, fillcolor="#dff3e1", color="#2c6e35", `,
		foreign: `fillcolor="#f8e8e8", color="#804040", `,
		ended:   `peripheries=2, fillcolor="#f8e8e8", color="#804040", `,
	},
	Defaults: Elsewhere, Picture: picture,
}

//go:embed backup.svg
var picture string
