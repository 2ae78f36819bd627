// Package verification tests backups by restoring them. Verify fetches and decrypts a backup, rebuilds the database
// next to the database in use, checks the pages with bbolt, and compares the hash with etcd's own. Verification runs
// in a separate process to leave resources for etcd. The package is used by the backup writer and `backup verify`.
package verification

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/internal/child"
	"etcd-wrapper/internal/disk"
	"etcd-wrapper/internal/steady"
)

// A Job selects the backup to restore. If Revision is the revision of the full snapshot, only the snapshot is
// restored. For any other revision, the best path through the generation is restored, which may start at a different
// full snapshot.
type Job struct {
	Generation int
	Full       string // name of a full snapshot
	Revision   int64  // revision to restore
}

// errDiffers means that the restored database is wrong even though all objects are intact.
var errDiffers = errors.New("the restored database differs from the original")

// Verify restores a backup in the scratch directory. Verify deletes the directory with its content before and after
// the restore. The result reports whether the restore succeeded; the caller stores the result. An error means that
// the outcome is still unknown, for example if the store is unreachable, the volume is too small, or an identity
// is missing.
func Verify(ctx context.Context, a *archive.Archive, job Job, scratch string) (archive.Result, error) {
	started := time.Now()
	path, err := job.find(ctx, a)
	if err != nil {
		return archive.Result{}, fmt.Errorf("cannot verify a backup: %w", err)
	}
	result := newResult(path, archive.Verified)
	result.Hash, err = restoreBackup(ctx, a, path, scratch)
	switch {
	case err == nil && !result.Segments:
		result.Database = path.Full.Database
	case err != nil && !isBackupFault(ctx, a, path, err):
		return archive.Result{}, fmt.Errorf("cannot verify the backup of revision %d: %w", path.Revision, err)
	case err != nil:
		result.Outcome, result.Why = archive.Failed, err.Error()+describeAlternative(ctx, a, path, err)
	}
	result.At, result.Seconds = started, time.Since(started).Seconds()
	return result, nil
}

func newResult(path archive.Path, outcome archive.Outcome) archive.Result {
	return archive.Result{
		Cluster: path.Full.Cluster, Generation: path.Full.Generation, Full: path.Full.Name(), Revision: path.Revision,
		Segments: path.Revision != path.Full.Revision, Outcome: outcome,
	}
}

// find returns the path to restore. It reads the manifest of the full snapshot, because a child process receives only
// the name.
func (j Job) find(ctx context.Context, a *archive.Archive) (archive.Path, error) {
	full, err := a.Full(ctx, j.Generation, j.Full)
	if err != nil {
		return archive.Path{}, err
	}
	if full.Revision != j.Revision {
		return a.Find(ctx, archive.Target{Revision: j.Revision, Generation: j.Generation})
	}
	return archive.Path{Generation: archive.Generation{Number: full.Generation, Cluster: full.Cluster}, Full: full, Revision: full.Revision}, nil
}

// describeAlternative returns a clause about the next best backup, according to the listing, or "" if the archive is
// not the cause of the error.
func describeAlternative(ctx context.Context, a *archive.Archive, path archive.Path, err error) string {
	other, none := a.Fallback(ctx, path, restore.Blamed(err, path))
	switch lost := path.Revision - other.Revision; {
	case errors.Is(none, archive.ErrNotKept):
		return fmt.Sprintf("; no other backup contains revision %d", path.Revision)
	case none != nil:
		return ""
	case lost > 0:
		return fmt.Sprintf("; full snapshot %s restores only up to revision %d (revisions lost: %d)", other.Full.Name(), other.Revision, lost)
	default:
		return fmt.Sprintf("; full snapshot %s can also restore revision %d", other.Full.Name(), other.Revision)
	}
}

// isBackupFault reports whether the backup is the cause of an error. If an object is missing, the backup is the
// cause, unless the manifest is missing too, which means that the backup was deleted in the meantime.
func isBackupFault(ctx context.Context, a *archive.Archive, path archive.Path, err error) bool {
	for _, about := range []error{errDiffers, restore.ErrDamaged, format.ErrDamaged, format.ErrUntrusted, archive.ErrHole, archive.ErrForeign} {
		if errors.Is(err, about) {
			return true
		}
	}
	if !errors.Is(err, store.ErrNotFound) {
		return false
	}
	_, gone := a.Full(ctx, path.Full.Generation, path.Full.Name())
	return gone == nil
}

// restoreBackup restores and checks the database. restoreBackup returns the etcd hash that the database was compared
// with, or nil if there is none.
func restoreBackup(ctx context.Context, a *archive.Archive, path archive.Path, scratch string) (_ *format.Hash, err error) {
	if err := os.RemoveAll(scratch); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	database := filepath.Join(scratch, "db")
	defer func() { _ = steady.Remove(ctx, database) }() // removes the file slowly, because it may be as large as the database of the running etcd
	options := restore.Options{Scratch: true, ReservedBytes: reserve(scratch)}
	restored, err := restore.Database(ctx, restore.NewSource(a, path), database, options)
	if err != nil {
		return nil, err
	}
	if err := checkPages(ctx, database); err != nil {
		return nil, err
	}
	return compare(ctx, database, path, restored.Hashes)
}

// maxReserve is the upper limit of reserve in bytes.
const maxReserve = 4 << 30

