package writer

import (
	_ "embed" // embeds the diagram

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/statemachine"
)

type (
	// State is a state of the writer.
	State = statemachine.State
	// Event is an event reported by etcd, the store or a job.
	Event = statemachine.Event
	// Guard is the name of a condition.
	Guard = statemachine.Guard
	// Action is the name of an action.
	Action = statemachine.Action
)

// The initial state is unknown, and the final state is drained.
const (
	unknown  State = "Unknown"
	watching State = "Watching"
	aligning State = "Aligning"
	writing  State = "Writing"
	opening  State = "Opening"
	starting State = "Starting"
	foreign  State = "Foreign"
	drained  State = "Drained"
	ended    State = "Ended"
)

// States describes all states in the order of a run.
var States = []statemachine.StateInfo{
	{Name: unknown, Meaning: "the store has not been read yet", Bound: statemachine.NoBound, Deadline: "2m per request, at most 30s between requests"},
	{Name: watching, Meaning: "another member is writing the backups; uploading the spool and watching for new backups", Bound: statemachine.NoBound, Deadline: "a check every 10 intervals, but at least 10s apart"},
	{Name: aligning, Meaning: "finding the end of the backups; capturing changes but not uploading them", Bound: statemachine.NoBound, Deadline: "2m per request, at most 30s between requests"},
	{Name: writing, Meaning: "capturing and uploading changes, and making full snapshots on schedule", Bound: statemachine.NoBound, Deadline: "none: ends when another member becomes the leader or the chain cannot be extended"},
	{Name: opening, Meaning: "no chain to extend; waiting to make a full snapshot", Bound: statemachine.NoBound, Deadline: "until no other operation is using the database"},
	{Name: starting, Meaning: "uploading the full snapshot that starts a chain, and capturing later changes", Bound: statemachine.NoBound, Deadline: "none: uploading a large database can take a while"},
	{Name: foreign, Meaning: "writing to this store is not allowed; the status shows the reason", Bound: statemachine.NoBound, Deadline: "a check every minute"},
	{Name: ended, Meaning: "another generation has superseded this one; closing etcd", Bound: statemachine.AtEnd, Deadline: "final"},
	{Name: drained, Meaning: "etcd is closed and has nothing more to upload", Bound: statemachine.AtEnd, Deadline: "final"},
}

const (
	tick           Event = "tick"            // a tick (100 ms) has passed, or a job has finished
	elected        Event = "elected"         // this member became the leader
	lostLeadership Event = "leadership lost" // this member is no longer the leader
	stalled        Event = "leader stalled"  // the leader has stopped uploading even though there are changes to store

	storeUnused Event = "store unused"
	chainFound  Event = "chain found" // this member's data continues the backups
	noChain     Event = "no chain"    // the store belongs to this cluster but has no full snapshot
	endDamaged  Event = "end damaged"
	refused     Event = "store refused" // the store belongs to another cluster, or its backups contain different data
	storeAhead  Event = "store ahead"   // the store has later revisions than this member
	emptied     Event = "store emptied" // the backups have disappeared
	fullyStored Event = "fully stored"  // the closed etcd has nothing to add to the store
	superseded  Event = "superseded"    // another generation has superseded this one

	expired      Event = "inspection expired" // the end of the backups has not been read recently
	objectsLost  Event = "objects lost"       // objects are missing from the store
	collided     Event = "collided"           // another member has stored a segment at the same position
	spoolLost    Event = "spool lost"         // a segment in the spool is missing or unreadable
	chainBroken  Event = "chain broken"       // etcd compacted changes before they were captured
	copyStarted  Event = "copy started"       // the database is being copied for the full snapshot that starts a chain
	chainStarted Event = "chain started"      // the full snapshot that starts a chain is stored
	overtaken    Event = "overtaken"          // another member has extended the backups
	fullLost     Event = "full snapshot lost" // a full snapshot could not be made, or its copy could not be kept
)

