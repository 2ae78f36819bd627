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

	"etcd-wrapper/internal/child"
	"etcd-wrapper/internal/disk"
)

// partial is what the name of a file ends with that is not finished.
const partial = ".partial"

// Export rebuilds a database in a file that does not exist yet, and ends it with its SHA-256: a stock snapshot, which
// `etcdutl snapshot restore` takes. A file that has come to exist meanwhile is fs.ErrExist. It is made under another name,
// PATH.partial, which one that was interrupted leaves behind and the next one replaces.
func Export(ctx context.Context, source Source, path string, options Options) (Result, error) {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return Result{}, fmt.Errorf("cannot write %s: it exists already, or cannot be looked at", path)
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
		err = name(path+partial, path)
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

// name gives a file a name that nobody else has: a rename alone would replace what has come to have it meanwhile.
func name(path, name string) error {
	err := os.Link(path, name)
	if !errors.Is(err, syscall.EPERM) && !errors.Is(err, syscall.EOPNOTSUPP) && !errors.Is(err, syscall.ENOSYS) {
		return err
	}
	taken, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL, 0o600) // the file system has no hard links
	if err != nil {
		return err
	}
	return errors.Join(taken.Close(), os.Rename(path, name))
}

// addDigest appends a file's SHA-256.
func addDigest(ctx context.Context, path string) (err error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	sum := sha256.New()
	if _, err := io.CopyBuffer(sum, contextReader{ctx, file}, make([]byte, chunk)); err != nil {
		return err
	}
	if _, err := file.Write(sum.Sum(nil)); err != nil {
		return err
	}
	return flush(file)
}

// Keys are those of a database that nobody else uses, as etcd's own store reads them. They belong to one goroutine.
type Keys struct {
	database backend.Backend
	store    mvcc.WatchableKV
}

// OpenKeys opens a database that was rebuilt, or a snapshot that was exported. It changes the file. Opening takes memory for the name of
// every key.
func OpenKeys(file string) (keys *Keys, err error) {
	err = guarded(func() error {
		config := backend.DefaultBackendConfig(zap.NewNop())
		config.Path, config.UnsafeNoFsync = file, true
		database := backend.New(config)
		keys = &Keys{database, mvcc.New(zap.NewNop(), database, &lease.FakeLessor{}, mvcc.StoreConfig{})}
		return nil
	})
	return keys, err
}

// keysAtOnce is how many keys are held in memory with their values.
const keysAtOnce = 1000

// From yields the keys from one on up to end, in order, as etcd has ranges: a nil end means that key alone, and an empty one all behind
// it. An error comes last.
func (k *Keys) From(ctx context.Context, key, end []byte) iter.Seq2[*mvccpb.KeyValue, error] {
	return func(yield func(*mvccpb.KeyValue, error) bool) {
		for {
			page, err := k.store.Range(ctx, key, end, mvcc.RangeOptions{Limit: keysAtOnce})
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range page.KVs {
				if !yield(&page.KVs[i], nil) {
					return
				}
			}
			if len(page.KVs) < keysAtOnce || end == nil {
				return
			}
			key = append(page.KVs[len(page.KVs)-1].Key, 0)
		}
	}
}

// Close ends reading.
func (k *Keys) Close() error { return errors.Join(k.store.Close(), k.database.Close()) }

const inspectionStack = 8 << 20 // bytes; pages that refer to each other in a circle end here and not at 1 GB

// Inspect opens a database as it is opened to be changed, and closes it. Where pages contradict each other bbolt panics in a
// goroutine of its own, or its stack overflows, which nobody can recover from: this is for a process of its own, the one that
// InspectInChild starts, of which it changes limits. What is an error here is one for Database, too, which says it.
func Inspect(path string) {
	debug.SetMaxStack(inspectionStack)
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err == nil {
		_ = db.Close() // nothing was written
	}
}

// InspectInChild returns what Options.Inspect can be: it runs `executable args...`, a command that is expected to call
// Inspect. That it panics is an ErrDamaged. The child is killed when ctx ends, and on Linux when this process dies.
func InspectInChild(executable string, args func(path string) []string) func(context.Context, string) error {
	return func(ctx context.Context, path string) error {
		ended, err := child.Run(ctx, executable, args(path)...)
		switch {
		case err != nil:
			return fmt.Errorf("cannot inspect it: %w", err)
		case ended.Status == 0:
			return nil
		case strings.HasPrefix(ended.Crash, "panic: "), ended.Crash == "fatal error: stack overflow":
			return fmt.Errorf("%w: its database cannot be read: %s", ErrDamaged, ended.Crash)
		default:
			return fmt.Errorf("cannot inspect it: %s", ended.Crash)
		}
	}
}
