package lifecycle

import (
	_ "embed" // for the diagrams
	"strings"

	"etcd-wrapper/statemachine"
)

// Table is the immutable transition table of the lifecycle, expanded to one row per state.
var Table = statemachine.Expand(written)

// written is the source of the table. Rows with the same From and On are adjacent, and all of them except the last
// have a guard. The first row with a guard that holds is taken. Why is shown to users in the log, in the status and
// as the reason for a state. Elsewhere handles events without a row.
var written = statemachine.Entries{
	{Query, Started, Always, Query, []Action{LockVolume, AskStatus}, "querying the initialization status"},
	{Query, VolumeBusy, Always, Wait, []Action{PaceLock}, "cannot lock the volume"},
	{Query, Replied, StatusNew, Trigger, []Action{ProbeData, AskInit}, "the data directory has not been validated yet"},
	{Query, Replied, NewAfterFailed, Trigger, []Action{ProbeData, AskFullInit}, "the last validation failed; requesting a full validation"},
	{Query, Replied, ConfigKept, FetchConfig, []Action{EndPrefetch, CheckEtcdConfig, ServeReadyz, LockData}, "the data directory is valid; using the prefetched etcd configuration"},
	{Query, Replied, StatusSuccessful, FetchConfig, []Action{FetchEtcdConfig}, "the data directory is valid"},
	{Query, Replied, FailedPermanently, Terminating, []Action{LimitAbort, CloseEtcd}, "refusing to start etcd on this data directory"},
	{Query, Replied, StatusFailed, Wait, []Action{PaceFailure}, "the initialization failed and is being retried; check the log of the backup-restore container"},
	{Query, Replied, StatusProgress, Wait, []Action{PaceProgress, RefreshConfig}, "the initialization is in progress; a large database can take a while"},
	{Query, Replied, Always, Wait, []Action{PaceSilence}, "the sidecar returned an unknown status"},
	{Query, NoAnswer, Always, Wait, []Action{PaceSilence}, "no usable response from the sidecar"},

	{Trigger, Accepted, RequestRepeated, Wait, []Action{PaceFailure, PrefetchConfig}, "the initialization was requested again because the last one returned no result"},
	{Trigger, Accepted, Always, Wait, []Action{PaceProgress, PrefetchConfig}, "the initialization was requested"},
	{Trigger, NotAccepted, Always, Wait, []Action{PaceFailure}, "cannot request the initialization"},
	{Trigger, DataInUse, Always, Wait, []Action{PaceFailure}, "another process has the data open for writing"},

	{Wait, Elapsed, Always, Query, []Action{LockVolume, AskStatus}, "querying the initialization status again"},

	{FetchConfig, ConfigFetched, Always, FetchConfig, []Action{EndPrefetch, CheckEtcdConfig, ServeReadyz, LockData}, "the etcd configuration was fetched"},
	{FetchConfig, ConfigValid, Always, StartEtcd, []Action{LimitStart, RemoveRecord, OpenEtcd}, "starting etcd"},
	{FetchConfig, ConfigInvalid, Always, Terminating, []Action{LimitAbort, CloseEtcd}, "etcd cannot start with this configuration"},
	{FetchConfig, ConfigUnavailable, Always, FetchConfig, []Action{PaceSilence}, "the etcd configuration is not usable yet"},
	{FetchConfig, DataInUse, Always, FetchConfig, []Action{PaceSilence}, "another process is using the data directory"},
	{FetchConfig, Elapsed, Always, FetchConfig, []Action{FetchEtcdConfig}, "fetching the etcd configuration again"},

	{BeforeResult, ConfigPrefetched, Always, statemachine.Stays, nil, "the prefetch of the etcd configuration has finished"},
	{FetchConfig, ConfigPrefetched, ConfigKept, FetchConfig, []Action{EndPrefetch, CheckEtcdConfig, ServeReadyz, LockData}, "using the prefetched etcd configuration"},
	{FetchConfig, ConfigPrefetched, Always, FetchConfig, nil, "the prefetched etcd configuration is not usable"},

	{StartEtcd, EtcdReady, Always, Serving, []Action{WatchEtcd}, "etcd has joined its cluster"},
	{StartEtcd, EtcdFailed, Always, Terminating, []Action{LimitStop, CloseEtcd}, "etcd did not start"},
	{StartEtcd, Elapsed, Always, Terminating, []Action{LimitStop, CloseEtcd}, "etcd did not become ready within --etcd-ready-timeout"},

	{Serving, EtcdFailed, Always, Terminating, []Action{LimitStop, CloseEtcd}, "etcd stopped unexpectedly"},

	{BeforeEtcd, Signal, Always, Terminating, []Action{LimitAbort, CloseEtcd}, "stopping before etcd has started"},
	{BeforeEtcd, StopPosted, Always, Terminating, []Action{LimitAbort, CloseEtcd}, "stopping before etcd has started (requested by POST /stop)"},
	{StartEtcd, Signal, Always, Terminating, []Action{LimitStop, CloseEtcd}, "stopping while etcd is starting"},
	{StartEtcd, StopPosted, Always, Terminating, []Action{LimitStop, CloseEtcd}, "stopping while etcd is starting (requested by POST /stop)"},
	{Serving, Signal, Always, Terminating, []Action{LimitStop, CloseEtcd}, "stop requested"},
	{Serving, StopPosted, Always, Terminating, []Action{LimitStop, CloseEtcd}, "stop requested by POST /stop"},

	{BeforeEtcd, ListenerLost, Always, Terminating, []Action{LimitAbort, CloseEtcd}, "the wrapper's own server has failed"},
	{WithEtcd, ListenerLost, Always, Terminating, []Action{LimitStop, CloseEtcd}, "the wrapper's own server has failed, so readiness can no longer be checked"},

	{BeforeEnd, Crashed, Always, Terminating, []Action{LimitAbort, LeaveReason}, "etcd-wrapper crashed"},
	{Terminating, Crashed, Always, Terminating, []Action{LeaveReason}, "etcd-wrapper crashed while stopping"},

	{Terminating, EtcdClosed, NeverOpened, Terminating, []Action{RestoreRecord}, "etcd was never opened; the exit record is unchanged"},
	{Terminating, EtcdClosed, CleanStop, Terminating, []Action{WriteRecord}, "etcd was closed cleanly; writing the exit record"},
	{Terminating, EtcdClosed, Always, Terminated, nil, "etcd was closed, but no exit record was written; the next start runs a full validation"},
	{Terminating, RecordSettled, Always, Terminated, nil, "everything the next start needs is on disk"},
	{Terminating, Elapsed, Always, Terminated, nil, "the shutdown timed out"},
	{Terminating, Signal, SecondSignal, Terminated, nil, "exit forced by a second signal"},
	{Terminating, Signal, Always, Terminating, nil, "already stopping"},
}

// Elsewhere handles events that have no row in a state. Terminated ignores all events.
var Elsewhere = statemachine.RejectByDefault(Table, statemachine.LateEvents{
	Why: "already stopping", On: []Event{StopPosted, ListenerLost},
})

// Diagram describes how to draw the lifecycle.
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

// Overview returns an SVG of the states and transitions that fits a phone screen. Guards, actions and reasons are
// omitted. States have the id "state_NAME", and arrows have the id "edge_FROM_TO". Each arrow has an empty text
// element of class "badge" for the number of transitions. The page that shows the SVG defines the colours. "make dot"
// generates the layout with Graphviz.
func Overview() string {
	_, svg, _ := strings.Cut(overview, "\n")
	return svg
}
