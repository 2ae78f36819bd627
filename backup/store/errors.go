package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Errors about one object, for errors.Is.
var (
	// ErrExists answers the creation of an object that exists. The existing object stays as it is.
	ErrExists = errors.New("object exists")
	// ErrNotFound answers the read of an object that does not exist. The bucket does exist.
	ErrNotFound = errors.New("object not found")
	// ErrLocked answers the deletion of an object under an object lock, a retention period or a legal hold: retry later.
	ErrLocked = errors.New("object is locked")
)

// A Failure is a reason why the store as a whole does not serve a request. Each may end without a change on our side, so
// callers retry. Any other error, apart from those about one object, is a mistake in the request that a retry cannot mend.
type Failure string

// The failures. They are errors, so errors.Is finds them; FailureOf returns the one in an error.
const (
	// ErrDenied: credentials are missing, wrong or expired, or grant too little. They are read again for the next request,
	// since they may have been renewed.
	ErrDenied Failure = "permission denied"
	// ErrNoBucket: the bucket, container or folder does not exist.
	ErrNoBucket Failure = "bucket not found"
	// ErrUnavailable: the store is unreachable, overloaded, full or broken. RetryAfter returns the pause that it asks for.
	ErrUnavailable Failure = "store unavailable"
	// ErrSkewed: the store refuses requests because this machine's clock differs too much from its own.
	ErrSkewed Failure = "clock differs from the store's"
)

// FailureOf returns the failure in err, or "" if err is nil or means something else. A deadline that passed while the store
// was asked counts as ErrUnavailable.
func FailureOf(err error) Failure {
	if failure, ok := errors.AsType[Failure](err); ok {
		return failure
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return ErrUnavailable
	}
	return ""
}

// Error implements error.
func (f Failure) Error() string { return string(f) }

// NextStep returns what an operator can do about the failure. Errors of the HTTP stores other than ErrUnavailable end with it.
func (f Failure) NextStep() string {
	switch f {
	case ErrDenied:
		return "check that the credentials are valid and grant access"
	case ErrNoBucket:
		return "create it, or correct --backup-store"
	case ErrSkewed:
		return "set this machine's clock"
	case ErrUnavailable:
		return "check that the store is running and can be reached from here"
	default:
		return ""
	}
}

// Unavailable is an ErrUnavailable with its cause.
type Unavailable struct {
	Cause error         // nil if unknown
	After time.Duration // the pause that the store asks for, or 0
}

// Error implements error.
func (u *Unavailable) Error() string {
	if u.Cause == nil {
		return ErrUnavailable.Error()
	}
	return fmt.Sprintf("%v: %v", ErrUnavailable, u.Cause)
}

// Unwrap returns ErrUnavailable and the cause.
func (u *Unavailable) Unwrap() []error {
	return []error{ErrUnavailable, u.Cause}
}

// RetryAfter returns the pause that the store asked for, or 0.
func RetryAfter(err error) time.Duration {
	if unavailable, ok := errors.AsType[*Unavailable](err); ok {
		return unavailable.After
	}
	return 0
}
