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
var States = []StateInfo{
	{Name: Query, Meaning: "ask how far initialization is", Bound: ByCalls, Deadline: seconds(bootstrap.StatusDeadline) + " for the call"},
	{Name: Trigger, Meaning: "ask for sanity or full validation", Bound: ByCalls, Deadline: seconds(bootstrap.TriggerDeadline) + " for the call"},
	{Name: Wait, Meaning: "wait before asking again", Bound: ByTimer, Deadline: "at most " + seconds(maxPause)},
	{Name: FetchConfig, Meaning: "fetch, store and check etcd's configuration; serve /readyz as it says, lock the data directory", Bound: ByCalls, Deadline: seconds(bootstrap.ConfigDeadline) + " a call, at most " + seconds(maxPause) + " between calls"},
	{Name: StartEtcd, Meaning: "remove the exit record, start the embedded etcd", Bound: ByTimer, Deadline: "--etcd-ready-timeout; 0 waits for ever"},
	{Name: Serving, Meaning: "etcd runs, readiness is watched", Bound: NoBound, Deadline: "none: this is the job"},
	{Name: Terminating, Meaning: "unready, close etcd in order, settle the exit record", Bound: ByTimer, Deadline: seconds(AbortBudget) + " before etcd was started, " + seconds(StopBudget) + " after"},
	{Name: Terminated, Meaning: "the process exits", Bound: AtEnd, Deadline: "final"},
}

// The events. A completion ends the one piece of blocking work that its state started.
const (
	Started           Event = "begun"              // the process has started; fired once
	VolumeBusy        Event = "volume busy"        // completion: the volume's lock cannot be had
	Replied           Event = "replied"            // completion: the sidecar said a status word
	NoAnswer          Event = "no answer"          // completion: the sidecar could not be asked
	Accepted          Event = "accepted"           // completion: the sidecar took the request for an initialization
	NotAccepted       Event = "not accepted"       // completion: it did not, or that is not known
	DataInUse         Event = "data in use"        // completion: somebody else has the data open for writing
	ConfigFetched     Event = "config fetched"     // completion: etcd's configuration is here, asked for after the result
	ConfigValid       Event = "config valid"       // completion: it is stored and checked, and etcd can be opened with it
	ConfigInvalid     Event = "config invalid"     // completion: etcd could not run with it
	ConfigUnavailable Event = "config unavailable" // completion: it, or a certificate file that it names, can't be had now
	ConfigPrefetched  Event = "config prefetched"  // completion of the fetch that runs beside the waiting
	EtcdReady         Event = "etcd ready"         // completion: etcd has joined and answers
	EtcdFailed        Event = "etcd failed"        // completion: etcd did not start, stopped, or lost a listener
	EtcdClosed        Event = "etcd closed"        // completion: nothing of etcd runs any more
	RecordSettled     Event = "record settled"     // completion: the exit record is as it should be, or can't be
	Elapsed           Event = statemachine.Elapsed // the state's timer ran out
	Crashed           Event = "crashed"            // a goroutine panicked, or etcd called a failure fatal
	Signal            Event = "signal"             // SIGTERM or SIGINT
	StopPosted        Event = "stop posted"        // POST /stop
	ListenerLost      Event = "listener lost"      // the wrapper's own port cannot be served any longer
)

// The guards, beside Always. Holds says what they mean.
const (
	StatusNew         Guard = "says New"
	NewAfterFailed    Guard = "says New, after Failed"
	StatusProgress    Guard = "says Progress"
	StatusSuccessful  Guard = "says Successful"
	ConfigKept        Guard = "says Successful, config kept"
	StatusFailed      Guard = "says Failed"
	FailedPermanently Guard = "says Failed, for good"
	RequestRepeated   Guard = "an earlier one came to no result"
	NeverOpened       Guard = "etcd never opened"
	CleanStop         Guard = "stop asked, closed in order"
	SecondSignal      Guard = "second signal"
)

// The actions. Quick ones set the state's timer or begin and end the early fetch; all others may block.
const (
	LockVolume      Action = "lock volume"
	AskStatus       Action = "ask status"
	ProbeData       Action = "probe data" // see that no etcd holds it; one that does ends the exit record for good
	AskInit         Action = "ask initialization"
	AskFullInit     Action = "ask full initialization" // whatever the exit record says
	PrefetchConfig  Action = "prefetch config"         // beside everything else
	FetchEtcdConfig Action = "fetch config"
	CheckEtcdConfig Action = "check config"
	ServeReadyz     Action = "serve readyz"
	LockData        Action = "lock data" // whoever holds its lock ends the exit record for good
	RemoveRecord    Action = "remove record"
	OpenEtcd        Action = "open etcd"
	WatchEtcd       Action = "watch etcd"
	CloseEtcd       Action = "close etcd"
	RestoreRecord   Action = "restore record"
	WriteRecord     Action = "write record"
	LeaveReason     Action = "leave reason"

	RefreshConfig Action = "refresh config" // quick: prefetch once more, unless that is under way or was a moment ago
	EndPrefetch   Action = "end prefetch"   // quick: forget the one that is under way

	PaceProgress Action = "pace progress" // quick: ask again soon, less often the longer it takes
	PaceFailure  Action = "pace failure"  // quick: back off from initializations that fail
	PaceSilence  Action = "pace silence"  // quick: back off from a sidecar that does not answer
	PaceLock     Action = "pace lock"     // quick: try the volume's lock again soon; it costs nothing
	LimitStart   Action = "limit start"   // quick: --etcd-ready-timeout
	LimitAbort   Action = "limit abort"   // quick: the budget of a stop before etcd was started
	LimitStop    Action = "limit stop"    // quick: the budget of a stop after that
)

// The groups. Every state but the two of the end is either BeforeEtcd or WithEtcd.
var (
	// BeforeResult is where this process has not read a result on the data yet.
	BeforeResult = Group{Query, Trigger, Wait}
	// BeforeEtcd is where nothing of etcd runs yet: a stop has nothing to close and leaves the exit record as it was.
	BeforeEtcd = append(slices.Clone(BeforeResult), FetchConfig)
	// WithEtcd is where an etcd may hold the data.
	WithEtcd = Group{StartEtcd, Serving}
	// BeforeEnd is where the end has not begun.
	BeforeEnd = slices.Concat(BeforeEtcd, WithEtcd)
)
