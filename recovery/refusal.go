package recovery

import (
	"errors"
	"fmt"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/exitcode"
)

// Refusal is why etcd may not open the data directory.
type Refusal struct {
	// Final says that waiting does not help: somebody has to do something.
	Final bool
	// Configuration says that what is asked for cannot be: a target that is not kept, or a member that is not alone.
	Configuration bool

	sentence string
	cause    error
}

// Error is a sentence that names the way out.
func (r *Refusal) Error() string { return r.sentence }

// Status is what a process exits with that cannot go on; 0 if it should try again.
func (r *Refusal) Status() exitcode.Code {
	switch {
	case r.Configuration:
		return exitcode.BadConfig
	case r.Final:
		return exitcode.EtcdFailed
	default:
		return exitcode.Clean
	}
}

// Unwrap is what the volume, or the store, has to do with it.
func (r *Refusal) Unwrap() error { return r.cause }

// wayOut is what to do about a refusal that is no decision. What is missing here is said by what was wrong itself.
var wayOut = map[Event]string{
	RoomLacking: "make the volume larger, or move away what is not needed",
	Unbuildable: "see etcd-wrapper backup list, and name an earlier target with --restore-to and a --restore-id",
	Grown:       "name all members in initial-cluster; or, if the others are gone for good, say so with --restore-to=latest and a --restore-id",
	Diverged:    "point --backup-store at a place of their own; or, if they are to go on in that store, say so once with --adopt and the id of its cluster; or, if they are to be given up for those in the store, move the data directory away",
	Unproved:    "name an earlier target with --restore-to and a --restore-id",
}

func (r *run) refusal(row *Row, reason string, payload Payload) *Refusal {
	if could := r.could(row.On); could != "" {
		reason += "; " + could
	}
	if out := r.wayOut(row, payload.Err); out != "" {
		reason += "; " + out
	}
	return &Refusal{
		Final: row.On != Broke, Configuration: row.On == Decline, sentence: reason, cause: payload.Err,
	}
}

// Ways out of what the store says of itself, of which nothing comes back before it is in order.
const (
	putNameBack = "put that object back, as from an earlier version of the bucket; or, if the backups in its folder are not wanted, or nobody of yours has made them, " +
		"move all of that folder away, and what comes before is gone on from"
	believe = "add the key to the file of --backup-trusted-keys, or --backup-identities; or, if nobody of yours has signed it, delete it, and of a generation.json all that is in its folder"
)

func (r *run) wayOut(row *Row, cause error) string {
	switch {
	case errors.Is(cause, archive.ErrNameless):
		return putNameBack
	case errors.Is(cause, archive.ErrUnsigned):
		return "give it, or make the data directory with etcd-wrapper restore, and give the cluster that begins with it a place of its own"
	case row.From == Decide && r.core.Facts.Trouble == StoreLocked && !r.kept.known: // so no revision can be named
		return believe
	}
	if row.From == Decide {
		return r.decision.WayOut
	}
	return wayOut[row.On]
}

// could is what would come back if that was wanted.
func (r *run) could(event Event) string {
	if is := r.core.Facts.caseOf(); event != Refuse || is.Asked != AskedNever || is.Store != StoreOurs {
		return ""
	}
	return fmt.Sprintf("%s has %s", r.options.Archive, r.target())
}
