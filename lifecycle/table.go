// Package lifecycle is the machine that takes an etcd pod from its first question to the sidecar to the exit record.
//
// Everything about the machine comes from one table (table.go), whose rows may name groups of states (vocabulary.go): the
// looplab/fsm machine that decides whether a move is legal, the diagram, the README's picture and the transition tests.
// A pure core, which package statemachine has for every table, looks up what the table answers; a driver with one goroutine,
// one mailbox and one timer carries the answer out. Whatever can block runs in a goroutine that posts exactly one
// completion event.
//
// The command wires the package to the sidecar, the volume, the exit record and the embedded etcd through the small
// interfaces declared in work.go.
package lifecycle

import "etcd-wrapper/statemachine"

// Table is the lifecycle, with a row for each state of a group. Nobody may change it at run time.
var Table = statemachine.Expand(written)

// entry is a row as it is written here: it may start in a group.
type entry statemachine.Entry

// written is the table as people read and change it. Rows that share From and On are neighbours, all but the last of them
// guarded; the first that holds wins. What has no row is answered by Elsewhere.
var written = []entry{
	{Query, Started, Always, Query, []Action{LockVolume, AskStatus}, "ask where initialization stands, with the volume's lock held"},
	{Query, VolumeBusy, Always, Wait, []Action{PaceLock}, "without the volume's lock nothing may be asked for"},
	{Query, Replied, StatusNew, Trigger, []Action{ProbeData, AskInit}, "the data directory is not validated yet"},
	{Query, Replied, NewAfterFailed, Trigger, []Action{ProbeData, AskFullInit}, "the last validation failed: the next one reads everything"},
	{Query, Replied, ConfigKept, FetchConfig, []Action{EndPrefetch, CheckEtcdConfig, ServeReadyz, LockData}, "the data directory may be opened, and a young configuration is here already"},
	{Query, Replied, StatusSuccessful, FetchConfig, []Action{FetchEtcdConfig}, "the data directory may be opened"},
	{Query, Replied, FailedPermanently, Terminating, []Action{LimitAbort, CloseEtcd}, "no wait and no further try can change the result: somebody has to do something"},
	{Query, Replied, StatusFailed, Wait, []Action{PaceFailure}, "the initialization failed; the log of whoever ran it says why"},
	{Query, Replied, StatusProgress, Wait, []Action{PaceProgress, RefreshConfig}, "the initialization is running"},
	{Query, Replied, Always, Wait, []Action{PaceSilence}, "the sidecar said a word that this program does not know"},
	{Query, NoAnswer, Always, Wait, []Action{PaceSilence}, "the sidecar does not answer"},

	{Trigger, Accepted, RequestRepeated, Wait, []Action{PaceFailure, PrefetchConfig}, "the initialization was asked for once more: of the last one no result came"},
	{Trigger, Accepted, Always, Wait, []Action{PaceProgress, PrefetchConfig}, "the initialization was asked for; the configuration takes time, too"},
	{Trigger, NotAccepted, Always, Wait, []Action{PaceFailure}, "nothing was asked for, or the sidecar may not have heard; its status will tell"},
	{Trigger, DataInUse, Always, Wait, []Action{PaceFailure}, "nothing is asked for while somebody else has the data open for writing; the exit record is gone for good"},

	{Wait, Elapsed, Always, Query, []Action{LockVolume, AskStatus}, "time to ask again"},

	{FetchConfig, ConfigFetched, Always, FetchConfig, []Action{EndPrefetch, CheckEtcdConfig, ServeReadyz, LockData}, "the configuration is here"},
	{FetchConfig, ConfigValid, Always, StartEtcd, []Action{LimitStart, RemoveRecord, OpenEtcd}, "etcd can run with its configuration"},
	{FetchConfig, ConfigInvalid, Always, Terminating, []Action{LimitAbort, CloseEtcd}, "etcd cannot run with its configuration"},
	{FetchConfig, ConfigUnavailable, Always, FetchConfig, []Action{PaceSilence}, "a finished validation is never thrown away"},
	{FetchConfig, DataInUse, Always, FetchConfig, []Action{PaceSilence}, "etcd is not opened while somebody else has locked its data; the exit record is gone for good"},
	{FetchConfig, Elapsed, Always, FetchConfig, []Action{FetchEtcdConfig}, "time to ask for the configuration again"},

	{BeforeResult, ConfigPrefetched, Always, statemachine.Stays, nil, "the early fetch has ended before the result"},
	{FetchConfig, ConfigPrefetched, ConfigKept, FetchConfig, []Action{EndPrefetch, CheckEtcdConfig, ServeReadyz, LockData}, "the early fetch was quicker than the one after the result"},
	{FetchConfig, ConfigPrefetched, Always, FetchConfig, nil, "the early fetch can't be used: it failed, is too old, or the result may have changed the configuration"},

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

	{BeforeEtcd, ListenerLost, Always, Terminating, []Action{LimitAbort, CloseEtcd}, "a wrapper that nobody can ask is of no use"},
	{WithEtcd, ListenerLost, Always, Terminating, []Action{LimitStop, CloseEtcd}, "a member that nobody can ask whether it is ready is of no use"},

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

// Elsewhere answers where Table has no row, one line an event. In Terminated every event is ignored.
var Elsewhere = []Default{
	{On: Started, Answer: Reject, Why: "the process begins once"},
	{On: VolumeBusy, Answer: Reject, Why: "only Query takes the volume's lock"},
	{On: Replied, Answer: Reject, Why: "only Query asks for the status; a late reply is dropped before it comes here"},
	{On: NoAnswer, Answer: Reject, Why: "only Query asks for the status"},
	{On: Accepted, Answer: Reject, Why: "only Trigger asks for an initialization"},
	{On: NotAccepted, Answer: Reject, Why: "only Trigger asks for an initialization"},
	{On: DataInUse, Answer: Reject, Why: "only Trigger and FetchConfig look whether the data is in use"},
	{On: ConfigFetched, Answer: Reject, Why: "only FetchConfig fetches a configuration"},
	{On: ConfigValid, Answer: Reject, Why: "only FetchConfig checks a configuration"},
	{On: ConfigInvalid, Answer: Reject, Why: "only FetchConfig checks a configuration"},
	{On: ConfigUnavailable, Answer: Reject, Why: "only FetchConfig fetches a configuration"},
	{On: ConfigPrefetched, Answer: Reject, Why: "the early fetch is cancelled when a configuration is chosen or the run ends"},
	{On: EtcdReady, Answer: Reject, Why: "only StartEtcd opens etcd"},
	{On: EtcdFailed, Answer: Reject, Why: "etcd runs in StartEtcd and Serving; while it closes, its close tells"},
	{On: EtcdClosed, Answer: Reject, Why: "only Terminating closes etcd"},
	{On: RecordSettled, Answer: Reject, Why: "only Terminating settles the exit record"},
	{On: Elapsed, Answer: Reject, Why: "a timer belongs to the visit that set it and is dropped with it"},
	{On: Signal, Answer: Ignore, Why: "the end is reached"},
	{On: StopPosted, Answer: Ignore, Why: "the stop is under way already"},
	{On: ListenerLost, Answer: Ignore, Why: "the end has begun"},
	{On: Crashed, Answer: Ignore, Why: "the end is reached"},
}
