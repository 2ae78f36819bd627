package sidecarstore

import (
	"errors"
	"fmt"
	"io"
)

// What can be wrong with backups, for errors.Is. An error that is none of these comes from the store, or from the context.
var (
	// ErrDamaged says that an object is cut off, altered, or nothing that a sidecar writes.
	ErrDamaged = errors.New("damaged backup")
	// ErrNewer says that a full holds later revisions than the target, whatever its name says: an older full is needed.
	ErrNewer = errors.New("full backup is newer than the target")
	// ErrConflict says that two objects have different changes for one revision: of two clusters, or of one that was put back to
	// an older state in between.
	ErrConflict = errors.New("backups contradict each other")
	// ErrNotKept says that no backup leads to the target.
	ErrNotKept = errors.New("not kept")
)

// GapError says which revisions are in no object. It is an ErrNotKept. The last revision that can be reached is From-1.
type GapError struct {
	From, To      int64  // the first and the last that are missing
	Before, After string // the names of the objects between which they are missing
}

// Error is for people.
func (g *GapError) Error() string {
	return fmt.Sprintf("revisions %d to %d are in no backup: they would be between %s and %s", g.From, g.To, g.Before, g.After)
}

// Unwrap makes it an ErrNotKept.
func (g *GapError) Unwrap() error { return ErrNotKept }

var (
	errSum    = errors.New("the SHA-256 at its end is not that of its content: it is cut off or was altered")
	errSuffix = errors.New("the compression of that suffix is unknown")
	errLarge  = fmt.Errorf("it has an event of more than %d MiB", maxEvent>>20)
)

func damaged(name string, cause error) error {
	if errors.Is(cause, io.EOF) || errors.Is(cause, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %s is cut off", ErrDamaged, name)
	}
	return fmt.Errorf("%w: %s: %w", ErrDamaged, name, cause)
}
