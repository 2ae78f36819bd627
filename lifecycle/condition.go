package lifecycle

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"time"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
)

// Condition is a failure that may persist. The zero value means that there was no failure.
type Condition struct {
	At      time.Time // last occurrence
	Since   time.Time // time of the first of the consecutive occurrences
	Times   int       // number of consecutive occurrences
	Ended   time.Time // time of the recovery; zero while the failure persists
	Class   Class
	Text    string // one sentence, without the next step
	Message string // Text with the next step

	on Event // event that caused the failure
}

// Class groups conditions by the place to investigate first.
type Class string

const (
	ClassVolume        Class = "volume"        // another process has locked the volume
	ClassSidecar       Class = "sidecar"       // no usable response from the sidecar
	ClassValidation    Class = "validation"    // the data directory could not be validated
	ClassConfiguration Class = "configuration" // etcd cannot start with the configuration
	ClassCertificate   Class = "certificate"   // a certificate is expired, unknown or issued for another name
	ClassTimeout       Class = "timeout"       // no response in time
	ClassServer        Class = "server"        // the wrapper's own server failed
	ClassRecord        Class = "record"        // the exit record could not be removed or written
	ClassEtcd          Class = "etcd"          // etcd failed to start, stopped unexpectedly or was not closed cleanly
	ClassCrash         Class = "crash"         // panic or fatal etcd error
)

// update returns the condition after a transition. A failure starts a new condition or repeats the current one, and a
// transition without a failure may resolve the current one.
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

// isRepeatedBy reports whether a transition is only a consequence of the failure, such as closing etcd after it has
// failed.
func (t Condition) isRepeatedBy(row *Row) bool { return t.on == EtcdFailed && row.On == EtcdClosed }

func (t Condition) isActive() bool { return t.Class != "" && t.Ended.IsZero() }

// isResolvedBy reports whether a transition without a failure ends the condition.
func (t Condition) isResolvedBy(row *Row, payload Payload) bool {
	forward := row.To == StartEtcd || row.To == Serving || row.To == FetchConfig && row.From == Query
	switch {
	case forward:
		return true
	case t.Class == ClassValidation, t.Class == ClassCertificate && t.on == Replied:
		return false // a retry is not a success
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
	case row.On == ConfigPrefetched: // if the failure persists, the next fetch reports it
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

// classOfSource classifies a failure by its event.
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

// isVerificationError reports whether the certificate of a server was rejected. The lifecycle connects only to the
// sidecar.
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