// reserve returns the number of bytes on the volume that must stay free for etcd: 10% of the volume, up to
// maxReserve.
func reserve(dir string) int64 {
	_, size, _ := disk.Space(dir) // 0 if unknown
	return min(size/10, maxReserve)
}

// quotedFindings limits the number of bbolt findings in a message.
const quotedFindings = 3

// checkPages runs bbolt's check on every page, and returns errDiffers with the first findings, if any.
func checkPages(ctx context.Context, path string) error {
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("%w: %w", errDiffers, err)
	}
	defer db.Close() // the database is only read, so a close error is harmless
	return db.View(func(tx *bolt.Tx) error {
		var first []string
		count := 0
		for finding := range tx.Check() { // bbolt's check cannot be interrupted
			if count++; count <= quotedFindings {
				first = append(first, fmt.Sprintf("%.200s", finding))
			}
		}
		if count > 0 {
			return fmt.Errorf("%w: bbolt page check failed (number of errors: %d): %s", errDiffers, count, strings.Join(first, "; "))
		}
		return ctx.Err()
	})
}

// compare compares the database's hash with etcd's newest usable hash, which comes from a compaction after the full
// snapshot or from the snapshot itself. It returns etcd's hash, or nil if there is none.
func compare(ctx context.Context, database string, path archive.Path, compactions []format.Hash) (*format.Hash, error) {
	recorded, atCompaction := path.Full.Hash, false
	for _, compaction := range compactions {
		if comparable(path.Full, compaction.Compacted) {
			recorded, atCompaction = &compaction, true
		}
	}
	if recorded == nil || !comparable(path.Full, recorded.Compacted) {
		return nil, nil
	}
	computed, err := restore.HashKV(ctx, database, restore.HashRequest{
		Compacted: recorded.Compacted, Revision: recorded.Revision, Compaction: atCompaction,
	})
	switch {
	case errors.Is(err, restore.ErrCompacted), errors.Is(err, restore.ErrFutureRevision):
		return nil, fmt.Errorf("%w: %w", errDiffers, err)
	case err != nil:
		return nil, err
	case computed != recorded.Hash:
		return nil, fmt.Errorf("%w: hash at revision %d (compacted at %d) is %d, but etcd recorded %d", errDiffers, recorded.Revision, recorded.Compacted, computed, recorded.Hash)
	}
	return recorded, nil
}

// comparable reports whether the full snapshot contains all rows covered by a hash that was computed after the given
// compaction.
func comparable(full archive.Full, compacted int64) bool {
	return full.Compacted == 0 || compacted >= full.Compacted
}

// Exit statuses of RunChild: the result was printed, or the outcome is unknown. Go exits with status 2 after a panic.
const (
	childCompleted = 0
	childUnable    = 1
)

const (
	maxReason  = 4 << 10 // maximum length of a failure reason or error
	gcPercent  = 25      // low, because memory use matters more than speed
	childStack = 8 << 20 // in bytes; cyclic pages overflow this stack sooner than the default of 1 GB
)

// childOutput is the JSON line that a child prints.
type childOutput struct {
	Result *archive.Result `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// RunChild verifies a backup, prints the result to stdout as a line of JSON, and returns the exit status. RunChild
// changes the limits and the priority of the current process, so the process should have been started by InChild.
func RunChild(ctx context.Context, a *archive.Archive, job Job, scratch string, stdout io.Writer) int {
	child.LowerPriority()
	debug.SetGCPercent(gcPercent)
	debug.SetMaxStack(childStack)
	result, err := Verify(ctx, a, job, scratch)
	output := childOutput{Result: &result}
	if err != nil {
		output = childOutput{Error: fmt.Sprintf("%.*s", maxReason, err)}
	}
	result.Why = fmt.Sprintf("%.*s", maxReason, result.Why)
	if json.NewEncoder(stdout).Encode(output) != nil || err != nil {
		return childUnable
	}
	return childCompleted
}

// InChild returns a function that runs `executable args...` to verify a path through the archive. The command must
// call RunChild. If the child panics or cyclic pages overflow its stack, the backup cannot be restored, and InChild
// returns a failed result. If the child exits without output for any other reason, such as a signal, InChild returns
// an error. The child is killed when ctx is done, and on Linux when this process dies.
func InChild(executable string, args func(Job) []string) func(context.Context, archive.Path) (archive.Result, error) {
	return func(ctx context.Context, path archive.Path) (archive.Result, error) {
		started := time.Now()
		job := Job{Generation: path.Full.Generation, Full: path.Full.Name(), Revision: path.Revision}
		ended, err := child.Run(ctx, executable, args(job)...)
		if err != nil {
			return archive.Result{}, fmt.Errorf("cannot verify the backup of revision %d: %w", path.Revision, err)
		}
		var output childOutput
		switch readable := ended.Decode(&output); {
		case readable && ended.Status == childCompleted && output.Result != nil:
			return *output.Result, nil
		case readable && ended.Status == childUnable && output.Error != "":
			return archive.Result{}, errors.New(output.Error)
		case strings.HasPrefix(ended.Crash, "panic: "), ended.Crash == "fatal error: stack overflow":
			result := newResult(path, archive.Failed)
			result.Why, result.At, result.Seconds = "the restore crashed: "+ended.Crash, started, time.Since(started).Seconds()
			return result, nil
		default:
			return archive.Result{}, fmt.Errorf("cannot verify the backup of revision %d: the process exited without a result: %s", path.Revision, ended.Crash)
		}
	}
}