const (
	isWriter     Guard = "writer"
	hasTakenOver Guard = "writer after takeover"
	closed       Guard = "etcd closed, segments only"
)

var conditions = statemachine.Conditions[memberState]{
	isWriter:     memberState.isWriter,
	hasTakenOver: func(k memberState) bool { return !k.leads && k.tookOver },
	closed:       func(k memberState) bool { return k.closed },
}

const (
	inspectStore  Action = "inspect"        // read the end of the backups if an inspection is due
	captureRows   Action = "capture"        // capture changes into the spool
	storeSegment  Action = "store segment"  // upload the oldest queued segment
	makeFull      Action = "make full"      // make a full snapshot if one is due
	storeFull     Action = "store full"     // upload the copy of the database
	inspectSoon   Action = "inspect soon"   // inspect immediately unless the store has a problem
	watchLeader   Action = "watch leader"   // take over if the leader starts no chain for several inspections
	takeOver      Action = "take over"      // write backups instead of the leader
	continueChain Action = "continue chain" // continue from the end of the chain
	clearChain    Action = "clear chain"    // discard segments that follow a missing full snapshot
	openChain     Action = "open chain"     // start a chain with a full snapshot
	abandonEnd    Action = "abandon end"    // start a chain after a damaged end
	leaveChain    Action = "leave chain"    // do not start a chain, because another member has extended the backups
	dropSpool     Action = "drop spool"     // discard the spool and capture its changes again
	forgetStore   Action = "forget store"
	refuse        Action = "record refusal" // record why this member must not write to the store
	keepWatching  Action = "keep watching"  // read the store again after an interval
	await         Action = "await changes"  // wait for this member to apply more changes
	finish        Action = "finish"         // record the result of Flush
	findSuccessor Action = "find successor" // check whether the generation has a successor, if a check is due
	checkStored   Action = "check stored"   // check that stored segments still exist, if a check is due
	endGeneration Action = "end generation" // cancel everything in progress and request that etcd be closed
)

// memberState holds the values that guards depend on.
type memberState struct {
	leads            bool // this member is the leader
	tookOver         bool // this member took over because the leader was not uploading
	refusesOverwrite bool // the store refuses to overwrite objects, so two members may write at the same time
	closed           bool // etcd is closed and another member was the writer, so this member only uploads segments
}

// isWriter reports whether this member may extend the chain.
func (k memberState) isWriter() bool { return k.leads || k.tookOver && k.refusesOverwrite }

// Holds implements statemachine.Facts.
func (k memberState) Holds(guard Guard) bool { return conditions.Evaluate(guard, k) }

// payload is the data of an event.
type payload struct {
	head             archive.Head
	refusesOverwrite bool // the store was found to refuse to overwrite objects
	grew             bool // another member has extended the chain
	err              error
}

// Learn implements statemachine.Facts.
func (k memberState) Learn(event Event, payload payload) memberState {
	if event == chainFound || event == noChain || event == endDamaged {
		k.refusesOverwrite, k.tookOver = payload.refusesOverwrite, k.tookOver && !payload.grew
	}
	return k
}

// Conclude implements statemachine.Facts.
func (k memberState) Conclude(_ State, event Event, _ State, _ payload) memberState {
	if event == elected || event == lostLeadership {
		k.leads, k.tookOver = event == elected, false
	}
	k.tookOver = k.tookOver || event == stalled
	return k
}

const always = statemachine.Always

var (
	// inspecting contains the states in which the result of an inspection is used. The state starting is excluded
	// because the new chain is not in the store yet.
	inspecting = statemachine.Group{unknown, watching, aligning, opening, writing, foreign}
	// endKnown contains the states in which the end of the backups is known.
	endKnown = statemachine.Group{watching, opening, writing}
	// serving contains the states in which this cluster may still own the generation, so etcd keeps serving clients.
	serving = statemachine.Group{unknown, watching, aligning, opening, starting, writing, foreign}
	// endUnknown contains the states in which the end of the backups is unknown.
	endUnknown = statemachine.Group{unknown, aligning, foreign}
	// notWatching contains the states in which a member may become the writer or is the writer. A writer must have all
	// revisions that the store has.
	notWatching = statemachine.Group{unknown, aligning, opening, writing, foreign}
)

