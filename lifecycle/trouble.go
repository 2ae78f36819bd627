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

// Trouble is something that went wrong. The zero value is none.
type Condition struct {
	At      time.Time // the latest time
	Since   time.Time // the first time in a row
	Times   int       // how often in a row
	Ended   time.Time // when the run got further; zero while it lasts
	Class   Class
	Text    string // one sentence, as it is in the log
	Message string // the same, with what to do about it

	on Event // what brought it
}

// Class is what kind of trouble it is: which of the parties to ask, or what to look at first.
type Class string

// The classes. Each trouble has one.
const (
	ClassVolume        Class = "volume"        // another process holds it
	ClassSidecar       Class = "sidecar"       // it gives no answer, or one that can't be used
	ClassValidation    Class = "validation"    // the data directory could not be validated
	ClassConfiguration Class = "configuration" // etcd cannot run with it
	ClassCertificate   Class = "certificate"   // one is expired, unknown or for another name
	ClassTimeout       Class = "timeout"       // no answer came in time
	ClassServer        Class = "server"        // the wrapper's own server cannot serve
	ClassRecord        Class = "record"        // the exit record could not be removed or written
	ClassEtcd          Class = "etcd"          // it did not start, stopped by itself or did not close in order
	ClassCrash         Class = "crash"         // a panic, or what etcd calls fatal
)

// after is the trouble once a row was taken: new, the same as before, or over.
func (t Condition) update(row *Row, payload Payload, now time.Time) Condition {
	found := Condition{At: now, Since: now, Times: 1, Class: classOf(row, payload), Text: hintFor(row).summary(payload), Message: hintFor(row).message(payload), on: row.On}
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

// echoedBy reports whether a row only repeats this trouble: an etcd that failed is not closed in order, either.
func (t Condition) isRepeatedBy(row *Row) bool { return t.on == EtcdFailed && row.On == EtcdClosed }

func (t Condition) isActive() bool { return t.Class != "" && t.Ended.IsZero() }

// overBy reports whether a row that brings no trouble shows that this one is over.
func (t Condition) isResolvedBy(row *Row, payload Payload) bool {
	forward := row.To == StartEtcd || row.To == Serving || row.To == FetchConfig && row.From == Query
	switch {
	case forward:
		return true
	case t.Class == ClassValidation:
		return false // a new attempt is no success
	case t.on == NotAccepted:
		return row.On == Accepted || payload.Word.Running()
	case t.on == NoAnswer, t.on == VolumeBusy, t.on == Replied:
		return row.On == Replied
	default:
		return false
	}
}

func classOf(row *Row, payload Payload) Class {
	switch {
	case row.On == ConfigPrefetched: // it is fetched again, and everybody will hear of it then
		return ""
	case row.When == StatusFailed:
		return ClassValidation
	case row.On == Replied && row.When == Always: // an unknown word
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

// classOfSource is the class of trouble whose cause is not enough to classify it.
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
	case Started, ConfigFetched, ConfigPrefetched, ConfigValid, EtcdReady, RecordSettled, Elapsed, Signal, StopPosted: // they bring no error of their own
	}
	return ""
}

func isCertificateError(err error) bool {
	return isVerificationError(err) || errors.Is(err, bootstrap.ErrCertificates)
}

// unverified reports whether a server's certificate is the cause, which only the sidecar's can be.
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
