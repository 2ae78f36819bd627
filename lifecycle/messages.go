package lifecycle

import (
	"errors"
	"slices"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/statemachine"
)

// A hint adds the next step to the message of a row. If the event has an error, the hint may also replace the
// message.
type hint struct {
	From  statemachine.Source
	On    Event
	When  Guard
	Cause error  // if set, the hint applies only to errors that wrap Cause
	Fail  string // replaces the message if the event has an error
	Next  string // next step for the operator
	Cert  string // replaces Next if the sidecar's certificate was rejected
	Quiet bool   // the situation has not changed, so keep the previous message
}

// Next steps shared by more than one row.
const (
	checkSidecarLog = "check the log of the backup-restore container"
	renewCert       = "renew the certificate of the sidecar, or check that --backup-restore-ca-cert-bundle-path contains the CA that issued it"
	checkEtcdLog    = "see the etcd log above"
	noDataLost      = "no data was lost, and the next start runs a full validation"
	otherMustEnd    = "stop that process first; the exit record is now invalid, so the next validation is a full one"
	fetchFailed     = "cannot prefetch the etcd configuration"
	fetchLater      = "fetching it later"
	crashNote       = "see the log and exit_code.crash on the volume; the next start runs a full validation"
)

// hints lists all hints. docs/troubleshooting.md explains every message.
var hints = []hint{
	{From: Query, On: VolumeBusy, Cause: bootstrap.ErrVolumeBusy, Next: "waiting for that process to exit"},
	{From: Query, On: Replied, When: StatusFailed, Cause: bootstrap.ErrCertificates, Fail: "the etcd configuration is not usable yet", Next: "fix the file named in the error; retrying"},
	{From: Query, On: Replied, When: StatusFailed, Fail: "the initialization failed", Next: "no data was changed; retrying when a file changes"},
	{From: Query, On: Replied, Next: "check that the etcd-wrapper and backup-restore versions are compatible"},
	{From: Query, On: NoAnswer, Next: "check the status and the log of the backup-restore container", Cert: renewCert},

	{From: Trigger, On: Accepted, When: RequestRepeated, Next: checkSidecarLog},
	{From: Trigger, On: NotAccepted, Next: "retrying", Cert: renewCert},
	{From: Trigger, On: DataInUse, Next: otherMustEnd},

	{From: Wait, On: Elapsed, Quiet: true},

	{From: FetchConfig, On: ConfigInvalid, Next: "fix the file set by --etcd-config-file or, with etcd-druid, the Etcd resource"},
	{From: FetchConfig, On: ConfigUnavailable, Next: "the validation result is kept; check that the backup-restore container is running and that the files named in the configuration exist", Cert: renewCert},
	{From: FetchConfig, On: DataInUse, Next: otherMustEnd},
	{From: FetchConfig, On: Elapsed, Quiet: true},

	{From: BeforeResult, On: ConfigPrefetched, Fail: fetchFailed, Next: fetchLater, Quiet: true},
	{From: FetchConfig, On: ConfigPrefetched, When: ConfigKept, Quiet: true},
	{From: FetchConfig, On: ConfigPrefetched, Fail: fetchFailed, Next: fetchLater, Quiet: true},

	{From: StartEtcd, On: EtcdFailed, Next: checkEtcdLog},
	{From: StartEtcd, On: Elapsed, Next: "check that a quorum of the other members is running and reachable"},
	{From: Serving, On: EtcdFailed, Next: checkEtcdLog},

	{From: BeforeEtcd, On: ListenerLost, Next: "no data was lost; etcd was not running"},
	{From: WithEtcd, On: ListenerLost, Next: noDataLost},
	{From: BeforeEnd, On: Crashed, Next: crashNote},

	{From: Terminating, On: Crashed, Next: crashNote},
	{From: Terminating, On: EtcdClosed, Fail: "etcd was not closed cleanly", Next: noDataLost},
	{From: Terminating, On: RecordSettled, Fail: "the exit record could not be written", Next: noDataLost},
	{From: Terminating, On: Elapsed, Next: "see the goroutine stacks in exit_code.crash on the volume; " + noDataLost},
	{From: Terminating, On: Signal, When: SecondSignal, Next: noDataLost},
	{From: Terminating, On: Signal, Quiet: true},
}

// fits reports whether the hint applies to a row.
func (h hint) fits(row *Row) bool {
	return h.On == row.On && h.When == row.When && slices.Contains(h.From.States(), row.From)
}

// hintFor returns the first hint that applies to a row and an error. Most rows have no hint.
func hintFor(row *Row, err error) hint {
	for _, h := range hints {
		if h.fits(row) && (h.Cause == nil || errors.Is(err, h.Cause)) {
			return h
		}
	}
	return hint{}
}

// A notice is the text that users see about a transition.
type notice struct {
	text    string // message of the row with the details of the event
	message string // text followed by the next step
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