// Table is the state machine of the writer. Table must not be modified at run time.
var Table = statemachine.Expand(written)

// written is the table before expansion. If several adjacent rows have the same From and On, the first row whose guard
// holds applies; only the last row has no guard. Events without a row are handled according to Elsewhere.
var written = statemachine.Entries{
	{unknown, tick, isWriter, unknown, []Action{inspectStore, captureRows}, "etcd may be compacted even if the store is unreachable"},
	{unknown, tick, always, unknown, []Action{inspectStore}, "only the writer captures changes"},
	{watching, tick, always, watching, []Action{findSuccessor, inspectStore, storeFull, storeSegment}, "each member uploads its own spool"},
	{aligning, tick, isWriter, aligning, []Action{findSuccessor, inspectStore, storeFull, captureRows}, "etcd may be compacted even if the store is unreachable"},
	{aligning, tick, always, aligning, []Action{findSuccessor, inspectStore, storeFull}, "only the writer captures changes"},
	{writing, tick, hasTakenOver, writing, []Action{checkStored, inspectStore, storeFull, makeFull, captureRows, storeSegment}, "the leader may resume writing"},
	{writing, tick, always, writing, []Action{checkStored, storeFull, makeFull, captureRows, storeSegment}, "no other member writes, so the store need not be read"},
	{opening, tick, always, opening, []Action{findSuccessor, storeFull, makeFull, storeSegment}, "segments from the previous chain are uploaded first"},
	{starting, tick, isWriter, starting, []Action{findSuccessor, storeFull, captureRows}, "no segment is uploaded before the full snapshot"},
	{starting, tick, always, starting, []Action{findSuccessor, storeFull}, "the full snapshot is valid only if this member is still the writer"},
	{foreign, tick, always, foreign, []Action{inspectStore, storeFull}, "an operator may empty or move the store"},

	{ended, tick, always, ended, nil, "a generation ends only once"},
	{ended, elected, always, ended, nil, "a generation ends only once"},
	{ended, lostLeadership, always, ended, nil, "a generation ends only once"},

	{endUnknown, elected, always, statemachine.Stays, []Action{inspectSoon}, "the leader initializes the store or extends its chain"},
	{endKnown, elected, always, aligning, []Action{inspectSoon}, "the previous leader may have extended the chain"},
	{starting, elected, always, starting, nil, "this member's full snapshot is being uploaded"},
	{endUnknown, lostLeadership, always, statemachine.Stays, []Action{inspectSoon}, "another member may be writing now"},
	{endKnown, lostLeadership, always, aligning, []Action{inspectSoon}, "another member may have extended the chain"},
	{starting, lostLeadership, always, starting, nil, "the full snapshot is valid only if this member is still the writer"},
	{unknown, stalled, always, unknown, []Action{takeOver}, "the leader has not started a chain, so this member takes over"},
	{watching, stalled, always, aligning, []Action{takeOver}, "the leader is not uploading, so this member takes over"},

	{inspecting, storeUnused, closed, drained, []Action{finish}, "only the writer starts a chain"},
	{inspecting, storeUnused, always, unknown, []Action{watchLeader}, "only the leader initializes the store"},
	{inspecting, chainFound, isWriter, writing, []Action{continueChain}, "this member extends the chain"},
	{inspecting, chainFound, always, watching, []Action{continueChain}, "another member extends the chain"},
	{inspecting, noChain, closed, drained, []Action{finish}, "only the writer starts a chain"},
	{inspecting, noChain, isWriter, opening, []Action{clearChain, openChain}, "a chain starts with a full snapshot"},
	{inspecting, noChain, always, watching, []Action{clearChain, watchLeader}, "only the leader starts a chain"},
	{inspecting, endDamaged, closed, drained, []Action{finish}, "only the writer starts a chain"},
	{inspecting, endDamaged, isWriter, opening, []Action{abandonEnd}, "a damaged end cannot be extended and is left in place"},
	{inspecting, endDamaged, always, aligning, []Action{keepWatching}, "only the leader starts a chain"},
	{inspecting, refused, always, foreign, []Action{refuse}, "two clusters must not share a store"},
	{starting, refused, always, foreign, []Action{leaveChain, refuse}, "two clusters must not share a store"},
	{watching, storeAhead, always, watching, []Action{await}, "a follower may lag behind"},
	{notWatching, storeAhead, always, aligning, []Action{await}, "a new leader may not have applied all acknowledged writes yet"},
	{inspecting, emptied, always, unknown, []Action{forgetStore}, "the store must be initialized again"},
	{inspecting, fullyStored, always, drained, []Action{finish}, "another member uploads the rest"},

	{serving, superseded, always, ended, []Action{endGeneration}, "only the first successor counts"},

	{endKnown, expired, always, aligning, nil, "the last read of the store is out of date"},
	{endKnown, objectsLost, always, aligning, nil, "the store may have been emptied or belong to another cluster"},
	{endKnown, collided, always, aligning, nil, "another member uploaded a segment first; this member continues after it"},
	{endKnown, spoolLost, always, aligning, []Action{dropSpool}, "the changes are still in the database"},
	{writing, chainBroken, closed, drained, []Action{finish}, "only the writer starts a chain"},
	{writing, chainBroken, always, opening, []Action{openChain}, "the compacted changes can no longer be captured"},
	{opening, copyStarted, always, starting, nil, "this member is starting the chain"},
	{opening, fullLost, always, opening, []Action{openChain}, "there is still no chain"},
	{starting, chainStarted, always, aligning, nil, "another member may have started a chain too; the newest chain wins"},
	{starting, overtaken, always, aligning, []Action{leaveChain}, "there is a chain to extend"},
	{starting, fullLost, isWriter, opening, []Action{openChain}, "segments after a lost full snapshot cannot be restored"},
	{starting, fullLost, always, aligning, []Action{dropSpool}, "another member is now responsible for starting the chain"},
}

