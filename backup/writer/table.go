package writer

import (
	_ "embed" // for the diagram

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/statemachine"
)

type (
	// State is a state of the writer.
	State = statemachine.State
	// Event is reported by etcd, the store or a job.
	Event = statemachine.Event
	// Guard names a condition.
	Guard = statemachine.Guard
	// Action names something that the writer does.
	Action = statemachine.Action
)

// The states. unknown is the initial state, drained the final one.
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
	{Name: unknown, Meaning: "the store was not inspected yet", Bound: statemachine.NoBound, Deadline: "2m for a request, at most 30s between requests"},
	{Name: watching, Meaning: "another member writes; upload the spool, and check that the backups grow", Bound: statemachine.NoBound, Deadline: "an inspection every 10 intervals, at least 10s"},
	{Name: aligning, Meaning: "find the end of the backups before storing anything; capture meanwhile", Bound: statemachine.NoBound, Deadline: "2m for a request, at most 30s between requests"},
	{Name: writing, Meaning: "capture changes, store them, make full snapshots by schedule", Bound: statemachine.NoBound, Deadline: "none: until another member leads, or the chain cannot be extended"},
	{Name: opening, Meaning: "there is no chain to extend, so a full snapshot is due", Bound: statemachine.NoBound, Deadline: "until no other operation holds the database"},
	{Name: beginning, Meaning: "store the full snapshot that starts a chain; capture the changes after it", Bound: statemachine.NoBound, Deadline: "none: a large database takes long"},
	{Name: foreign, Meaning: "nothing may be written to this store; the status shows why", Bound: statemachine.NoBound, Deadline: "an inspection every minute"},
	{Name: ended, Meaning: "the generation has ended and another one continues it: etcd is closed", Bound: statemachine.AtEnd, Deadline: "final"},
	{Name: drained, Meaning: "a closed etcd has nothing more to store", Bound: statemachine.AtEnd, Deadline: "final"},
}

const (
	tick    Event = "tick"    // a tenth of a second has passed, or a job has ended
	elected Event = "elected" // this member became the leader
	deposed Event = "deposed" // this member is no longer the leader
	stalled Event = "stalled" // the leader's backups have not grown although there are changes to store

	nothingBegun Event = "nothing begun" // the store is unused
	chainFound   Event = "chain found"   // this member's data continues from the end of the backups
	noChain      Event = "no chain"      // the store belongs to this cluster but has no full snapshot
	endDamaged   Event = "end damaged"   // the end of the backups is damaged
	refused      Event = "refused"       // the store belongs to another cluster, or its backups are of different data
	storeAhead   Event = "store ahead"   // the store has revisions that this member lacks
	emptied      Event = "emptied"       // the backups have disappeared
	surpassed    Event = "surpassed"     // the store has everything that a closed etcd could add
	succeeded    Event = "succeeded"     // the generation has ended or has a successor

	expired    Event = "expired"     // the end of the backups was not read for too long
	storeLost  Event = "store lost"  // the store has lost objects
	collided   Event = "collided"    // another member's segment occupies the position
	spoolLost  Event = "spool lost"  // segments in the spool have disappeared
	broken     Event = "broken"      // compaction has passed the end of the chain
	named      Event = "named"       // the revision of the full snapshot that starts a chain is known
	chainBegun Event = "chain begun" // the full snapshot that starts a chain is stored
	overtaken  Event = "overtaken"   // another member extends the backups
	fullLost   Event = "full lost"   // a full snapshot could not be made, or its copy could not be kept
)

// The guards, in addition to statemachine.Always.
const (
	ours   Guard = "ours to write"
	guest  Guard = "instead of the leader"
	closed Guard = "closed etcd, segments only"
)

var conditions = statemachine.Conditions[memberState]{
	ours:   memberState.isWriter,
	guest:  func(k memberState) bool { return !k.leads && k.guest },
	closed: func(k memberState) bool { return k.closed },
}

