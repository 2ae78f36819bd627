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
type Trouble struct {
	At    time.Time
	Class Class
	Text  string // one sentence, as it is in the log
}

// Class is what kind of trouble it is: which of the parties to ask, or what to look at first.
type Class string

// The classes. Each trouble has one.
const (
	OfVolume        Class = "volume"        // another process holds it
	OfSidecar       Class = "sidecar"       // it gives no answer, or one that can't be used
	OfValidation    Class = "validation"    // the data directory could not be validated
	OfConfiguration Class = "configuration" // etcd cannot run with it
	OfCertificate   Class = "certificate"   // one is expired, unknown or for another name
	OfTime          Class = "timeout"       // no answer came in time
	OfServer        Class = "server"        // the wrapper's own server cannot serve
	OfRecord        Class = "record"        // the exit record could not be removed or written
	OfEtcd          Class = "etcd"          // it did not start, stopped by itself or did not close in order
	OfCrash         Class = "crash"         // a panic, or what etcd calls fatal
)

// trouble is what went wrong when the row was taken.
func trouble(row *Row, payload Payload, now time.Time) (Trouble, bool) {
	found := Trouble{At: now, Class: classOf(row, payload), Text: row.Why}
	if payload.Err != nil {
		found.Text = payload.Err.Error()
	}
	return found, found.Class != ""
}

func classOf(row *Row, payload Payload) Class {
	switch {
	case row.When == SaysFailed:
		return OfValidation
	case row.On == Replied && row.When == Always: // an unknown word
		return OfSidecar
	case row.On == Elapsed && (row.To == Terminating || row.To == Terminated):
		return OfTime
	case payload.Err == nil:
		return ""
	case row.On == Crashed:
		return OfCrash
	case aboutCertificate(payload.Err):
		return OfCertificate
	case timedOut(payload.Err):
		return OfTime
	default:
		return classOfSource(row.On, payload.Status)
	}
}

// classOfSource is the class of trouble that its cause does not tell.
func classOfSource(event Event, status exitcode.Code) Class {
	if status == exitcode.BadRecord {
		return OfRecord
	}
	if status == exitcode.ServerTaken {
		return OfServer
	}
	switch event {
	case VolumeBusy, DataInUse:
		return OfVolume
	case ListenerLost:
		return OfServer
	case ConfigInvalid:
		return OfConfiguration
	case EtcdFailed, EtcdClosed:
		return OfEtcd
	case Crashed:
		return OfCrash
	case Replied, NoAnswer, Accepted, NotAccepted, ConfigUnavailable, ConfigPrefetched:
		return OfSidecar
	case Begun, ConfigFetched, ConfigValid, EtcdReady, RecordSettled, Elapsed, Signal, StopPosted: // they bring no error of their own
	}
	return ""
}

func aboutCertificate(err error) bool {
	var verification *tls.CertificateVerificationError
	var invalid x509.CertificateInvalidError
	return errors.As(err, &verification) || errors.As(err, &invalid) || errors.Is(err, bootstrap.ErrCertificates)
}

func timedOut(err error) bool {
	var network net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.As(err, &network) && network.Timeout()
}