// Elsewhere defines how events without a row in the table are handled.
var Elsewhere = statemachine.RejectByDefault(Table,
	statemachine.LateEvents{Why: "the store was read before this chain was started", On: []Event{storeUnused, chainFound, noChain, endDamaged, storeAhead, emptied, fullyStored}},
	statemachine.LateEvents{Why: "the generation has ended", On: []Event{refused}},
	statemachine.LateEvents{Why: "already known", On: []Event{superseded}},
	statemachine.LateEvents{Why: "the store is already being read", On: []Event{expired, objectsLost, collided}},
	statemachine.LateEvents{Why: "the changes are captured again anyway", On: []Event{spoolLost}},
	statemachine.LateEvents{Why: "the full snapshot was canceled", On: []Event{chainStarted, overtaken}},
	statemachine.LateEvents{Why: "a chain exists without this full snapshot", On: []Event{fullLost}},
)

// Diagram defines the diagram of the state machine.
var Diagram = statemachine.Diagram{
	Name: "backup", Source: "etcd-wrapper --dump-fsm=backup.dot", Table: Table, States: States, Initial: unknown, Final: drained, Aside: foreign,
	Shapes: map[State]string{
		drained: `peripheries=2, fillcolor="#dff3e1", color="#2c6e35", `,
		foreign: `fillcolor="#f8e8e8", color="#804040", `,
		ended:   `peripheries=2, fillcolor="#f8e8e8", color="#804040", `,
	},
	Defaults: Elsewhere, Picture: picture,
}

//go:embed backup.svg
var picture string
