package lifecycle

// wording is what a row says to the people who run etcd-wrapper: in the log, as the reason of a state, in the termination
// message. Why, in the table, is for those who read the machine.
type hint struct {
	From  Source
	On    Event
	When  Guard
	Say   string // what happens
	Fail  string // in the place of Say when the event brings an error, for a row that does not always
	Next  string // what to do about it, a clause; empty if there is nothing to do
	Cert  string // in the place of Next when the sidecar's certificate is the cause
	Quiet bool   // the row changes nothing: what was said before is still the state's reason
}

// What to do next, where several rows have the same.
const (
	lookAtSidecar = "look at the log of the backup-restore container"
	renewCert     = "renew the sidecar's certificate, or see that --backup-restore-ca-cert-bundle-path names the CA that it is from"
	lookAtEtcd    = "etcd's own lines above say more"
	nothingLost   = "this loses no data: the next start validates in full"
)

// words has one entry for every row of the table, in its order; docs/troubleshooting.md has them all.
var hints = []hint{
	{From: Query, On: Started, Say: "asks how far initialization is"},
	{From: Query, On: VolumeBusy, Say: "the volume cannot be had", Next: "the process that holds it must end first"},
	{From: Query, On: Replied, When: StatusNew, Say: "the data directory is not validated yet"},
	{From: Query, On: Replied, When: NewAfterFailed, Say: "the data directory is not validated yet; as the last validation failed, the next one reads everything"},
	{From: Query, On: Replied, When: ConfigKept, Say: "the data directory is valid, and etcd's configuration is here already"},
	{From: Query, On: Replied, When: StatusSuccessful, Say: "the data directory is valid"},
	{From: Query, On: Replied, When: FailedPermanently, Say: "etcd is not started on these data"},
	{From: Query, On: Replied, When: StatusFailed, Say: "the initialization failed and is tried again; " + lookAtSidecar, Fail: "the initialization failed", Next: "nothing was changed; it is looked at again when a file has"},
	{From: Query, On: Replied, When: StatusProgress, Say: "the initialization is running; a large database takes long"},
	{From: Query, On: Replied, Say: "the sidecar said a word that this version does not know", Next: "see that the versions of etcd-wrapper and of backup-restore fit each other"},
	{From: Query, On: NoAnswer, Say: "no usable answer from the sidecar", Next: "see that the backup-restore container runs, and look at its log", Cert: renewCert},

	{From: Trigger, On: Accepted, When: RequestRepeated, Say: "the initialization was asked for again, because the last one came to no result", Next: lookAtSidecar},
	{From: Trigger, On: Accepted, Say: "the initialization was asked for"},
	{From: Trigger, On: NotAccepted, Say: "the initialization could not be asked for", Next: "it is tried again", Cert: renewCert},
	{From: Trigger, On: DataInUse, Say: "another process has the data open for writing", Next: "it must end first; the exit record is gone for good, so the data is validated in full"},

	{From: Wait, On: Elapsed, Say: "asks again", Quiet: true},

	{From: FetchConfig, On: ConfigFetched, Say: "etcd's configuration is here"},
	{From: FetchConfig, On: ConfigValid, Say: "etcd is started"},
	{From: FetchConfig, On: ConfigInvalid, Say: "etcd cannot run with its configuration", Next: "correct it in the file of --etcd-config-file or, where etcd-druid makes it, in the Etcd resource"},
	{From: FetchConfig, On: ConfigUnavailable, Say: "etcd's configuration cannot be used yet", Next: "the data is validated and is not validated again; see that the backup-restore container runs and that the files which the configuration names are in place", Cert: renewCert},
	{From: FetchConfig, On: DataInUse, Say: "another process uses the data directory", Next: "it must end first; the exit record is gone for good, so the next start validates in full"},
	{From: FetchConfig, On: Elapsed, Say: "asks for the configuration again", Quiet: true},

	{From: BeforeResult, On: ConfigPrefetched, Say: "the early fetch of etcd's configuration has ended", Fail: "etcd's configuration could not be fetched early, which only costs time", Quiet: true},
	{From: FetchConfig, On: ConfigPrefetched, When: ConfigKept, Say: "the early fetch has brought etcd's configuration", Quiet: true},
	{From: FetchConfig, On: ConfigPrefetched, Say: "etcd's configuration was fetched too early to be used", Fail: "etcd's configuration could not be fetched early, which only costs time", Quiet: true},

	{From: StartEtcd, On: EtcdReady, Say: "etcd has joined its cluster"},
	{From: StartEtcd, On: EtcdFailed, Say: "etcd did not start", Next: lookAtEtcd},
	{From: StartEtcd, On: Elapsed, Say: "etcd was not ready within --etcd-ready-timeout", Next: "see whether a quorum of the other members runs and can be reached"},

	{From: Serving, On: EtcdFailed, Say: "etcd stopped without being asked to", Next: lookAtEtcd},

	{From: BeforeEtcd, On: Signal, Say: "stops before etcd was opened"},
	{From: BeforeEtcd, On: StopPosted, Say: "stops before etcd was opened, as POST /stop asks"},
	{From: StartEtcd, On: Signal, Say: "stops while etcd starts"},
	{From: StartEtcd, On: StopPosted, Say: "stops while etcd starts, as POST /stop asks"},
	{From: Serving, On: Signal, Say: "stop asked for"},
	{From: Serving, On: StopPosted, Say: "stop asked for by POST /stop"},

	{From: BeforeEtcd, On: ListenerLost, Say: "the wrapper's own server has ended", Next: "this loses no data: nothing of etcd was opened"},
	{From: WithEtcd, On: ListenerLost, Say: "the wrapper's own server has ended, so nobody can ask whether etcd is ready", Next: nothingLost},

	{From: BeforeEnd, On: Crashed, Say: "etcd-wrapper crashed", Next: "the log and, if the volume had room, its exit_code.crash say why; the next start validates in full"},
	{From: Terminating, On: Crashed, Say: "etcd-wrapper crashed while it ended", Next: "the log and, if the volume had room, its exit_code.crash say why; the next start validates in full"},

	{From: Terminating, On: EtcdClosed, When: NeverOpened, Say: "etcd was never opened; the exit record stays as it was"},
	{From: Terminating, On: EtcdClosed, When: CleanStop, Say: "etcd is closed in order; now the exit record may say so"},
	{From: Terminating, On: EtcdClosed, Say: "etcd is closed; no exit record is written, so the next start validates in full", Fail: "etcd was not closed in order", Next: nothingLost},
	{From: Terminating, On: RecordSettled, Say: "all that the next start needs is on the disk", Fail: "the exit record could not be written", Next: nothingLost},
	{From: Terminating, On: Elapsed, Say: "the stop ran out of its budget and is cut off", Next: "exit_code.crash on the volume says what every goroutine did, if there was room; " + nothingLost},
	{From: Terminating, On: Signal, When: SecondSignal, Say: "a second signal forces the end", Next: nothingLost},
	{From: Terminating, On: Signal, Say: "the stop is under way already", Quiet: true},
}

