package lifecycle

import (
	_ "embed" // for the diagrams
	"slices"
	"strings"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/statemachine"
)

// The states, from the initial state Query to the final state Terminated.
const (
	Query       State = "Query"
	Trigger     State = "Trigger"
	Wait        State = "Wait"
	FetchConfig State = "FetchConfig"
	StartEtcd   State = "StartEtcd"
	Serving     State = "Serving"
	Terminating State = "Terminating"
	Terminated  State = "Terminated"
)

// States describes all states in the order of a run.
var States = []statemachine.StateInfo{
	{Name: Query, Meaning: "query the initialization status", Bound: statemachine.ByCalls, Deadline: seconds(bootstrap.StatusDeadline) + " for the call"},
	{Name: Trigger, Meaning: "request a sanity or full validation", Bound: statemachine.ByCalls, Deadline: seconds(bootstrap.TriggerDeadline) + " for the call"},
	{Name: Wait, Meaning: "wait before the next query", Bound: statemachine.ByTimer, Deadline: "max " + seconds(maxPause)},
	{Name: FetchConfig, Meaning: "fetch, store and check the etcd configuration; serve /readyz and lock the data directory", Bound: statemachine.ByCalls, Deadline: seconds(bootstrap.ConfigDeadline) + " a call, max " + seconds(maxPause) + " between calls"},
	{Name: StartEtcd, Meaning: "remove the exit record and start the embedded etcd", Bound: statemachine.ByTimer, Deadline: "--etcd-ready-timeout (0: no limit)"},
	{Name: Serving, Meaning: "etcd is running; readiness is checked", Bound: statemachine.NoBound, Deadline: "none"},
	{Name: Terminating, Meaning: "report not ready, close etcd cleanly, write the exit record", Bound: statemachine.ByTimer, Deadline: seconds(AbortBudget) + " before etcd is started, " + seconds(StopBudget) + " after"},
	{Name: Terminated, Meaning: "the process exits", Bound: statemachine.AtEnd, Deadline: "final"},
}

// The events. A completion ends the only blocking task of a state.
const (
	Started           Event = "started"            // the process has started; sent once
	VolumeBusy        Event = "volume busy"        // completion: the volume could not be locked
	Replied           Event = "replied"            // completion: the sidecar returned a status
	NoAnswer          Event = "no answer"          // completion: the sidecar did not respond
	Accepted          Event = "accepted"           // completion: the sidecar accepted the initialization request
	NotAccepted       Event = "not accepted"       // completion: the request was rejected, or the response was lost
	DataInUse         Event = "data in use"        // completion: another process has the data open for writing
	ConfigFetched     Event = "config fetched"     // completion: the etcd configuration was fetched after the validation result
	ConfigValid       Event = "config valid"       // completion: the configuration is valid and stored, and etcd can be opened
	ConfigInvalid     Event = "config invalid"     // completion: etcd cannot start with the configuration
	ConfigUnavailable Event = "config unavailable" // completion: the configuration or a certificate file is temporarily unavailable
	ConfigPrefetched  Event = "config prefetched"  // completion: the prefetch during validation has finished
	EtcdReady         Event = "etcd ready"         // completion: etcd has joined the cluster and responds
	EtcdFailed        Event = "etcd failed"        // completion: etcd failed to start, stopped or lost a listener
	EtcdClosed        Event = "etcd closed"        // completion: etcd has stopped completely
	RecordSettled     Event = "record settled"     // completion: the exit record is final or could not be written
	Elapsed           Event = statemachine.Elapsed // the timer of the state has fired
	Crashed           Event = "crashed"            // a goroutine panicked, or etcd logged a fatal error
	Signal            Event = "signal"             // SIGTERM or SIGINT
	StopPosted        Event = "stop posted"        // POST /stop
	ListenerLost      Event = "listener lost"      // the wrapper's own server has failed
)

// Guards other than Always; see conditions.
const (
	StatusNew         Guard = "New"
	NewAfterFailed    Guard = "New after Failed"
	StatusProgress    Guard = "Progress"
	StatusSuccessful  Guard = "Successful"
	ConfigKept        Guard = "Successful, config available"
	StatusFailed      Guard = "Failed"
	FailedPermanently Guard = "Failed permanently"
	RequestRepeated   Guard = "repeated without result"
	NeverOpened       Guard = "etcd never opened"
	CleanStop         Guard = "stop requested, closed cleanly"
	SecondSignal      Guard = "second signal"
)

// The actions. Quick actions set the timer or control the prefetch. All other actions may block.
const (
	LockVolume      Action = "lock volume"
	AskStatus       Action = "ask status"
	ProbeData       Action = "probe data" // check that no etcd has the data open; if one has, invalidate the exit record
	AskInit         Action = "ask initialization"
	AskFullInit     Action = "ask full initialization" // regardless of the exit record
	PrefetchConfig  Action = "prefetch config"         // concurrent with all other actions
	FetchEtcdConfig Action = "fetch config"
	CheckEtcdConfig Action = "check config"
	ServeReadyz     Action = "serve readyz"
	LockData        Action = "lock data" // invalidate the exit record if another process holds the lock
	RemoveRecord    Action = "remove record"
	OpenEtcd        Action = "open etcd"
	WatchEtcd       Action = "watch etcd"
	CloseEtcd       Action = "close etcd"
	RestoreRecord   Action = "restore record"
	WriteRecord     Action = "write record"
	LeaveReason     Action = "leave reason"

	RefreshConfig Action = "refresh config" // quick: prefetch again, unless a prefetch is in progress or has just finished
	EndPrefetch   Action = "end prefetch"   // quick: cancel the prefetch

	PaceProgress Action = "pace progress" // quick: poll soon at first, then less and less often
	PaceFailure  Action = "pace failure"  // quick: back off after a failed initialization
	PaceSilence  Action = "pace silence"  // quick: back off if the sidecar does not respond
	PaceLock     Action = "pace lock"     // quick: retry soon, because locking the volume is cheap
	LimitStart   Action = "limit start"   // quick: --etcd-ready-timeout
	LimitAbort   Action = "limit abort"   // quick: set the time limit of a stop before etcd was started
	LimitStop    Action = "limit stop"    // quick: set the time limit of a stop after etcd was started
)

// The groups of states. All states except Terminating and Terminated belong to either BeforeEtcd or WithEtcd.
var (
	// BeforeResult contains the states without a validation result.
	BeforeResult = Group{Query, Trigger, Wait}
	// BeforeEtcd contains the states before etcd is started. A stop before etcd is started leaves the exit record
	// unchanged.
	BeforeEtcd = append(slices.Clone(BeforeResult), FetchConfig)
	// WithEtcd contains the states in which etcd may have the data open.
	WithEtcd = Group{StartEtcd, Serving}
	// BeforeEnd contains the states before a stop.
	BeforeEnd = slices.Concat(BeforeEtcd, WithEtcd)
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
