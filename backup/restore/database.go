package restore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/internal/durable"
)

// Source is what a database is rebuilt from.
type Source struct {
	// Snapshot opens the full: a stock etcd snapshot, which is a database and 32 bytes that are its SHA-256.
	Snapshot func(context.Context) (io.ReadCloser, error)
	// Rows gives every row behind the full to row, in order, and returns what else has changed. It may be nil.
	Rows func(ctx context.Context, row func(segment.Row) error) (Changes, error)
	// Revision is that of the last row that the full has; 0 if nobody says. A full with another one is ErrDamaged: it is not what it
	// was taken for, and what follows does not follow it.
	Revision int64
	// DatabaseBytes and RowBytes are how large the full's database is, and about how large the rows are. They are for
	// the room that is needed and for the progress that is told, and may be 0.
	DatabaseBytes, RowBytes int64
}

// Changes is what has become of the full beside its rows.
type Changes struct {
	Revision  int64             // of the last row, or the full's if there was none; 0 if nobody says. Another result is ErrDamaged
	Buckets   []*segment.Bucket // that differ from the full's, as they are now
	Compacted int64             // etcd's scheduled compaction; 0 for that of the full
	// Later are buckets as they were a moment after the revision. Leases of theirs are added: a key may belong to one
	// that was granted in between, and would stay for ever without it, while a lease without keys just expires.
	Later []*segment.Bucket
	// Stated is the bucket of leases as it was stated next behind the revision, nil if nobody knows. It is called if a key belongs
	// to a lease that is in none of the others, and may be nil.
	Recorded func(context.Context) (*segment.Bucket, error)

	behind []byte // the key of the first row that can be new
}

// Options say what is to be done beside rebuilding. The zero value asks for nothing.
type Options struct {
	// Above, if it is not 0, is the highest revision that was ever handed out. The database then goes on above it, and
	// all before is marked as compacted, so that whoever watches lists again.
	Above int64
	// Finish is called in the last transaction, if it is not nil.
	Finish func(*bolt.Tx) error
	// Inspect looks at the database before it is opened to be changed, if it is not nil: InspectInChild. Where pages of it
	// contradict each other this process would end.
	Inspect func(ctx context.Context, path string) error
	// Beside is how many bytes are needed on the volume beside the database.
	Beside int64
	// Scratch says that the file is removed soon, and that etcd serves beside it: it need not reach the disk, and leaves that to etcd.
	Scratch bool
	// Progress is told how far it is, if it is not nil, many times a second and from one goroutine.
	Progress func(Progress)
}

// Progress is how far a rebuild is.
type Progress struct {
	Bytes, Of int64 // of database and rows; Of is 0 if that is not known, and an estimate if there are rows
	Rows      int64 // inserted
}

// Result is what was rebuilt.
type Result struct {
	Revision int64 // the newest one, that of Options.Above included
	Rows     int64 // inserted
	Bytes    int64 // of the file
}

// Database rebuilds a database in a file that does not exist yet, for the user alone. When it returns without an error
// the file is on the disk; otherwise it was removed. Nothing is fetched if the volume has not the room, which is an
// ErrNoRoom. Errors of the source and of ctx come through.
func Database(ctx context.Context, source Source, path string, options Options) (Result, error) {
	if err := CheckRoom(filepath.Dir(path), source, options); err != nil {
		return Result{}, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return Result{}, fmt.Errorf("cannot create the database: %w", err)
	}
	result, err := rebuild(ctx, source, file, options)
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		err = errors.Join(err, os.Remove(path))
		return Result{}, fmt.Errorf("rebuilding the database %s: %w", path, err)
	}
	return result, nil
}

// rebuild closes nothing.
func rebuild(ctx context.Context, source Source, file *os.File, options Options) (result Result, err error) {
	told := &teller{tell: options.Progress, Progress: Progress{Of: source.DatabaseBytes + source.RowBytes}}
	if err := receive(ctx, source.Snapshot, &receiver{to: writer(file, options.Scratch), sum: sha256.New(), told: told}); err != nil {
		return Result{}, err
	}
	if options.Inspect != nil {
		if err := options.Inspect(ctx, file.Name()); err != nil {
			return Result{}, err
		}
	}
	err = guarded(func() error {
		result, err = change(ctx, source, file, options, told)
		return err
	})
	if err != nil {
		return Result{}, err
	}
	if !options.Scratch {
		if err := flush(file); err != nil {
			return Result{}, fmt.Errorf("cannot flush it to disk: %w", err)
		}
	}
	info, err := file.Stat()
	if err != nil {
		return Result{}, err
	}
	result.Bytes, result.Rows = info.Size(), told.Rows
	return result, nil
}

// flush makes the file and its name durable.
func flush(file *os.File) error {
	if err := file.Sync(); err != nil {
		return err
	}
	return durable.SyncDirectory(filepath.Dir(file.Name()))
}

// teller tells of progress.
type teller struct {
	Progress
	tell func(Progress)
}

func (t *teller) add(bytes, rows int64) {
	t.Bytes += bytes
	t.Rows += rows
	if t.tell != nil {
		t.tell(t.Progress)
	}
}
