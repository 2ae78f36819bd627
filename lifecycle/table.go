package lifecycle

// Row is one transition: in From, when On happens and When holds, go To and Do the actions. Why says it in words for
// people. Rows hold names only, so that they can be compared, drawn and mutated.
type Row struct {
	From State    `json:"from"`
	On   Event    `json:"on"`
	When Guard    `json:"when,omitempty"`
	To   State    `json:"to"`
	Do   []Action `json:"do,omitempty"`
	Why  string   `json:"why"`
}

// Table is the lifecycle, with a row for each state of a group. Nobody may change it at run time.
var Table = expand(written)

// written is the table as people read and change it. Rows that share From and On stand together, all but the last of them
// guarded; the first that holds wins. What has no row is answered by Elsewhere.
var written = []entry{
	{Query, Begun, Always, Query, []Action{LockVolume, AskStatus}, "ask where initialization stands, with the volume's lock held"},
	{Query, VolumeBusy, Always, Wait, []Action{PaceLock}, "without the volume's lock nothing may be asked for"},
	{Query, Replied, SaysNew, Trigger, []Action{ProbeData, AskInit}, "the data directory is not validated yet"},
	{Query, Replied, ConfigKept, FetchConfig, []Action{CheckEtcdConfig}, "the data directory may be opened, and the configuration is here already"},
	{Query, Replied, SaysSuccessful, FetchConfig, []Action{FetchEtcdConfig, CheckEtcdConfig}, "the data directory may be opened"},
	{Query, Replied, SaysFailed, Wait, []Action{PaceFailure}, "the initialization failed; the log of whoever ran it says why"},
	{Query, Replied, SaysProgress, Wait, []Action{PaceProgress}, "the initialization is running"},
	{Query, Replied, Always, Wait, []Action{PaceSilence}, "the sidecar said a word that this program does not know"},
	{Query, NoAnswer, Always, Wait, []Action{PaceSilence}, "the sidecar does not answer"},

	{Trigger, Accepted, Always, Wait, []Action{PaceProgress, PrefetchConfig}, "the initialization was asked for; the configuration takes time, too"},
	{Trigger, NotAccepted, Always, Wait, []Action{PaceFailure}, "nothing was asked for, or the sidecar may not have heard; its status will tell"},

	{Wait, Elapsed, Always, Query, []Action{LockVolume, AskStatus}, "time to ask again"},

	{FetchConfig, ConfigValid, Always, StartEtcd, []Action{ServeReadyz, LimitStart, RemoveRecord, OpenEtcd}, "etcd can run with its configuration"},
	{FetchConfig, ConfigInvalid, Always, Terminating, []Action{LimitAbort, CloseEtcd}, "etcd cannot run with its configuration"},
	{FetchConfig, ConfigUnavailable, Always, FetchConfig, []Action{PaceSilence}, "a finished validation is never thrown away"},
	{FetchConfig, Elapsed, Always, FetchConfig, []Action{FetchEtcdConfig, CheckEtcdConfig}, "time to ask for the configuration again"},

	{BeforeVerdict, ConfigPrefetched, Always, stays, nil, "the early fetch has ended before the verdict"},
	{FetchConfig, ConfigPrefetched, ConfigKept, FetchConfig, []Action{CheckEtcdConfig}, "the early fetch was quicker than the one after the verdict"},
	{FetchConfig, ConfigPrefetched, Always, FetchConfig, nil, "the early fetch can't be used: only a new cluster of one has its configuration before the verdict"},

	{StartEtcd, EtcdReady, Always, Serving, []Action{WatchEtcd}, "etcd has joined its cluster"},
	{StartEtcd, EtcdFailed, Always, Terminating, []Action{LimitStop, CloseEtcd}, "etcd did not start"},
	{StartEtcd, Elapsed, Always, Terminating, []Action{LimitStop, CloseEtcd}, "etcd was not ready within --etcd-ready-timeout"},

	{Serving, EtcdFailed, Always, Terminating, []Action{LimitStop, CloseEtcd}, "etcd stopped without being asked to"},

	{BeforeEtcd, Signal, Always, Terminating, []Action{LimitAbort, CloseEtcd}, "stop before etcd was opened"},
	{BeforeEtcd, StopPosted, Always, Terminating, []Action{LimitAbort, CloseEtcd}, "stop before etcd was opened"},
	{StartEtcd, Signal, Always, Terminating, []Action{LimitStop, CloseEtcd}, "stop while etcd starts"},
	{StartEtcd, StopPosted, Always, Terminating, []Action{LimitStop, CloseEtcd}, "stop while etcd starts"},
	{Serving, Signal, Always, Terminating, []Action{LimitStop, CloseEtcd}, "stop asked for"},
	{Serving, StopPosted, Always, Terminating, []Action{LimitStop, CloseEtcd}, "stop asked for"},

	{BeforeEnd, Crashed, Always, Terminating, []Action{LimitAbort, LeaveReason}, "a crash leaves its reason behind"},
	{Terminating, Crashed, Always, Terminating, []Action{LeaveReason}, "a crash leaves its reason behind"},

	{Terminating, EtcdClosed, NeverOpened, Terminating, []Action{RestoreRecord}, "the exit record stays as it was"},
	{Terminating, EtcdClosed, CleanStop, Terminating, []Action{WriteRecord}, "etcd is closed: now the exit record may say so"},
	{Terminating, EtcdClosed, Always, Terminated, nil, "no clean exit record: the next start validates in full"},
	{Terminating, RecordSettled, Always, Terminated, nil, "nothing is left to do"},
	{Terminating, Elapsed, Always, Terminated, nil, "the stop ran out of its budget"},
	{Terminating, Signal, SecondSignal, Terminated, nil, "a second signal forces the end"},
	{Terminating, Signal, Always, Terminating, nil, "the stop is under way already"},
}

// Default is the answer to an event in every state that has no row for it.
type Default struct {
	On     Event  `json:"on"`
	Answer Answer `json:"answer"`
	Why    string `json:"why"`
}

// Elsewhere answers where Table has no row, one line an event. In Terminated every event is ignored.
var Elsewhere = []Default{
	{Begun, Reject, "the process begins once"},
	{VolumeBusy, Reject, "only Query takes the volume's lock"},
	{Replied, Reject, "only Query asks for the status; a late reply is dropped before it comes here"},
	{NoAnswer, Reject, "only Query asks for the status"},
	{Accepted, Reject, "only Trigger asks for an initialization"},
	{NotAccepted, Reject, "only Trigger asks for an initialization"},
	{ConfigValid, Reject, "only FetchConfig checks a configuration"},
	{ConfigInvalid, Reject, "only FetchConfig checks a configuration"},
	{ConfigUnavailable, Reject, "only FetchConfig fetches a configuration"},
	{ConfigPrefetched, Reject, "the early fetch is cancelled when etcd starts or the run ends"},
	{EtcdReady, Reject, "only StartEtcd opens etcd"},
	{EtcdFailed, Reject, "etcd runs in StartEtcd and Serving; while it closes, its close tells"},
	{EtcdClosed, Reject, "only Terminating closes etcd"},
	{RecordSettled, Reject, "only Terminating settles the exit record"},
	{Elapsed, Reject, "a timer belongs to the visit that set it and is dropped with it"},
	{Signal, Ignore, "the end is reached"},
	{StopPosted, Ignore, "the stop is under way already"},
	{Crashed, Ignore, "the end is reached"},
}
