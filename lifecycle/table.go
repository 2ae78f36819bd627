package lifecycle

import (
	_ "embed" // for the diagrams
	"strings"

	"etcd-wrapper/statemachine"
)

// Table is the lifecycle, with a row for each state of a group. It never changes at run time.
var Table = statemachine.Expand(written)

// written is the table in source form. Rows with the same From and On are adjacent, and all but the last have a
// guard. The first row whose guard holds is taken. Users read Why in the log, in the status and as the reason of a
// state. Elsewhere answers the events without a row.
var written = statemachine.Entries{
	{Query, Started, Always, Query, []Action{LockVolume, AskStatus}, "asking for the status of the initialization"},
	{Query, VolumeBusy, Always, Wait, []Action{PaceLock}, "the volume cannot be locked"},
	{Query, Replied, StatusNew, Trigger, []Action{ProbeData, AskInit}, "the data directory is not validated yet"},
	{Query, Replied, NewAfterFailed, Trigger, []Action{ProbeData, AskFullInit}, "the last validation failed; the next one is full"},
	{Query, Replied, ConfigKept, FetchConfig, []Action{EndPrefetch, CheckEtcdConfig, ServeReadyz, LockData}, "the data directory is valid, and etcd's configuration was fetched in advance"},
	{Query, Replied, StatusSuccessful, FetchConfig, []Action{FetchEtcdConfig}, "the data directory is valid"},
	{Query, Replied, FailedPermanently, Terminating, []Action{LimitAbort, CloseEtcd}, "etcd is not started on these data"},
	{Query, Replied, StatusFailed, Wait, []Action{PaceFailure}, "the initialization failed and is retried; check the log of the backup-restore container"},
	{Query, Replied, StatusProgress, Wait, []Action{PaceProgress, RefreshConfig}, "the initialization is running; a large database takes long"},
	{Query, Replied, Always, Wait, []Action{PaceSilence}, "the sidecar returned an unknown status"},
	{Query, NoAnswer, Always, Wait, []Action{PaceSilence}, "no usable answer from the sidecar"},

	{Trigger, Accepted, RequestRepeated, Wait, []Action{PaceFailure, PrefetchConfig}, "the initialization was requested again: the last one returned no result"},
	{Trigger, Accepted, Always, Wait, []Action{PaceProgress, PrefetchConfig}, "the initialization was requested"},
	{Trigger, NotAccepted, Always, Wait, []Action{PaceFailure}, "the initialization could not be requested"},
	{Trigger, DataInUse, Always, Wait, []Action{PaceFailure}, "another process has the data open for writing"},

	{Wait, Elapsed, Always, Query, []Action{LockVolume, AskStatus}, "asking for the status again"},

	{FetchConfig, ConfigFetched, Always, FetchConfig, []Action{EndPrefetch, CheckEtcdConfig, ServeReadyz, LockData}, "etcd's configuration was fetched"},
	{FetchConfig, ConfigValid, Always, StartEtcd, []Action{LimitStart, RemoveRecord, OpenEtcd}, "starting etcd"},
	{FetchConfig, ConfigInvalid, Always, Terminating, []Action{LimitAbort, CloseEtcd}, "etcd cannot run with its configuration"},
	{FetchConfig, ConfigUnavailable, Always, FetchConfig, []Action{PaceSilence}, "etcd's configuration cannot be used yet"},
	{FetchConfig, DataInUse, Always, FetchConfig, []Action{PaceSilence}, "another process is using the data directory"},
	{FetchConfig, Elapsed, Always, FetchConfig, []Action{FetchEtcdConfig}, "asking for the configuration again"},

	{BeforeResult, ConfigPrefetched, Always, statemachine.Stays, nil, "the advance fetch of etcd's configuration has finished"},
	{FetchConfig, ConfigPrefetched, ConfigKept, FetchConfig, []Action{EndPrefetch, CheckEtcdConfig, ServeReadyz, LockData}, "etcd's configuration was fetched in advance"},
	{FetchConfig, ConfigPrefetched, Always, FetchConfig, nil, "the configuration fetched in advance cannot be used"},

	{StartEtcd, EtcdReady, Always, Serving, []Action{WatchEtcd}, "etcd has joined its cluster"},
	{StartEtcd, EtcdFailed, Always, Terminating, []Action{LimitStop, CloseEtcd}, "etcd did not start"},
	{StartEtcd, Elapsed, Always, Terminating, []Action{LimitStop, CloseEtcd}, "etcd was not ready within --etcd-ready-timeout"},

	{Serving, EtcdFailed, Always, Terminating, []Action{LimitStop, CloseEtcd}, "etcd stopped unexpectedly"},

	{BeforeEtcd, Signal, Always, Terminating, []Action{LimitAbort, CloseEtcd}, "stopping before etcd was opened"},
	{BeforeEtcd, StopPosted, Always, Terminating, []Action{LimitAbort, CloseEtcd}, "stopping before etcd was opened, requested by POST /stop"},
	{StartEtcd, Signal, Always, Terminating, []Action{LimitStop, CloseEtcd}, "stopping while etcd starts"},
	{StartEtcd, StopPosted, Always, Terminating, []Action{LimitStop, CloseEtcd}, "stopping while etcd starts, requested by POST /stop"},
	{Serving, Signal, Always, Terminating, []Action{LimitStop, CloseEtcd}, "stop requested"},
	{Serving, StopPosted, Always, Terminating, []Action{LimitStop, CloseEtcd}, "stop requested by POST /stop"},

	{BeforeEtcd, ListenerLost, Always, Terminating, []Action{LimitAbort, CloseEtcd}, "the wrapper's own server has failed"},
	{WithEtcd, ListenerLost, Always, Terminating, []Action{LimitStop, CloseEtcd}, "the wrapper's own server has failed, so readiness can no longer be checked"},

	{BeforeEnd, Crashed, Always, Terminating, []Action{LimitAbort, LeaveReason}, "etcd-wrapper crashed"},
	{Terminating, Crashed, Always, Terminating, []Action{LeaveReason}, "etcd-wrapper crashed while it stopped"},

	{Terminating, EtcdClosed, NeverOpened, Terminating, []Action{RestoreRecord}, "etcd was never opened; the exit record stays as it was"},
	{Terminating, EtcdClosed, CleanStop, Terminating, []Action{WriteRecord}, "etcd was closed in order; writing the exit record"},
	{Terminating, EtcdClosed, Always, Terminated, nil, "etcd is closed; without an exit record the next start validates in full"},
	{Terminating, RecordSettled, Always, Terminated, nil, "everything that the next start needs is on the disk"},
	{Terminating, Elapsed, Always, Terminated, nil, "the stop ran out of its budget and is cut off"},
	{Terminating, Signal, SecondSignal, Terminated, nil, "a second signal forces the exit"},
	{Terminating, Signal, Always, Terminating, nil, "the stop is already in progress"},
}

