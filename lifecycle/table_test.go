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

// tested is the lifecycle as seen by the tests that all state machines share.
var tested = statemachinetest.Machine{Table: Table, Elsewhere: Elsewhere, States: States, Guards: declared[Guard]()}

func TestTable_isComplete(t *testing.T) {
	statemachinetest.AssertConsistent(t, tested, Written)
}

func TestTable_everyStateLeadsToTheEnd(t *testing.T) {
	for _, state := range tested.StateNames() {
		assert.Contains(t, tested.Reachable(state), Terminated, "Terminated is not reachable from %s", state)
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
	started := slices.IndexFunc(Table, func(r Row) bool { return r.On == Started })
	newStatus := slices.IndexFunc(Table, func(r Row) bool { return r.From == Query && r.When == StatusNew })
	elapsed := slices.IndexFunc(Table, func(r Row) bool { return r.From == Wait && r.On == Elapsed })
	require.NoError(t, TakeInOrder(Table, started, started, newStatus))
	assert.ErrorContains(t, TakeInOrder(Table, elapsed), "illegal transition from Query to Query")
}

// stepCase is the expected result of one event.
type stepCase statemachinetest.Case[Facts, Payload]

// sameState means that a step does not change the state.
const sameState State = ""

// Facts in Terminating after each kind of ending, followed by payloads and lists of actions.
var (
	endedByStop    = Facts{Ending: StopPosted}
	endedByTerm    = Facts{Ending: Signal, Signals: 1, LastSignal: syscall.SIGTERM}
	endedByLoss    = Facts{Ending: ListenerLost, Status: exitcode.ServerTaken}
	endedByFailure = Facts{Ending: EtcdFailed, Status: exitcode.EtcdFailed}

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

var stepCases = []stepCase{
	// Query
	{"a new process locks the volume and queries the status", Query, Facts{}, Started, Payload{}, Query, ask},
	{"without the volume lock, the status is not queried", Query, Facts{}, VolumeBusy, Payload{}, Wait, []Action{PaceLock}},
	{"after New, an initialization is requested", Query, Facts{}, Replied, Payload{Word: bootstrap.New}, Trigger, []Action{ProbeData, AskInit}},
	{"after Successful, the configuration is fetched", Query, Facts{}, Replied, Payload{Word: bootstrap.Successful}, FetchConfig, fetch},
	{"after Successful, a usable prefetched configuration is checked", Query, Facts{}, Replied, Payload{Word: bootstrap.Successful, Early: true}, FetchConfig, check},
	{"a prefetched configuration that was usable for an earlier result is not used for a later one", Query, Facts{ConfigKept: true}, Replied, Payload{Word: bootstrap.Successful}, FetchConfig, fetch},
	{"a usable prefetched configuration is not used before Successful", Query, Facts{}, Replied, Payload{Word: bootstrap.Progress, Early: true}, Wait, []Action{PaceProgress, RefreshConfig}},
	{"after Failed, the next query is delayed with a backoff", Query, Facts{}, Replied, Payload{Word: bootstrap.Failed}, Wait, []Action{PaceFailure}},
	{"a permanent failure ends the run", Query, Facts{}, Replied, Payload{Word: bootstrap.Failed, Status: exitcode.EtcdFailed}, Terminating, abort},
	{"an earlier permanent failure does not make a later failure permanent", Query, Facts{Permanent: true}, Replied, Payload{Word: bootstrap.Failed}, Wait, []Action{PaceFailure}},
	{"only Failed can be permanent", Query, Facts{}, Replied, Payload{Word: bootstrap.Progress, Status: exitcode.EtcdFailed}, Wait, []Action{PaceProgress, RefreshConfig}},
	{"after Failed and New, a full initialization is requested", Query, Facts{Failed: true}, Replied, Payload{Word: bootstrap.New}, Trigger, []Action{ProbeData, AskFullInit}},
	{"after Progress, the status is polled, and the prefetched configuration is refreshed", Query, Facts{}, Replied, Payload{Word: bootstrap.Progress}, Wait, []Action{PaceProgress, RefreshConfig}},
	{"after Successful and then Progress, the status is polled", Query, Facts{Word: bootstrap.Successful}, Replied, Payload{Word: bootstrap.Progress}, Wait, []Action{PaceProgress, RefreshConfig}},
	{"after a misspelled status, the status is queried again with a backoff", Query, Facts{}, Replied, Payload{Word: "successful"}, Wait, []Action{PaceSilence}},
	{"after an unknown status, a usable prefetched configuration is not used", Query, Facts{ConfigKept: true}, Replied, Payload{Word: unknownStatus}, Wait, []Action{PaceSilence}},
	{"without a response, the status is queried again with a backoff", Query, Facts{}, NoAnswer, Payload{}, Wait, []Action{PaceSilence}},
	{"without a response after Successful, etcd is not opened", Query, Facts{Word: bootstrap.Successful}, NoAnswer, Payload{}, Wait, []Action{PaceSilence}},

	// Trigger
	{"during an accepted initialization, the status is polled, and the configuration is prefetched", Trigger, Facts{}, Accepted, Payload{}, Wait, []Action{PaceProgress, PrefetchConfig}},
	{"repeated initializations without a result are delayed with a backoff", Trigger, Facts{RequestPending: true}, Accepted, Payload{}, Wait, []Action{PaceFailure, PrefetchConfig}},
	{"no initialization is requested while another process has the data open for writing", Trigger, Facts{}, DataInUse, Payload{}, Wait, []Action{PaceFailure}},
	{"after a rejected request, the status is queried with a backoff", Trigger, Facts{}, NotAccepted, Payload{}, Wait, []Action{PaceFailure}},

	// Wait
	{"after the pause, the status is queried again", Wait, Facts{}, Elapsed, Payload{}, Query, ask},

	// FetchConfig
	{"a fetched configuration is checked, /readyz is served, and the data directory is locked", FetchConfig, Facts{}, ConfigFetched, Payload{Config: some}, FetchConfig, check},
	{"with a valid configuration, the exit record is removed and etcd is opened", FetchConfig, Facts{}, ConfigValid, Payload{}, StartEtcd, []Action{LimitStart, RemoveRecord, OpenEtcd}},
	{"if another wrapper has locked the data directory, the configuration is fetched again after a pause", FetchConfig, Facts{}, DataInUse, Payload{}, FetchConfig, []Action{PaceSilence}},
	{"an invalid configuration ends the run", FetchConfig, Facts{}, ConfigInvalid, Payload{}, Terminating, abort},
	{"if the configuration is unavailable, it is fetched again after a pause", FetchConfig, Facts{}, ConfigUnavailable, Payload{}, FetchConfig, []Action{PaceSilence}},
	{"after the pause, the configuration is fetched", FetchConfig, Facts{}, Elapsed, Payload{}, FetchConfig, fetch},

	// Prefetched configuration
	{"a prefetch that finishes before the result changes no state", BeforeResult, Facts{}, ConfigPrefetched, Payload{Config: some}, sameState, nil},
	{"a usable prefetched configuration that arrives before the fetched one is checked", FetchConfig, Facts{Word: bootstrap.Successful}, ConfigPrefetched, Payload{Config: some, Early: true}, FetchConfig, check},
	{"an unusable prefetched configuration is ignored after Successful", FetchConfig, Facts{Word: bootstrap.Successful}, ConfigPrefetched, Payload{}, FetchConfig, nil},
	{"an unusable prefetched configuration is ignored", FetchConfig, Facts{}, ConfigPrefetched, Payload{}, FetchConfig, nil},

	// StartEtcd
	{"after etcd has joined its cluster, it is watched", StartEtcd, Facts{}, EtcdReady, Payload{}, Serving, []Action{WatchEtcd}},
	{"a failed start of etcd ends the run", StartEtcd, Facts{}, EtcdFailed, Payload{}, Terminating, stop},
	{"the run ends if etcd is not ready in time", StartEtcd, Facts{}, Elapsed, Payload{}, Terminating, stop},

	// Serving
	{"the run ends if etcd stops unexpectedly", Serving, Facts{}, EtcdFailed, Payload{}, Terminating, stop},

	// Stops
	{"SIGTERM before etcd is started sets the short time limit", BeforeEtcd, Facts{}, Signal, sigterm, Terminating, abort},
	{"SIGTERM after etcd is started sets the long time limit", WithEtcd, Facts{}, Signal, sigterm, Terminating, stop},
	{"POST /stop before etcd is started sets the short time limit", BeforeEtcd, Facts{}, StopPosted, Payload{}, Terminating, abort},
	{"POST /stop after etcd is started sets the long time limit", WithEtcd, Facts{}, StopPosted, Payload{}, Terminating, stop},

	// The wrapper's own server
	{"a server failure before etcd is started sets the short time limit", BeforeEtcd, Facts{}, ListenerLost, Payload{}, Terminating, abort},
	{"a server failure after etcd is started sets the long time limit", WithEtcd, Facts{}, ListenerLost, Payload{}, Terminating, stop},

	// Crashes
	{"a crash ends the run, and its reason is recorded", BeforeEnd, Facts{}, Crashed, Payload{}, Terminating, leaveReason},
	{"the reason of a crash while closing etcd is recorded", Terminating, endedByTerm, Crashed, Payload{}, Terminating, []Action{LeaveReason}},

	// Terminating
	{"if etcd was never opened, the exit record is restored", Terminating, endedByTerm, EtcdClosed, Payload{NeverOpened: true}, Terminating, []Action{RestoreRecord}},
	{"a clean close after SIGTERM is recorded", Terminating, endedByTerm, EtcdClosed, Payload{ClosedCleanly: true}, Terminating, []Action{WriteRecord}},
	{"a clean close after POST /stop is recorded", Terminating, endedByStop, EtcdClosed, Payload{ClosedCleanly: true}, Terminating, []Action{WriteRecord}},
	{"a close that was not clean is not recorded", Terminating, endedByTerm, EtcdClosed, Payload{}, Terminated, nil},
	{"a clean close after a failure of etcd is not recorded", Terminating, endedByFailure, EtcdClosed, Payload{ClosedCleanly: true}, Terminated, nil},
	{"a clean close after a server failure is not recorded, because no stop was requested", Terminating, endedByLoss, EtcdClosed, Payload{ClosedCleanly: true}, Terminated, nil},
	{"once the exit record is final, the process exits", Terminating, endedByTerm, RecordSettled, Payload{}, Terminated, nil},
	{"a stop that exceeds its time limit is forced", Terminating, endedByTerm, Elapsed, Payload{}, Terminated, nil},
	{"a second signal forces the exit", Terminating, endedByTerm, Signal, sigint, Terminated, nil},
	{"the first signal after POST /stop is ignored", Terminating, endedByStop, Signal, sigterm, Terminating, nil},
}

// suite contains the expected result of each step, and the expected reactions to events without a row.
var suite = func() statemachinetest.Suite[Facts, Payload] {
	all := statemachinetest.Suite[Facts, Payload]{
		Machine: tested, Final: Terminated, Rest: answerWithoutRow, Given: endedByTerm, Payload: Payload{Err: assert.AnError},
	}
	for _, s := range stepCases {
		all.Cases = append(all.Cases, statemachinetest.Case[Facts, Payload](s))
	}
	return all
}()

// answerWithoutRow returns the expected reaction to an event without a row. Terminated ignores all events, Terminating
// ignores POST /stop and server failures, and all other events are rejected.
func answerWithoutRow(state State, event Event) statemachine.Answer {
	if state == Terminated || (state == Terminating && (event == StopPosted || event == ListenerLost)) {
		return statemachine.Ignore
	}
	return statemachine.Reject
}

func TestTable_everyStep(t *testing.T) { suite.Assert(t) }
