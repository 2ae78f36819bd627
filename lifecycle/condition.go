package lifecycle

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"slices"
	"time"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/statemachine"
)

// Condition describes the latest failure of a run, which may persist or have ended. The zero value means that no
// failure has occurred.
type Condition struct {
	At      time.Time // last occurrence
	Since   time.Time // time of the first occurrence
	Times   int       // number of occurrences since Since
	Ended   time.Time // time of the recovery; zero while the failure persists
	Class   Class
	Text    string // a single sentence without the next step
	Message string // Text followed by the next step

	on Event // event that caused the failure
}

// Class groups conditions by the place to investigate first.
type Class string

// Classes of conditions.
const (
	ClassVolume        Class = "volume"        // another process has locked the volume
	ClassSidecar       Class = "sidecar"       // no usable response from the sidecar
	ClassValidation    Class = "validation"    // the data directory could not be validated
	ClassConfiguration Class = "configuration" // etcd cannot start with the configuration
	ClassCertificate   Class = "certificate"   // a certificate has expired, is not trusted or is issued for another name
	ClassTimeout       Class = "timeout"       // no response in time
	ClassServer        Class = "server"        // the wrapper's own server failed
	ClassRecord        Class = "record"        // the exit record could not be removed or written
	ClassEtcd          Class = "etcd"          // etcd failed to start, stopped unexpectedly or was not closed cleanly
	ClassCrash         Class = "crash"         // panic or fatal etcd error
)

// update returns the condition after a transition. A failure either starts a new condition or counts as another
// occurrence of the current condition. A transition without a failure may end the current condition.
func (t Condition) update(row *Row, payload Payload, n notice, now time.Time) Condition {
	found := Condition{At: now, Since: now, Times: 1, Class: classOf(row, payload), Text: n.text, Message: n.message, on: row.On}
	switch {
	case found.Class == "" && t.isActive() && t.isResolvedBy(row, payload):
		t.Ended = now
		return t
	case found.Class == "", t.isRepeatedBy(row):
		return t
	case t.isActive() && t.Class == found.Class && t.on == found.on:
		found.Since, found.Times = t.Since, t.Times+1
	}
	return found
}

// isRepeatedBy reports whether a failed transition is only a consequence of the condition: closing etcd usually fails
// after etcd has failed.
func (t Condition) isRepeatedBy(row *Row) bool { return t.on == EtcdFailed && row.On == EtcdClosed }

func (t Condition) isActive() bool { return t.Class != "" && t.Ended.IsZero() }

// isResolvedBy reports whether a transition without a failure ends the condition.
func (t Condition) isResolvedBy(row *Row, payload Payload) bool {
	forward := row.To == StartEtcd || row.To == Serving || row.To == FetchConfig && row.From == Query
	switch {
	case forward:
		return true
	case t.Class == ClassValidation, t.Class == ClassCertificate && t.on == Replied:
		return false // the retry has not succeeded yet
	case t.on == NotAccepted:
		return row.On == Accepted || payload.Word.Running()
	case t.on == NoAnswer, t.on == VolumeBusy, t.on == Replied:
		return row.On == Replied
	default:
		return false
	}
}

func classOf(row *Row, payload Payload) Class {
	failed := row.When == StatusFailed || row.When == FailedPermanently
	switch {
	case row.On == ConfigPrefetched: // not a failure yet: the configuration is fetched again after the validation
		return ""
	case failed && errors.Is(payload.Err, bootstrap.ErrCertificates):
		return ClassCertificate
	case failed:
		return ClassValidation
	case row.On == Replied && row.When == Always: // unknown status
		return ClassSidecar
	case row.On == Elapsed && (row.To == Terminating || row.To == Terminated):
		return ClassTimeout
	case payload.Err == nil:
		return ""
	case row.On == Crashed:
		return ClassCrash
	case isCertificateError(payload.Err):
		return ClassCertificate
	case isTimeout(payload.Err):
		return ClassTimeout
	default:
		return classOfSource(row.On, payload.Status)
	}
}

// classOfSource classifies a failure by the event that reported it.
func classOfSource(event Event, status exitcode.Code) Class {
	if status == exitcode.BadRecord {
		return ClassRecord
	}
	if status == exitcode.ServerTaken {
		return ClassServer
	}
	switch event {
	case VolumeBusy, DataInUse:
		return ClassVolume
	case ListenerLost:
		return ClassServer
	case ConfigInvalid:
		return ClassConfiguration
	case EtcdFailed, EtcdClosed:
		return ClassEtcd
	case Crashed:
		return ClassCrash
	case Replied, NoAnswer, Accepted, NotAccepted, ConfigUnavailable:
		return ClassSidecar
	case Started, ConfigFetched, ConfigPrefetched, ConfigValid, EtcdReady, RecordSettled, Elapsed, Signal, StopPosted: // events without an error
	}
	return ""
}

func isCertificateError(err error) bool {
	return isVerificationError(err) || errors.Is(err, bootstrap.ErrCertificates)
}

// isVerificationError reports whether the certificate of a server was rejected. The server is always the sidecar,
// because the lifecycle connects to no other server.
func isVerificationError(err error) bool {
	var verification *tls.CertificateVerificationError
	var invalid x509.CertificateInvalidError
	return errors.As(err, &verification) || errors.As(err, &invalid)
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.As(err, &network) && network.Timeout()
}

// A hint adds the next step to the message of a row. If the event has an error, the hint may also replace the
// message.
type hint struct {
	From  statemachine.Source
	On    Event
	When  Guard
	Cause error  // if set, the hint applies only to events with an error that wraps Cause
	Fail  string // if set, replaces the message of the row if the event has an error
	Next  string // next step for the operator
	Cert  string // if set, replaces Next if the sidecar's certificate was rejected
	Quiet bool   // do not show the message as the reason of the state, because the situation has not changed
}

// Next steps shared by more than one row.
const (
	checkSidecarLog = "check the log of the backup-restore container"
	renewCert       = "renew the certificate of the sidecar, or check that --backup-restore-ca-cert-bundle-path contains the CA that issued it"
	checkEtcdLog    = "check the etcd log for the cause"
	noDataLost      = "no data was lost, and the next start runs a full validation"
	otherMustEnd    = "stop that process first; the exit record is now invalid, so the next validation is a full one"
	fetchFailed     = "cannot prefetch the etcd configuration"
	fetchLater      = "fetching it later"
	crashNote       = "see the log and exit_code.crash on the volume; the next start runs a full validation"
)

// hints lists all hints. docs/troubleshooting.md must explain the message of every row and every Fail text.
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
	message string // text followed by the next step, if any
	quiet   bool   // see hint.Quiet
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
