package store

import (
	"errors"
	"fmt"
	"time"
)

// What can be wrong with a request, for errors.Is. Everything else is a fault of the request that trying again won't mend.
var (
	// ErrExists is the answer to creating an object that is there. It stays as it is.
	ErrExists = errors.New("object exists")
	// ErrNotFound is the answer to reading an object that is absent from a store that is there.
	ErrNotFound = errors.New("object not found")
	// ErrLocked says that an object lock, a retention period or a legal hold keeps the object from being deleted: later.
	ErrLocked = errors.New("object is locked")
	// ErrDenied says that there are no credentials, that they are wrong or expired, or that they don't permit this. They are
	// looked for again at the next request, since they may have been renewed.
	ErrDenied = errors.New("permission denied")
	// ErrNoBucket says that the bucket, container or folder is not there.
	ErrNoBucket = errors.New("bucket not found")
	// ErrUnavailable says that the store cannot be reached, is overloaded, full or broken: the same request may succeed later.
	// RetryAfter has what the store said about when.
	ErrUnavailable = errors.New("store unavailable")
	// ErrSkewed says that the store refused a request because this machine's clock and its own differ too much.
	ErrSkewed = errors.New("clock differs from the store's")
)

// Unavailable is an ErrUnavailable with its cause.
type Unavailable struct {
	Cause error         // nil if there is nothing more to say
	After time.Duration // how long the store asks to be left alone; 0 unless it said so
}

// Error is for people.
func (u *Unavailable) Error() string {
	if u.Cause == nil {
		return ErrUnavailable.Error()
	}
	return fmt.Sprintf("%v: %v", ErrUnavailable, u.Cause)
}

// Unwrap makes it an ErrUnavailable, and its cause.
func (u *Unavailable) Unwrap() []error {
	if u.Cause == nil {
		return []error{ErrUnavailable}
	}
	return []error{ErrUnavailable, u.Cause}
}

// RetryAfter is how long the store asked to be left alone; 0 unless it said so.
func RetryAfter(err error) time.Duration {
	var unavailable *Unavailable
	if errors.As(err, &unavailable) {
		return unavailable.After
	}
	return 0
}
