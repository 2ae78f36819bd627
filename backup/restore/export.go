package restore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"etcd-wrapper/internal/durable"
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
		err = durable.SyncDirectory(filepath.Dir(path))
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
