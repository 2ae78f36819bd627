// Package verification brings backups back for no other reason than to see whether that works: it fetches one, opens what
// was sealed, rebuilds the database beside the one in use, has bbolt check it, and compares its hash with etcd's own. It is
// done in a process of its own that leaves the machine to etcd.
package verification

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/internal/disk"
	"etcd-wrapper/internal/steady"
)

// Job says what is to be brought back.
type Job struct {
	Generation int
	Full       string // its name; with it alone begins what is brought back if Revision is the full's
	Revision   int64  // otherwise this revision, from whichever full is best: a restore test
}

// errDiffers is of a database that is not what it should be, though all of it was read as it was written.
var errDiffers = errors.New("what was brought back is not what etcd had")

// Verify brings a backup back in the scratch directory, which is this one's alone: it is emptied first, and removed in the
// end. The result says whether it worked; the caller stores it, and adds which member had it done. An error says why that
// could not be found out: the store is away, say, the volume has no room, or there is no identity for what is encrypted.
func Verify(ctx context.Context, a *archive.Archive, job Job, scratch string) (archive.Result, error) {
	began := time.Now()
	path, err := job.find(ctx, a)
	if err != nil {
		return archive.Result{}, fmt.Errorf("cannot verify a backup: %w", err)
	}
	result := archive.Result{
		Cluster: path.Full.Cluster, Generation: path.Full.Generation, Full: path.Full.Name(), Revision: path.Revision,
		Segments: path.Revision != path.Full.Revision, Outcome: archive.Verified,
	}
	result.Hash, err = bringBack(ctx, a, path, scratch)
	switch {
	case err == nil && !result.Segments:
		result.Database = path.Full.Database
	case err != nil && !failed(ctx, a, path, err):
		return archive.Result{}, fmt.Errorf("cannot verify the backup of revision %d: %w", path.Revision, err)
	case err != nil:
		result.Outcome, result.Why = archive.Failed, err.Error()+instead(ctx, a, path, err)
	}
	result.At, result.Seconds = began, time.Since(began).Seconds()
	return result, nil
}

// find looks the way up, in the child, which is told no more than a name.
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

// instead is a clause about what would come back in the place of what failed, by what is listed.
func instead(ctx context.Context, a *archive.Archive, path archive.Path, err error) string {
	other, none := a.Instead(ctx, path, restore.Blamed(err, path))
	switch lost := path.Revision - other.Revision; {
	case errors.Is(none, archive.ErrNotKept):
		return fmt.Sprintf("; nothing else leads to revision %d", path.Revision)
	case none != nil:
		return "" // it is not about what lies in the store
	case lost > 0:
		return fmt.Sprintf("; from full %s on there is a way to revision %d, so that %d revisions are lost", other.Full.Name(), other.Revision, lost)
	default:
		return fmt.Sprintf("; from full %s on there is another way to revision %d", other.Full.Name(), other.Revision)
	}
}

// failed tells whether an error is about the backup. An object that is missing is, unless the backup was deleted meanwhile:
// its manifest goes first.
func failed(ctx context.Context, a *archive.Archive, path archive.Path, err error) bool {
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

// bringBack returns etcd's own hash that the database was compared with; nil if none is known.
func bringBack(ctx context.Context, a *archive.Archive, path archive.Path, scratch string) (_ *archive.Hash, err error) {
	if err := os.RemoveAll(scratch); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	database, reading := filepath.Join(scratch, "db"), archive.Reading{Revision: path.Full.Revision}
	defer func() { _ = steady.Remove(ctx, database) }() // it may be as large as etcd's own, which serves
	options := restore.Options{Scratch: true, Beside: reserve(scratch)}
	if _, err := restore.Database(ctx, restore.From(a, path, &reading), database, options); err != nil {
		return nil, err
	}
	if err := checkPages(ctx, database, reading.Revision); err != nil {
		return nil, err
	}
	return compare(ctx, database, path, reading.Hashes)
}

// reserveMost is how much etcd can take of any volume while a backup is verified, in bytes.
const reserveMost = 4 << 30

// reserve is how many bytes of the volume are etcd's, whatever is free: a tenth of it, on a large one less.
func reserve(dir string) int64 {
	_, size, _ := disk.Space(dir) // 0 if that cannot be told
	return min(size/10, reserveMost)
}

// ofCompaction is etcd's hash of a compaction, in the words of a manifest.
func ofCompaction(hash format.CompactionHash) *archive.Hash {
	return &archive.Hash{Revision: hash.Revision, Compacted: hash.Compacted, Hash: hash.Hash}
}