const (
	look          Action = "look"           // find the end of the backups if it is due
	captureRows   Action = "capture"        // spool the changes
	storeSegment  Action = "store segment"  // upload the oldest queued segment
	makeFull      Action = "make full"      // make the full snapshot if it is due
	storeFull     Action = "store full"     // upload the copied full snapshot
	lookSoon      Action = "look soon"      //
	countSilence  Action = "count silence"  // count inspections without a chain, which the leader should start
	takeOver      Action = "take over"      // write backups instead of the leader
	goOn          Action = "go on"          // continue from the end of the chain
	clearChain    Action = "clear chain"    // discard segments that extend a missing full snapshot
	openChain     Action = "open chain"     // start a chain with a full snapshot
	abandonEnd    Action = "abandon end"    // start a chain after a damaged end
	leaveChain    Action = "leave chain"    // cancel the start of a chain, because another member extends the backups
	dropSpool     Action = "drop spool"     // discard the spool and capture its changes again
	forgetStore   Action = "forget store"   // reset the known state of the store
	refuse        Action = "refuse"         // record why nothing may be written
	keepWatching  Action = "keep watching"  // inspect again after an interval
	await         Action = "await"          // wait until this member has applied more
	finish        Action = "finish"         // record the result of Flush
	findSuccessor Action = "find successor" // check for a successor of the generation if it is due
	checkStored   Action = "check stored"   // check that stored segments still exist if it is due
	endHere       Action = "end here"       // cancel everything in progress and have etcd closed
)

// memberState holds the values that the guards evaluate.
type memberState struct {
	leads   bool // this member is the leader
	guest   bool // this member took over because the leader does not write
	creates bool // the store refuses to overwrite objects, so two members may write at the same time
	closed  bool // etcd is closed and another member wrote the backups: upload segments, but start nothing
}

// isWriter reports whether this member extends the chain.
func (k memberState) isWriter() bool { return k.leads || k.guest && k.creates }

// Holds implements statemachine.Facts.
func (k memberState) Holds(guard Guard) bool { return conditions.Evaluate(guard, k) }

