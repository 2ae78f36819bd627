package datadir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Ways to recover. Tests run the commands, and docs/runbook.md explains them step by step.
const (
	restoreBackup = "restore from a backup or, in a multi-member cluster, move the data directory aside and replace the member"
	keepDatabase  = `create a new data directory from the database with "etcd-wrapper etcdutl snapshot restore ` +
		`DIR/member/snap/db --skip-hash-check" or, in a multi-member cluster, move the data directory aside and ` +
		"replace the member"
	replaceIt  = "move the data directory aside and replace the member; the other members have the missing entries"
	giveUpTail = "restore from a backup or, in a multi-member cluster, move the data directory aside and replace the member; to discard " +
		`everything after the damage, run "truncate --size=POSITION SEGMENT"`
	upgradeFirst = "start etcd 3.5.26 or a later 3.5 release once and wait until it is ready; etcd then corrects the database"
	snapshotIt   = "start etcd 3.5 once with --snapshot-count=1, write a key and stop it; or, in a single-member cluster, " +
		`create a new data directory with "etcd-wrapper etcdutl snapshot restore DIR/member/snap/db --skip-hash-check"`
	letRead = "grant read access to the user that etcd-wrapper runs as, or set a different data-dir"
)

// A reason is a kind of error that keeps etcd from opening the data. It consists of the format of the message and the
// way to recover.
type reason struct{ format, wayOut string }

// reasons lists all reasons for the test that checks docs/refusals.md.
var reasons []reason

// newReason returns a reason and adds it to reasons. docs/refusals.md contains the format with an ellipsis in place
// of each verb.
func newReason(format, wayOut string) reason {
	kind := reason{format: format, wayOut: wayOut}
	reasons = append(reasons, kind)
	return kind
}

// errorf formats the error. If access is denied, the advice is to grant the permission.
func (r reason) errorf(args ...any) error {
	cause := fmt.Errorf(r.format, args...)
	if errors.Is(cause, fs.ErrPermission) {
		return &reasonError{cause: cause, wayOut: letRead}
	}
	return &reasonError{cause: cause, wayOut: r.wayOut}
}

// reasonError is an error with a way to recover.
type reasonError struct {
	cause  error
	wayOut string
}

func (r *reasonError) Error() string { return r.cause.Error() + "; to recover: " + r.wayOut }

func (r *reasonError) Unwrap() error { return r.cause }

// Errors returned by Verify.
var (
	unreadableDirectory = newReason("cannot read %s directory: %w", letRead)
	unknownEntry        = newReason("data directory %s has no member directory but contains %q", "move the contents aside or set a different data-dir")
	notASegment         = newReason("%s is not a WAL segment", "move the file out of the directory or rename it back")
	missingSegment      = newReason("WAL segment missing before %s (the previous segment is %s)", "restore the missing segments; otherwise, "+keepDatabase)
	missingLog          = newReason("%s contains no WAL segments", "restore the original log; otherwise, "+keepDatabase)
	misnamedSegment     = newReason("%s is not named like a WAL segment but contains entries up to %d, and the log ends at %d",
		"rename the file back, or move it aside to continue without these entries")
	missingDatabase = newReason("database %s does not exist", "restore the original database; otherwise, "+restoreBackup)
	vacantDatabase  = newReason("database %s is empty", "restore the original database; otherwise, "+restoreBackup)
	notADatabase    = newReason("database %s is not a regular file", "restore the original database; otherwise, "+restoreBackup)
	lockedDatabase  = newReason("cannot open database %s: %w", "stop that process")
	corruptDatabase = newReason("database %s: %w", restoreBackup)
	outrunLog       = newReason("the database has %s, but %s contains no WAL segments", "restore the original log; otherwise, "+keepDatabase)
	damagedLog      = newReason("the log is damaged: %w", keepDatabase)
	blockedSnapshot = newReason("%s is a named pipe, which would block etcd forever", "move the pipe out of the directory")
	brokenReplay    = newReason("cannot replay %s from entry %d: %w", keepDatabase)
	lostEntries     = newReason("%s ends at entry %d, but %s", keepDatabase)
	otherCluster    = newReason("database %s has none of the members named by the log in %s: they belong to different clusters",
		"restore the matching database or log; otherwise, "+restoreBackup)
	oldDatabase = newReason("%s has applied entries only up to %d, but a snapshot at entry %d exists in %s", restoreBackup)
	crashed     = newReason("validation crashed: %s", restoreBackup)
)

// Errors returned by Inspect.
var (
	lostLog       = newReason("the log in %q has no voters, but this is not a new member: %w", "restore the original log; otherwise, "+keepDatabase)
	lostRestore   = newReason("%s is missing or empty, but the log in %q belongs to a restored database", "restore the backup again")
	cutOff        = newReason("database %s is incomplete: %w", restoreBackup)
	shortLog      = newReason("the log in %q was truncated or damaged: it ends at index %d, but the database has entries up to %d", keepDatabase)
	shortFollower = newReason("the log in %q ends at index %d, but the database of this member (one of %d) has entries up to %d: "+
		"the member lost power while catching up, or the log was truncated or damaged", replaceIt)
	panicked = newReason("etcd panicked while opening the data directory: %v", restoreBackup)
	lostTail = newReason("WAL segment %s is damaged at position %d, after index %d, and etcd would drop the acknowledged entries that follow%s; "+
		"the database has entries up to index %d", giveUpTail)
	v2Request = newReason("the log in %q contains a v2 API request (%s at entry %d), which etcd 3.6 cannot replay: etcd 3.4 logs one for each "+
		"/health probe; upgrade etcd one minor version at a time", snapshotIt)
	leftoverMember = newReason("database %s still lists member %s (%q), which was removed from the cluster: etcd 3.5 ignores it, but "+
		"etcd 3.6 would count it", upgradeFirst)
	leftoverLearner = newReason("database %s still lists member %s (%q) as a learner, but it was promoted: etcd 3.5 counts its vote, but "+
		"etcd 3.6 would not", upgradeFirst)
	otherMember = newReason("the data directory %q belongs to member %q at %q, not to member %q at %q", "mount the volume of this member or move the data directory aside")
)

// PanicError returns the error to report if etcd panicked while opening the data.
func PanicError(cause any) error { return panicked.errorf(cause) }

// CrashError returns the error to report if the data crashed the validation process.
func CrashError(reason string) error { return crashed.errorf(reason) }

// ErrUnable means that the state of the data is unknown because the data could not be read.
var ErrUnable = errors.New("the data could not be validated")

// IsTransient reports whether a validation error does not mean that the data is bad: the error comes from the
// operating system, is ErrUnable, or means that another process is using the data.
func IsTransient(err error) bool {
	_, system := errors.AsType[syscall.Errno](err)
	return system || errors.Is(err, ErrUnable) || errors.Is(err, errLocked)
}

// hasWayOut reports whether an error includes a way to recover.
func hasWayOut(err error) bool {
	_, ok := errors.AsType[*reasonError](err)
	return ok
}

// withWayOut adds a way to recover to an error that does not have one. If ctx is done, the error is returned as is,
// because an interrupted validation does not mean that the data is bad.
func withWayOut(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || hasWayOut(err) {
		return err
	}
	return &reasonError{cause: err, wayOut: restoreBackup}
}
