package lifecycle_test

import (
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	. "etcd-wrapper/lifecycle"
	"etcd-wrapper/statemachine"
	"etcd-wrapper/statemachine/statemachinetest"
)

// tested wraps the machine for the tests that all state machines share.
var tested = statemachinetest.Machine{Table: Table, Elsewhere: Elsewhere, States: States, Guards: declared[Guard]()}

func TestTable_isComplete(t *testing.T) {
	statemachinetest.AssertConsistent(t, tested, Written)
}

func TestTable_everyStateLeadsToTheEnd(t *testing.T) {
	for _, state := range tested.StateNames() {
		assert.Contains(t, tested.Reachable(state), Terminated, "from %s", state)
	}
}

func TestTable_terminatedIsFinal(t *testing.T) {
	assert.Equal(t, []State{Terminated}, tested.Reachable(Terminated))
}

func boundOf(state State) statemachine.Bound {
	return States[slices.IndexFunc(States, func(s statemachine.StateInfo) bool { return s.Name == state })].Bound
}

func asStrings(states []State) []string {
	var names []string
	for _, state := range states {
		names = append(names, string(state))
	}
	return names
}

func TestTable_illegalTransition(t *testing.T) {
	begun := slices.IndexFunc(Table, func(r Row) bool { return r.On == Started })
	asked := slices.IndexFunc(Table, func(r Row) bool { return r.From == Query && r.When == StatusNew })
	elapsed := slices.IndexFunc(Table, func(r Row) bool { return r.From == Wait && r.On == Elapsed })
	require.NoError(t, TakeInOrder(Table, begun, begun, asked))
	assert.ErrorContains(t, TakeInOrder(Table, elapsed), "illegal transition from Query to Query")
}

type sentence statemachinetest.Sentence[Facts, Payload]

// there stands for the state in which the step started.
const there State = ""

// Facts for each way that a run can end.
var (
	begunByStop    = Facts{Ending: StopPosted}
	begunByTerm    = Facts{Ending: Signal, Signals: 1, LastSignal: syscall.SIGTERM}
	begunByLoss    = Facts{Ending: ListenerLost, Status: exitcode.ServerTaken}
	begunByFailure = Facts{Ending: EtcdFailed, Status: exitcode.EtcdFailed}

	sigterm = Payload{Signal: syscall.SIGTERM}
	sigint  = Payload{Signal: syscall.SIGINT}

	some = []byte("name: etcd-0")

	ask         = []Action{LockVolume, AskStatus}
	fetch       = []Action{FetchEtcdConfig}
	check       = []Action{EndPrefetch, CheckEtcdConfig, ServeReadyz, LockData}
	abort       = []Action{LimitAbort, CloseEtcd}
	stop        = []Action{LimitStop, CloseEtcd}
	leaveReason = []Action{LimitAbort, LeaveReason}
)

