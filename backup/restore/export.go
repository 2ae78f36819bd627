package restore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/lease"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.uber.org/zap"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/internal/child"
	"etcd-wrapper/internal/disk"
)

// partial is the suffix of a file that is not complete yet.
const partial = ".partial"

// Export builds a database in a new file and appends its SHA-256, which makes the file a stock snapshot for `etcdutl
// snapshot restore`. If the file is created in the meantime, Export returns fs.ErrExist. The file is written as
// PATH.partial. An interrupted export leaves a partial file behind, which the next export replaces.
func Export(ctx context.Context, source Source, path string, options Options) (Result, error) {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return Result{}, fmt.Errorf("cannot write %s: the file already exists or the path is not accessible", path)
	}
	if err := os.Remove(path + partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Result{}, err
	}
	result, err := Database(ctx, source, path+partial, options)
	if err != nil {
		return Result{}, err
	}
	err = addDigest(ctx, path+partial)
	if err == nil {
		err = linkNew(path+partial, path)
	}
	if left := os.Remove(path + partial); !errors.Is(left, fs.ErrNotExist) {
		err = errors.Join(err, left)
	}
	if err == nil {
		err = disk.SyncDirectory(filepath.Dir(path))
	}
	if err != nil {
		return Result{}, fmt.Errorf("cannot write %s: %w", path, err)
	}
	result.Bytes += sha256.Size
	return result, nil
}

// linkNew makes a file available under a new name, and fails with fs.ErrExist if the name exists. A rename would
// replace a file that was created in the meantime.
func linkNew(path, name string) error {
	err := os.Link(path, name)
	if !errors.Is(err, syscall.EPERM) && !errors.Is(err, syscall.EOPNOTSUPP) && !errors.Is(err, syscall.ENOSYS) {
		return err
	}
	// The file system does not support hard links, so reserve the name and then replace the file.
	taken, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(taken.Close(), os.Rename(path, name))
}

// addDigest appends the SHA-256 of a file to the file.
func addDigest(ctx context.Context, path string) (err error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	sum := sha256.New()
	if _, err := io.CopyBuffer(sum, store.ContextReader{Context: ctx, Reader: file}, make([]byte, chunk)); err != nil {
		return err
	}
	if _, err := file.Write(sum.Sum(nil)); err != nil {
		return err
	}
	return flush(file)
}

// Keys reads the keys in a closed database using etcd's own store. Keys is not safe for concurrent use.
type Keys struct {
	database backend.Backend
	store    mvcc.WatchableKV
}

// OpenKeys opens a restored database or an exported snapshot. Opening modifies the file. The names of all keys are
// kept in memory.
func OpenKeys(file string) (keys *Keys, err error) {
	err = recoverPanic(func() error {
		config := backend.DefaultBackendConfig(zap.NewNop())
		config.Path, config.UnsafeNoFsync = file, true
		database := backend.New(config)
		keys = &Keys{database, mvcc.New(zap.NewNop(), database, &lease.FakeLessor{}, mvcc.StoreConfig{})}
		return nil
	})
	return keys, err
}

// keysPerPage limits the number of keys and values in memory.
const keysPerPage = 1000

// Range yields the keys of a range in order. As in etcd, a nil end selects a single key, and an empty end selects all
// keys from key on. If reading fails, the last iteration yields the error.
func (k *Keys) Range(ctx context.Context, key, end []byte) iter.Seq2[*mvccpb.KeyValue, error] {
	return func(yield func(*mvccpb.KeyValue, error) bool) {
		for {
			page, err := k.store.Range(ctx, key, end, mvcc.RangeOptions{Limit: keysPerPage})
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range page.KVs {
				if !yield(&page.KVs[i], nil) {
					return
				}
			}
			if len(page.KVs) < keysPerPage || end == nil {
				return
			}
			key = append(page.KVs[len(page.KVs)-1].Key, 0)
		}
	}
}

// Close closes the store and the database.
func (k *Keys) Close() error { return errors.Join(k.store.Close(), k.database.Close()) }

const inspectionStack = 8 << 20 // in bytes; cyclic pages overflow this stack sooner than the default of 1 GB

// Inspect opens and closes a database and reads its freelist. Inconsistent pages make bbolt panic in its own
// goroutine or overflow the stack, neither of which can be recovered, so Inspect must run in a separate process (see
// InspectInChild). Inspect changes process limits. Errors from opening the database are ignored, because Database
// returns them as well.
func Inspect(path string) {
	debug.SetMaxStack(inspectionStack)
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err == nil {
		_ = db.Close() // the database is only read, so a close error is harmless
	}
}

// InspectInChild returns a function for Options.Inspect that runs `executable args...`, a command that calls Inspect.
// A panic or a stack overflow in the child is reported as ErrDamaged. The child is killed when ctx is done, and on
// Linux when this process dies.
func InspectInChild(executable string, args func(path string) []string) func(context.Context, string) error {
	return func(ctx context.Context, path string) error {
		ended, err := child.Run(ctx, executable, args(path)...)
		switch {
		case err != nil:
			return fmt.Errorf("cannot check the database: %w", err)
		case ended.Status == 0:
			return nil
		case strings.HasPrefix(ended.Crash, "panic: "), ended.Crash == "fatal error: stack overflow":
			return fmt.Errorf("%w: cannot read the database: %s", ErrDamaged, ended.Crash)
		default:
			return fmt.Errorf("cannot check the database: %s", ended.Crash)
		}
	}
}