// payload is the data of an event.
type payload struct {
	head    archive.Head
	creates bool // according to an inspection, the store refuses to overwrite objects
	grew    bool // another member has extended the chain
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

const always = statemachine.Always

var (
	// looking contains the states in which the store may be inspected. While a chain is about to start, there is
	// nothing to inspect.
	looking = statemachine.Group{unknown, watching, aligning, opening, writing, foreign}
	// endKnown contains the states in which the end of the backups is known.
	endKnown = statemachine.Group{watching, opening, writing}
	// serving contains the states in which the generation may still be this cluster's.
	serving = statemachine.Group{unknown, watching, aligning, opening, beginning, writing, foreign}
	// asking contains the states in which the end of the backups is not known.
	asking = statemachine.Group{unknown, aligning, foreign}
	// ahead contains the states from which a member with less than the store starts aligning.
	ahead = statemachine.Group{unknown, aligning, opening, writing, foreign}
)

// Table is the writer's state machine. It must not be changed at run time.
var Table = statemachine.Expand(written)

// written is the table before expansion. Of adjacent rows with the same From and On, the first one whose guard holds
// applies; only the last one has no guard. Elsewhere answers events without a row.
var written = statemachine.Entries{
	{unknown, tick, ours, unknown, []Action{look, captureRows}, "etcd compacts whether or not the store answers"},
	{unknown, tick, always, unknown, []Action{look}, "the member that writes captures the changes"},
	{watching, tick, always, watching, []Action{findSuccessor, look, storeFull, storeSegment}, "each member uploads its own spool"},
	{aligning, tick, ours, aligning, []Action{findSuccessor, look, storeFull, captureRows}, "etcd compacts whether or not the store answers"},
	{aligning, tick, always, aligning, []Action{findSuccessor, look, storeFull}, "the member that writes captures the changes"},
	{writing, tick, guest, writing, []Action{checkStored, look, storeFull, makeFull, captureRows, storeSegment}, "the leader may write again"},
	{writing, tick, always, writing, []Action{checkStored, storeFull, makeFull, captureRows, storeSegment}, "no other member extends the chain, so no inspection is needed"},
	{opening, tick, always, opening, []Action{findSuccessor, storeFull, makeFull, storeSegment}, "the segments of the previous chain are stored first"},
	{beginning, tick, ours, beginning, []Action{findSuccessor, storeFull, captureRows}, "no segment is stored before the full snapshot"},
	{beginning, tick, always, beginning, []Action{findSuccessor, storeFull}, "whether this member writes is checked before the full snapshot counts"},
	{foreign, tick, always, foreign, []Action{look, storeFull}, "an operator may empty the store or change its location"},

	{ended, tick, always, ended, nil, "a generation ends only once"},
	{ended, elected, always, ended, nil, "a generation ends only once"},
	{ended, deposed, always, ended, nil, "a generation ends only once"},

	{asking, elected, always, statemachine.Stays, []Action{lookSoon}, "the leader initializes a store or extends its chain"},
	{endKnown, elected, always, aligning, []Action{lookSoon}, "the previous leader may have extended the chain"},
	{beginning, elected, always, beginning, nil, "its full snapshot is being stored"},
	{asking, deposed, always, statemachine.Stays, []Action{lookSoon}, "another member may write"},
	{endKnown, deposed, always, aligning, []Action{lookSoon}, "another member may have extended the chain"},
	{beginning, deposed, always, beginning, nil, "whether this member writes is checked before the full snapshot counts"},
	{unknown, stalled, always, unknown, []Action{takeOver}, "the leader starts no chain, so this member does"},
	{watching, stalled, always, aligning, []Action{takeOver}, "the leader stores nothing, so this member does"},

	{looking, nothingBegun, closed, drained, []Action{finish}, "only the member that writes starts a chain"},
	{looking, nothingBegun, always, unknown, []Action{countSilence}, "only the leader initializes a store"},
	{looking, chainFound, ours, writing, []Action{goOn}, "this member extends the chain"},
	{looking, chainFound, always, watching, []Action{goOn}, "another member extends the chain"},
	{looking, noChain, closed, drained, []Action{finish}, "only the member that writes starts a chain"},
	{looking, noChain, ours, opening, []Action{clearChain, openChain}, "a chain starts with a full snapshot"},
	{looking, noChain, always, watching, []Action{clearChain, countSilence}, "only the leader starts a chain"},
	{looking, endDamaged, closed, drained, []Action{finish}, "only the member that writes starts a chain"},
	{looking, endDamaged, ours, opening, []Action{abandonEnd}, "no member can extend it; it is left as it is"},
	{looking, endDamaged, always, aligning, []Action{keepWatching}, "only the leader starts a chain"},
	{looking, refused, always, foreign, []Action{refuse}, "two clusters do not share a store"},
	{beginning, refused, always, foreign, []Action{leaveChain, refuse}, "two clusters do not share a store"},
	{watching, storeAhead, always, watching, []Action{await}, "a member that does not lead may be slow"},
	{ahead, storeAhead, always, aligning, []Action{await}, "a leader soon applies what was acknowledged before"},
	{looking, emptied, always, unknown, []Action{forgetStore}, "the store is initialized again"},
	{looking, surpassed, always, drained, []Action{finish}, "another member stores the rest"},

	{serving, succeeded, always, ended, []Action{endHere}, "the first of two successors counts"},

	{endKnown, expired, always, aligning, nil, "the known end of the chain is too old"},
	{endKnown, storeLost, always, aligning, nil, "the store was emptied or belongs to another cluster"},
	{endKnown, collided, always, aligning, nil, "another member was first, and this one continues after it"},
	{endKnown, spoolLost, always, aligning, []Action{dropSpool}, "the database still has the changes"},
	{writing, broken, closed, drained, []Action{finish}, "only the member that writes starts a chain"},
	{writing, broken, always, opening, []Action{openChain}, "only the whole database has the current keys"},
	{opening, named, always, beginning, nil, "the chain is this member's from here on"},
	{opening, fullLost, always, opening, []Action{openChain}, "there is still no chain"},
	{beginning, chainBegun, always, aligning, nil, "if another member has started a chain as well, the newest counts"},
	{beginning, overtaken, always, aligning, []Action{leaveChain}, "there is a chain to extend"},
	{beginning, fullLost, ours, opening, []Action{openChain}, "segments after it cannot be restored"},
	{beginning, fullLost, always, aligning, []Action{dropSpool}, "another member now starts the chain"},
}

// Elsewhere answers events for which the table has no row.
var Elsewhere = statemachine.RejectByDefault(Table,
	statemachine.LateEvents{Why: "the inspection started before the chain", On: []Event{nothingBegun, chainFound, noChain, endDamaged, storeAhead, emptied, surpassed}},
	statemachine.LateEvents{Why: "the generation has ended", On: []Event{refused}},
	statemachine.LateEvents{Why: "already known", On: []Event{succeeded}},
	statemachine.LateEvents{Why: "the store is being inspected", On: []Event{expired, storeLost, collided}},
	statemachine.LateEvents{Why: "the database is read again anyway", On: []Event{spoolLost}},
	statemachine.LateEvents{Why: "the full snapshot was canceled", On: []Event{chainBegun, overtaken}},
	statemachine.LateEvents{Why: "there is a chain without it", On: []Event{fullLost}},
)

// Diagram describes the diagram of the writer.
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