var sentences = []sentence{
	// Query
	{"a process that begins asks the sidecar, with the volume's lock held", Query, Facts{}, Started, Payload{}, Query, ask},
	{"without the volume's lock it waits and asks for nothing", Query, Facts{}, VolumeBusy, Payload{}, Wait, []Action{PaceLock}},
	{"New asks for an initialization", Query, Facts{}, Replied, Payload{Word: bootstrap.New}, Trigger, []Action{ProbeData, AskInit}},
	{"Successful leads to the configuration", Query, Facts{}, Replied, Payload{Word: bootstrap.Successful}, FetchConfig, fetch},
	{"Successful with a usable early configuration only checks that", Query, Facts{}, Replied, Payload{Word: bootstrap.Successful, Early: true}, FetchConfig, check},
	{"an early configuration that was young for an earlier result says nothing about this one", Query, Facts{ConfigKept: true}, Replied, Payload{Word: bootstrap.Successful}, FetchConfig, fetch},
	{"a configuration that is here already opens nothing without Successful", Query, Facts{}, Replied, Payload{Word: bootstrap.Progress, Early: true}, Wait, []Action{PaceProgress, RefreshConfig}},
	{"Failed waits, longer each time, before the next initialization", Query, Facts{}, Replied, Payload{Word: bootstrap.Failed}, Wait, []Action{PaceFailure}},
	{"Failed for good ends the run", Query, Facts{}, Replied, Payload{Word: bootstrap.Failed, Status: exitcode.EtcdFailed}, Terminating, abort},
	{"that an earlier result was for good says nothing about this one", Query, Facts{Permanent: true}, Replied, Payload{Word: bootstrap.Failed}, Wait, []Action{PaceFailure}},
	{"only Failed can be for good", Query, Facts{}, Replied, Payload{Word: bootstrap.Progress, Status: exitcode.EtcdFailed}, Wait, []Action{PaceProgress, RefreshConfig}},
	{"New after Failed asks for a full initialization", Query, Facts{Failed: true}, Replied, Payload{Word: bootstrap.New}, Trigger, []Action{ProbeData, AskFullInit}},
	{"Progress waits, without a deadline, and keeps the early configuration young", Query, Facts{}, Replied, Payload{Word: bootstrap.Progress}, Wait, []Action{PaceProgress, RefreshConfig}},
	{"an earlier Successful does not count for a later Progress", Query, Facts{Word: bootstrap.Successful}, Replied, Payload{Word: bootstrap.Progress}, Wait, []Action{PaceProgress, RefreshConfig}},
	{"a word that is no word opens nothing, and is asked about less and less often", Query, Facts{}, Replied, Payload{Word: "successful"}, Wait, []Action{PaceSilence}},
	{"nor does one that a later sidecar may say", Query, Facts{ConfigKept: true}, Replied, Payload{Word: unknownWord}, Wait, []Action{PaceSilence}},
	{"no answer waits and asks again", Query, Facts{}, NoAnswer, Payload{}, Wait, []Action{PaceSilence}},
	{"no answer after a Successful that was read before opens nothing", Query, Facts{Word: bootstrap.Successful}, NoAnswer, Payload{}, Wait, []Action{PaceSilence}},

	// Trigger
	{"an accepted initialization is waited for, and the configuration fetched meanwhile", Trigger, Facts{}, Accepted, Payload{}, Wait, []Action{PaceProgress, PrefetchConfig}},
	{"one that is accepted again and again without a result is asked for less and less often", Trigger, Facts{RequestPending: true}, Accepted, Payload{}, Wait, []Action{PaceFailure, PrefetchConfig}},
	{"data that somebody else has open for writing is not validated", Trigger, Facts{}, DataInUse, Payload{}, Wait, []Action{PaceFailure}},
	{"one that was not accepted is asked about, not asked for twice", Trigger, Facts{}, NotAccepted, Payload{}, Wait, []Action{PaceFailure}},

	// Wait
	{"after the pause it asks again", Wait, Facts{}, Elapsed, Payload{}, Query, ask},

	// FetchConfig
	{"a configuration that is here is checked, and with it what etcd's start needs", FetchConfig, Facts{}, ConfigFetched, Payload{Config: some}, FetchConfig, check},
	{"a valid configuration starts etcd, after the exit record is removed", FetchConfig, Facts{}, ConfigValid, Payload{}, StartEtcd, []Action{LimitStart, RemoveRecord, OpenEtcd}},
	{"data that another wrapper has locked is waited for, here", FetchConfig, Facts{}, DataInUse, Payload{}, FetchConfig, []Action{PaceSilence}},
	{"an invalid configuration ends the run", FetchConfig, Facts{}, ConfigInvalid, Payload{}, Terminating, abort},
	{"a configuration that can't be had is asked for again, here", FetchConfig, Facts{}, ConfigUnavailable, Payload{}, FetchConfig, []Action{PaceSilence}},
	{"after the pause the configuration is fetched again", FetchConfig, Facts{}, Elapsed, Payload{}, FetchConfig, fetch},

	// Prefetched configuration
	{"an early configuration is kept before the result", BeforeResult, Facts{}, ConfigPrefetched, Payload{Config: some}, there, nil},
	{"an early configuration that comes first is checked", FetchConfig, Facts{Word: bootstrap.Successful}, ConfigPrefetched, Payload{Config: some, Early: true}, FetchConfig, check},
	{"one that can't be used disturbs nothing, knowing Successful", FetchConfig, Facts{Word: bootstrap.Successful}, ConfigPrefetched, Payload{}, FetchConfig, nil},
	{"one that can't be used disturbs nothing", FetchConfig, Facts{}, ConfigPrefetched, Payload{}, FetchConfig, nil},

	// StartEtcd
	{"etcd that joined its cluster serves", StartEtcd, Facts{}, EtcdReady, Payload{}, Serving, []Action{WatchEtcd}},
	{"etcd that did not start ends the run", StartEtcd, Facts{}, EtcdFailed, Payload{}, Terminating, stop},
	{"etcd that is not ready in time ends the run", StartEtcd, Facts{}, Elapsed, Payload{}, Terminating, stop},

	// Serving
	{"etcd that stops by itself ends the run", Serving, Facts{}, EtcdFailed, Payload{}, Terminating, stop},

	// Stops
	{"SIGTERM before etcd has nothing to close", BeforeEtcd, Facts{}, Signal, sigterm, Terminating, abort},
	{"SIGTERM closes etcd", WithEtcd, Facts{}, Signal, sigterm, Terminating, stop},
	{"POST /stop before etcd has nothing to close", BeforeEtcd, Facts{}, StopPosted, Payload{}, Terminating, abort},
	{"POST /stop closes etcd", WithEtcd, Facts{}, StopPosted, Payload{}, Terminating, stop},

	// The wrapper's own server
	{"a wrapper that nobody can ask any more has nothing to close before etcd", BeforeEtcd, Facts{}, ListenerLost, Payload{}, Terminating, abort},
	{"a wrapper that nobody can ask any more closes etcd", WithEtcd, Facts{}, ListenerLost, Payload{}, Terminating, stop},

	// Crashes
	{"a crash ends the run and leaves its reason", BeforeEnd, Facts{}, Crashed, Payload{}, Terminating, leaveReason},
	{"a crash while closing", Terminating, begunByTerm, Crashed, Payload{}, Terminating, []Action{LeaveReason}},

	// Terminating
	{"etcd that was never opened leaves the record as it was", Terminating, begunByTerm, EtcdClosed, Payload{NeverOpened: true}, Terminating, []Action{RestoreRecord}},
	{"after SIGTERM a close in order is recorded", Terminating, begunByTerm, EtcdClosed, Payload{ClosedInOrder: true}, Terminating, []Action{WriteRecord}},
	{"after POST /stop a close in order is recorded", Terminating, begunByStop, EtcdClosed, Payload{ClosedInOrder: true}, Terminating, []Action{WriteRecord}},
	{"a close that was not in order is never recorded", Terminating, begunByTerm, EtcdClosed, Payload{}, Terminated, nil},
	{"a close after a failure is never recorded", Terminating, begunByFailure, EtcdClosed, Payload{ClosedInOrder: true}, Terminated, nil},
	{"a close in order after the own listener was lost is not recorded: nobody asked for the stop", Terminating, begunByLoss, EtcdClosed, Payload{ClosedInOrder: true}, Terminated, nil},
	{"with the record settled the process exits", Terminating, begunByTerm, RecordSettled, Payload{}, Terminated, nil},
	{"a stop that outlives its budget is cut short", Terminating, begunByTerm, Elapsed, Payload{}, Terminated, nil},
	{"a second signal cuts the stop short", Terminating, begunByTerm, Signal, sigint, Terminated, nil},
	{"the first signal after POST /stop changes nothing", Terminating, begunByStop, Signal, sigterm, Terminating, nil},
}

// suite tests single steps.
var suite = func() statemachinetest.Suite[Facts, Payload] {
	all := statemachinetest.Suite[Facts, Payload]{
		Machine: tested, Final: Terminated, Rest: answerWithoutRow, Given: begunByTerm, Payload: Payload{Err: assert.AnError},
	}
	for _, s := range sentences {
		all.Sentences = append(all.Sentences, statemachinetest.Sentence[Facts, Payload](s))
	}
	return all
}()

// answerWithoutRow returns the expected reaction without a row: Terminated ignores everything, a repeated stop is
// ignored, and all other events are rejected.
func answerWithoutRow(state State, event Event) statemachine.Answer {
	if state == Terminated || (state == Terminating && (event == StopPosted || event == ListenerLost)) {
		return statemachine.Ignore
	}
	return statemachine.Reject
}

func TestTable_everyStep(t *testing.T) { suite.Assert(t) }
