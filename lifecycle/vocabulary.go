package lifecycle

import (
	_ "embed" // for the diagrams
	"slices"

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
	RequestRepeated   Guard = "request repeated"
	NeverOpened       Guard = "etcd never opened"
	CleanStop         Guard = "stop requested, closed cleanly"
	SecondSignal      Guard = "second signal"
)

// The actions. Quick actions set the timer or control the prefetch. All other actions may block.
const (
	LockVolume      Action = "lock volume"
	AskStatus       Action = "ask status"
	ProbeData       Action = "probe data" // check that no process has the data open; if one has, invalidate the exit record
	AskInit         Action = "ask initialization"
	AskFullInit     Action = "ask full initialization" // request a full validation, regardless of the exit record
	PrefetchConfig  Action = "prefetch config"         // fetch the configuration during the validation, concurrently with all other actions
	FetchEtcdConfig Action = "fetch config"
	CheckEtcdConfig Action = "check config"
	ServeReadyz     Action = "serve readyz"
	LockData        Action = "lock data" // lock the data directory; if another process holds the lock, invalidate the exit record
	RemoveRecord    Action = "remove record"
	OpenEtcd        Action = "open etcd"
	WatchEtcd       Action = "watch etcd"
	CloseEtcd       Action = "close etcd"
	RestoreRecord   Action = "restore record"
	WriteRecord     Action = "write record"
	LeaveReason     Action = "leave reason"

	RefreshConfig Action = "refresh config" // quick: prefetch again, unless a prefetch is in progress or has just finished
	EndPrefetch   Action = "end prefetch"   // quick: cancel the prefetch

	PaceProgress Action = "pace progress" // quick: wait before the next poll; the pauses grow
	PaceFailure  Action = "pace failure"  // quick: back off before the next attempt to initialize
	PaceSilence  Action = "pace silence"  // quick: back off while the sidecar or the configuration is unavailable
	PaceLock     Action = "pace lock"     // quick: wait briefly, because trying to lock the volume is cheap
	LimitStart   Action = "limit start"   // quick: set the time limit of etcd's start (--etcd-ready-timeout)
	LimitAbort   Action = "limit abort"   // quick: set the time limit of a stop before etcd was started
	LimitStop    Action = "limit stop"    // quick: set the time limit of a stop after etcd was started
)

// The groups of states. All states except Terminating and Terminated belong to either BeforeEtcd or WithEtcd.
var (
	// BeforeResult contains the states before the validation has succeeded.
	BeforeResult = Group{Query, Trigger, Wait}
	// BeforeEtcd contains the states before etcd is started. A stop before etcd is started leaves the exit record
	// unchanged.
	BeforeEtcd = append(slices.Clone(BeforeResult), FetchConfig)
	// WithEtcd contains the states in which etcd may have the data open.
	WithEtcd = Group{StartEtcd, Serving}
	// BeforeEnd contains the states before a stop.
	BeforeEnd = slices.Concat(BeforeEtcd, WithEtcd)
)