// Elsewhere answers the events that have no row in a state. Terminated ignores every event.
var Elsewhere = statemachine.RejectByDefault(Table, statemachine.LateEvents{
	Why: "the stop is already in progress", On: []Event{StopPosted, ListenerLost},
})

// Diagram describes how the lifecycle is drawn.
var Diagram = statemachine.Diagram{
	Name: "lifecycle", Source: "etcd-wrapper --dump-fsm", Table: Table, States: States, Initial: Query, Final: Terminated, Aside: Terminating,
	Shapes: map[State]string{
		Serving:    `fillcolor="#dff3e1", color="#2c6e35", `,
		Terminated: `peripheries=2, fillcolor="#f3f3f3", `,
	},
	Defaults: Elsewhere, Picture: picture,
}

//go:embed statemachine.svg
var picture string

//go:embed overview.svg
var overview string

// Overview returns an SVG of the states and the transitions between them. It fits the screen of a phone and omits
// guards, actions and reasons. A state has the id "state_NAME" and an arrow the id "edge_FROM_TO". Each arrow has an
// empty text in an element of the class "badge", for the number of times that it was taken. The page that shows the
// SVG chooses the colours. "make dot" lays it out with Graphviz.
func Overview() string {
	_, svg, _ := strings.Cut(overview, "\n")
	return svg
}