// spoken is what a row is found by.
type rowKey struct {
	from State
	on   Event
	when Guard
}

// wordsByRow are the words, for each state of a group.
var hintsByRow = func() map[rowKey]hint {
	all := map[rowKey]hint{}
	for _, w := range hints {
		for _, from := range w.From.States() {
			all[rowKey{from, w.On, w.When}] = w
		}
	}
	return all
}()

// wordsFor finds what a row says. A row without an entry, which a test forbids, says what it is for.
func hintFor(row *Row) hint {
	if w, is := hintsByRow[rowKey{row.From, row.On, row.When}]; is {
		return w
	}
	return hint{Say: row.Why}
}

// message is what a row says, with what came with the event and what to do about it.
func (w hint) message(payload Payload) string {
	said, next := w.summary(payload), w.Next
	if w.Cert != "" && isVerificationError(payload.Err) {
		next = w.Cert
	}
	if next != "" && (payload.Err != nil || w.Fail == "") {
		said += "; " + next
	}
	return said
}

// said is the message without what to do.
func (w hint) summary(payload Payload) string {
	said := w.Say
	if payload.Err != nil && w.Fail != "" {
		said = w.Fail
	}
	if payload.Detail != "" {
		said += " (" + payload.Detail + ")"
	}
	if payload.Err != nil {
		said += ": " + payload.Err.Error()
	}
	return said
}
