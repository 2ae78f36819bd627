package lifecycle

import (
	"slices"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/statemachine"
)

// The states. Query is the initial one, Terminated the final one.
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

// States describes every state, in the order of a run.
var States = []statemachine.StateInfo{
	{Name: Query, Meaning: "ask for the status of the initialization", Bound: statemachine.ByCalls, Deadline: seconds(bootstrap.StatusDeadline) + " for the call"},
	{Name: Trigger, Meaning: "request a sanity or full validation", Bound: statemachine.ByCalls, Deadline: seconds(bootstrap.TriggerDeadline) + " for the call"},
	{Name: Wait, Meaning: "wait before asking again", Bound: statemachine.ByTimer, Deadline: "max " + seconds(maxPause)},
	{Name: FetchConfig, Meaning: "fetch, store and check etcd's configuration; serve /readyz accordingly, lock the data directory", Bound: statemachine.ByCalls, Deadline: seconds(bootstrap.ConfigDeadline) + " a call, max " + seconds(maxPause) + " between calls"},
	{Name: StartEtcd, Meaning: "remove the exit record, start the embedded etcd", Bound: statemachine.ByTimer, Deadline: "--etcd-ready-timeout; 0 waits forever"},
	{Name: Serving, Meaning: "etcd is running; readiness is checked", Bound: statemachine.NoBound, Deadline: "none"},
	{Name: Terminating, Meaning: "report not ready, close etcd in order, write the exit record", Bound: statemachine.ByTimer, Deadline: seconds(AbortBudget) + " before etcd was started, " + seconds(StopBudget) + " after"},
	{Name: Terminated, Meaning: "the process exits", Bound: statemachine.AtEnd, Deadline: "final"},
}

// The events. A completion ends the one piece of blocking work that its state started.
const (
	Started           Event = "started"            // the process has started; sent once
	VolumeBusy        Event = "volume busy"        // completion: the volume could not be locked
	Replied           Event = "replied"            // completion: the sidecar returned a status
	NoAnswer          Event = "no answer"          // completion: the sidecar did not respond
	Accepted          Event = "accepted"           // completion: the sidecar accepted the request for an initialization
	NotAccepted       Event = "not accepted"       // completion: the request was not accepted, or the response was lost
	DataInUse         Event = "data in use"        // completion: another process has the data open for writing
	ConfigFetched     Event = "config fetched"     // completion: etcd's configuration was fetched after the result
	ConfigValid       Event = "config valid"       // completion: the configuration is stored and valid, and etcd can be opened
	ConfigInvalid     Event = "config invalid"     // completion: etcd cannot run with the configuration
	ConfigUnavailable Event = "config unavailable" // completion: the configuration, or a certificate file in it, is currently unavailable
	ConfigPrefetched  Event = "config prefetched"  // completion: the fetch concurrent with the validation has ended
	EtcdReady         Event = "etcd ready"         // completion: etcd has joined its cluster and responds
	EtcdFailed        Event = "etcd failed"        // completion: etcd did not start, stopped, or lost a listener
	EtcdClosed        Event = "etcd closed"        // completion: no part of etcd is running anymore
	RecordSettled     Event = "record settled"     // completion: the exit record is final, or could not be written
	Elapsed           Event = statemachine.Elapsed // the state's timer has fired
	Crashed           Event = "crashed"            // a goroutine panicked, or etcd logged a fatal error
	Signal            Event = "signal"             // SIGTERM or SIGINT
	StopPosted        Event = "stop posted"        // POST /stop
	ListenerLost      Event = "listener lost"      // the wrapper's own port can no longer be served
)

// The guards other than Always. The variable conditions defines them.
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
	CleanStop         Guard = "stop requested, closed in order"
	SecondSignal      Guard = "second signal"
)

// The actions. Quick ones set the state's timer or start and end the advance fetch; all others may block.
const (
	LockVolume      Action = "lock volume"
	AskStatus       Action = "ask status"
	ProbeData       Action = "probe data" // check that no etcd has the data open; if one has, the exit record is invalid
	AskInit         Action = "ask initialization"
	AskFullInit     Action = "ask full initialization" // regardless of the exit record
	PrefetchConfig  Action = "prefetch config"         // in parallel to everything else
	FetchEtcdConfig Action = "fetch config"
	CheckEtcdConfig Action = "check config"
	ServeReadyz     Action = "serve readyz"
	LockData        Action = "lock data" // if another process holds the lock, the exit record is invalid
	RemoveRecord    Action = "remove record"
	OpenEtcd        Action = "open etcd"
	WatchEtcd       Action = "watch etcd"
	CloseEtcd       Action = "close etcd"
	RestoreRecord   Action = "restore record"
	WriteRecord     Action = "write record"
	LeaveReason     Action = "leave reason"

	RefreshConfig Action = "refresh config" // quick: start another prefetch, unless one is in progress or has just finished
	EndPrefetch   Action = "end prefetch"   // quick: cancel the prefetch in progress

	PaceProgress Action = "pace progress" // quick: poll soon, then less and less frequently
	PaceFailure  Action = "pace failure"  // quick: back off from failing initializations
	PaceSilence  Action = "pace silence"  // quick: back off from a sidecar that does not respond
	PaceLock     Action = "pace lock"     // quick: retry the volume's lock soon, because that is cheap
	LimitStart   Action = "limit start"   // quick: --etcd-ready-timeout
	LimitAbort   Action = "limit abort"   // quick: set the time limit of a stop before etcd was started
	LimitStop    Action = "limit stop"    // quick: set the time limit of a stop after etcd was started
)

// The groups. Every state but Terminating and Terminated is either BeforeEtcd or WithEtcd.
var (
	// BeforeResult contains the states in which this process has not yet read a result of the validation.
	BeforeResult = Group{Query, Trigger, Wait}
	// BeforeEtcd contains the states in which etcd is not running yet. A stop has nothing to close and leaves the
	// exit record unchanged.
	BeforeEtcd = append(slices.Clone(BeforeResult), FetchConfig)
	// WithEtcd contains the states in which etcd may have the data open.
	WithEtcd = Group{StartEtcd, Serving}
	// BeforeEnd contains the states in which no stop has been requested.
	BeforeEnd = slices.Concat(BeforeEtcd, WithEtcd)
)
