package datadir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Ways out of a refusal. The commands are tested; docs/runbook.md explains them step by step.
const (
	restoreBackup = "restore a backup, or, in a larger cluster, move the data directory away and replace the member"
	keepDatabase  = "to keep the content of the database, create a new data directory from it with etcd-wrapper etcdutl snapshot " +
		"restore DIR/member/snap/db --skip-hash-check, or, in a larger cluster, move the data directory away and " +
		"replace the member"
	replaceIt  = "move the data directory away and replace the member; the others have the missing entries"
	giveUpTail = "restore a backup, or, in a larger cluster, move the data directory away and replace the member; to discard " +
		"everything after the damage, cut off the log there with truncate --size=POSITION SEGMENT"
	upgradeFirst = "run it with etcd 3.5.26 or a later 3.5 once, until it is ready: that corrects the database"
	snapshotIt   = "run it with etcd 3.5 and --snapshot-count=1 once, write a key and stop it; or, in a cluster of one, " +
		"create a new data directory with etcd-wrapper etcdutl snapshot restore DIR/member/snap/db --skip-hash-check"
	letRead = "make it readable for the user that etcd-wrapper runs as, or name another data-dir"
)

// A reason explains why etcd must not open the data: it has the format of the error, and the way out.
type reason struct{ format, wayOut string }

// reasons lists all reasons, for the test that compares docs/refusals.md with them.
var reasons []reason

// newReason adds a reason. docs/refusals.md lists its format with an ellipsis for each verb.
func newReason(format, wayOut string) reason {
	kind := reason{format: format, wayOut: wayOut}
	reasons = append(reasons, kind)
	return kind
}

// errorf returns the error for one directory, with arguments for the format. A file without read permission has
// another way out.
func (r reason) errorf(args ...any) error {
	cause := fmt.Errorf(r.format, args...)
	if errors.Is(cause, fs.ErrPermission) {
		return &reasonError{cause: cause, wayOut: letRead}
	}
	return &reasonError{cause: cause, wayOut: r.wayOut}
}

// reasonError is an error with a way out.
type reasonError struct {
	cause  error
	wayOut string
}

func (r *reasonError) Error() string { return r.cause.Error() + "; way out: " + r.wayOut }

func (r *reasonError) Unwrap() error { return r.cause }

// Reasons why Verify refuses data.
var (
	unreadableDirectory = newReason("cannot read %s directory: %w", letRead)
	unknownEntry        = newReason("data directory %s has no member directory, but holds %q", "move it away or name another data-dir")
	notASegment         = newReason("%s is not a WAL segment", "move it out of the directory or restore its original name")
	missingSegment      = newReason("%s does not follow WAL segment %s", "put the missing segments back; otherwise, "+keepDatabase)
	missingLog          = newReason("%s holds no WAL segment", "put the log back; otherwise, "+keepDatabase)
	misnamedSegment     = newReason("%s is not a name of a WAL segment, but the file holds entries up to %d, and the log ends at %d",
		"restore its original name, or move it away to continue without these entries")
	missingDatabase = newReason("there is no database %s", "put the database back; otherwise, "+restoreBackup)
	vacantDatabase  = newReason("database %s is empty", "put the database back; otherwise, "+restoreBackup)
	notADatabase    = newReason("database %s is not a regular file", "put a regular file there; otherwise, "+restoreBackup)
	lockedDatabase  = newReason("cannot open database %s: %w", "end that process")
	corruptDatabase = newReason("database %s: %w", restoreBackup)
	outrunLog       = newReason("it has %s, but %s holds no WAL segment", "put the log back; otherwise, "+keepDatabase)
	damagedLog      = newReason("the log is damaged: %w", keepDatabase)
	blockedSnapshot = newReason("%s is a pipe, on which etcd would block forever", "move it out of the directory")
	brokenReplay    = newReason("%s cannot be replayed from entry %d: %w", keepDatabase)
	lostEntries     = newReason("%s ends at entry %d, but %s", keepDatabase)
	otherCluster    = newReason("database %s knows none of the members that the log in %s names: they belong to two clusters",
		"put the one back that belongs to the other; otherwise, "+restoreBackup)
	oldDatabase = newReason("%s has applied entry %d, but there is a snapshot of entry %d in %s", restoreBackup)
	crashed     = newReason("validation crashed: %s", restoreBackup)
)

// Reasons why Inspect refuses data.
var (
	lostLog       = newReason("the log in %q names no voter, although its member has stored data: %w", "put the log back; otherwise, "+keepDatabase)
	lostRestore   = newReason("the log in %q continues a restored database, but %s holds none of it", "restore the backup again")
	cutOff        = newReason("%s: the database was cut off: %w", restoreBackup)
	shortLog      = newReason("the log in %q was cut off or damaged: it ends at index %d, while the database has all entries up to %d", keepDatabase)
	shortFollower = newReason("the log in %q ends at index %d, while the database of this member, one of %d, has all entries up to %d: "+
		"power was lost while it was behind, or the log was cut off or damaged", replaceIt)
	panicked = newReason("etcd panicked on the content of its data directory: %v", restoreBackup)
	lostTail = newReason("the log in %s is damaged at position %d, after index %d, and etcd would drop the acknowledged entries after it%s; "+
		"the database has all entries up to index %d", giveUpTail)
	v2Request = newReason("the log in %q has a request of the v2 API, %s at entry %d: etcd 3.4 writes one for each probe of its "+
		"/health, and etcd 3.6 cannot replay it; etcd is upgraded one minor version at a time", snapshotIt)
	leftoverMember = newReason("database %s has member %s (%q), which was removed from the cluster: etcd 3.5 does not count it, and "+
		"etcd 3.6 would", upgradeFirst)
	leftoverLearner = newReason("database %s has member %s (%q) as a learner, although it was promoted: etcd 3.5 counts its vote, and "+
		"etcd 3.6 would not", upgradeFirst)
	otherMember = newReason("the data directory %q is that of member %q at %q, not of member %q at %q", "mount this member's own volume, or move the data directory away")
)

// PanicError returns the error of an etcd that panicked while it opened its data.
func PanicError(cause any) error { return panicked.errorf(cause) }

// CrashError returns the error of a validation that ended without a result because the data crashed it.
func CrashError(reason string) error { return crashed.errorf(reason) }

// ErrUnable means that the data could not be read, so its state is unknown.
var ErrUnable = errors.New("the data could not be checked")

// IsTransient reports whether an error of a validation is no verdict on the data: it comes from the operating system,
// is ErrUnable, or means that another process is using the data.
func IsTransient(err error) bool {
	_, system := errors.AsType[syscall.Errno](err)
	return system || errors.Is(err, ErrUnable) || errors.Is(err, errLocked)
}

// hasWayOut reports whether an error has a way out.
func hasWayOut(err error) bool {
	_, ok := errors.AsType[*reasonError](err)
	return ok
}

// withWayOut adds a way out to an error that has none. A stopped validation needs none.
func withWayOut(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || hasWayOut(err) {
		return err
	}
	return &reasonError{cause: err, wayOut: restoreBackup}
}
