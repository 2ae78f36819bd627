package lifecycle

import (
	"errors"
	"slices"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/statemachine"
)

// hint extends the sentence of a row for operators. It adds the next step, and may replace the sentence if the event
// carries an error.
type hint struct {
	From  statemachine.Source
	On    Event
	When  Guard
	Cause error  // if set, the hint applies only to errors that wrap it
	Fail  string // replaces the row's sentence if the event carries an error
	Next  string // next step for an operator, as a clause
	Cert  string // replaces Next if the cause is the certificate of the sidecar
	Quiet bool   // the row changes nothing, so the reason of the state is kept
}

// Next steps of several rows.
const (
	checkSidecarLog = "check the log of the backup-restore container"
	renewCert       = "renew the sidecar's certificate, or check that --backup-restore-ca-cert-bundle-path names the CA that issued it"
	checkEtcdLog    = "see etcd's own log lines above"
	noDataLost      = "no data are lost: the next start validates in full"
	otherMustEnd    = "stop it first; the exit record is void, so the next validation is full"
	fetchFailed     = "fetching etcd's configuration in advance failed, which only costs time"
	crashNote       = "see the log and, if the volume had room, exit_code.crash; the next start validates in full"
)

// hints lists the rows that need more than their sentence. docs/troubleshooting.md explains every message.
var hints = []hint{
	{From: Query, On: VolumeBusy, Cause: bootstrap.ErrVolumeBusy, Next: "the process that holds it must end first"},
	{From: Query, On: Replied, When: StatusFailed, Cause: bootstrap.ErrCertificates, Fail: "etcd's configuration cannot be used yet", Next: "repair the file that the cause names; retrying"},
	{From: Query, On: Replied, When: StatusFailed, Fail: "the initialization failed", Next: "nothing was changed; retrying when a file changes"},
	{From: Query, On: Replied, Next: "check that the versions of etcd-wrapper and of backup-restore are compatible"},
	{From: Query, On: NoAnswer, Next: "check that the backup-restore container is running, and its log", Cert: renewCert},

	{From: Trigger, On: Accepted, When: RequestRepeated, Next: checkSidecarLog},
	{From: Trigger, On: NotAccepted, Next: "retrying", Cert: renewCert},
	{From: Trigger, On: DataInUse, Next: otherMustEnd},

	{From: Wait, On: Elapsed, Quiet: true},

	{From: FetchConfig, On: ConfigInvalid, Next: "correct it in the file of --etcd-config-file or, if etcd-druid generates it, in the Etcd resource"},
	{From: FetchConfig, On: ConfigUnavailable, Next: "the result of the validation is kept; check that the backup-restore container is running and that the files named in the configuration exist", Cert: renewCert},
	{From: FetchConfig, On: DataInUse, Next: otherMustEnd},
	{From: FetchConfig, On: Elapsed, Quiet: true},

	{From: BeforeResult, On: ConfigPrefetched, Fail: fetchFailed, Quiet: true},
	{From: FetchConfig, On: ConfigPrefetched, When: ConfigKept, Quiet: true},
	{From: FetchConfig, On: ConfigPrefetched, Fail: fetchFailed, Quiet: true},

	{From: StartEtcd, On: EtcdFailed, Next: checkEtcdLog},
	{From: StartEtcd, On: Elapsed, Next: "check that a quorum of the other members is running and reachable"},
	{From: Serving, On: EtcdFailed, Next: checkEtcdLog},

	{From: BeforeEtcd, On: ListenerLost, Next: "no data are lost: etcd was not opened"},
	{From: WithEtcd, On: ListenerLost, Next: noDataLost},
	{From: BeforeEnd, On: Crashed, Next: crashNote},

	{From: Terminating, On: Crashed, Next: crashNote},
	{From: Terminating, On: EtcdClosed, Fail: "etcd was not closed in order", Next: noDataLost},
	{From: Terminating, On: RecordSettled, Fail: "the exit record could not be written", Next: noDataLost},
	{From: Terminating, On: Elapsed, Next: "exit_code.crash on the volume has the stack of every goroutine, if there was room; " + noDataLost},
	{From: Terminating, On: Signal, When: SecondSignal, Next: noDataLost},
	{From: Terminating, On: Signal, Quiet: true},
}

// fits reports whether the hint is for a row.
func (h hint) fits(row *Row) bool {
	return h.On == row.On && h.When == row.When && slices.Contains(h.From.States(), row.From)
}

// hintFor returns the first hint of a row that fits the error of its event; most rows have none.
func hintFor(row *Row, err error) hint {
	for _, h := range hints {
		if h.fits(row) && (h.Cause == nil || errors.Is(err, h.Cause)) {
			return h
		}
	}
	return hint{}
}

// notice is the text that users see when a row is taken.
type notice struct {
	text    string // sentence of the row, with the details of the event
	message string // text with the next step
	quiet   bool
}

func noticeFor(row *Row, payload Payload) notice {
	h := hintFor(row, payload.Err)
	text, next := row.Why, h.Next
	if payload.Err != nil && h.Fail != "" {
		text = h.Fail
	}
	if payload.Detail != "" {
		text += " (" + payload.Detail + ")"
	}
	if payload.Err != nil {
		text += ": " + payload.Err.Error()
	}
	if h.Cert != "" && isVerificationError(payload.Err) {
		next = h.Cert
	}
	message := text
	if next != "" && (payload.Err != nil || h.Fail == "") {
		message += "; " + next
	}
	return notice{text, message, h.Quiet}
}
