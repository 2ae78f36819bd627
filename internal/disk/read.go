package disk

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// readTimeout limits how long Read waits. The limit is generous, because callers continue without the content after a
// timeout, and reading from a healthy volume can take more than a second on a busy machine.
const readTimeout = 3 * time.Second

// ErrHangs means that reading the file has timed out.
var ErrHangs = errors.New("the read timed out; the volume may be hanging")

// A reading is a read in progress. Concurrent reads of the same path share one reading, so a hanging mount blocks at
// most one thread per path.
type reading struct {
	started time.Time
	done    chan struct{}
	content []byte
	err     error
}

var (
	mu      sync.Mutex
	current = map[string]*reading{} // reads in progress by path
)

// Read returns the content of a regular file of at most limit bytes. Symbolic links are followed. Read takes at most
// 3 s, and returns ErrHangs immediately while an earlier read of the same path is hanging. Errors wrap the cause and
// do not repeat the path. Read is safe for concurrent use.
func Read(path string, limit int64) ([]byte, error) {
	return readWithin(path, func() ([]byte, error) { return read(path, limit, 0) })
}

// maxBundle limits the size of a certificate bundle in bytes. The limit is about four times the size of the bundles
// that operating systems ship.
const maxBundle = 1 << 20

// ReadCertificates is like Read, for a PEM file of at most 1 MiB.
func ReadCertificates(path string) ([]byte, error) { return Read(path, maxBundle) }

// ReadRoots is like ReadCertificates, but returns the certificates in a pool. Errors name the file.
func ReadRoots(path string) (*x509.CertPool, error) {
	bundle, err := ReadCertificates(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read CA bundle %s: %w", path, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("CA bundle %s contains no certificates", path)
	}
	return pool, nil
}

// ReadHere reads a file written by this program. Unlike Read, it does not follow symbolic links and has no time
// limit.
func ReadHere(path string, limit int64) ([]byte, error) { return read(path, limit, syscall.O_NOFOLLOW) }

func readWithin(path string, read func() ([]byte, error)) ([]byte, error) {
	r := join(path, read)
	left := time.NewTimer(readTimeout - time.Since(r.started))
	defer left.Stop()
	select {
	case <-r.done:
		return r.content, r.err
	case <-left.C:
		return nil, ErrHangs
	}
}

// join returns the read in progress for a path, or starts one.
func join(path string, read func() ([]byte, error)) *reading {
	mu.Lock()
	defer mu.Unlock()
	if r := current[path]; r != nil {
		return r
	}
	r := &reading{started: time.Now(), done: make(chan struct{})}
	current[path] = r
	go func() {
		r.content, r.err = read()
		mu.Lock()
		delete(current, path)
		mu.Unlock()
		close(r.done)
	}()
	return r
}

// read reads a regular file. Opening a pipe does not block.
func read(path string, limit int64, flags int) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|flags, 0)
	if err != nil {
		return nil, withoutPath(err)
	}
	defer file.Close() // opened read-only, so a close error is harmless
	info, err := file.Stat()
	if err != nil {
		return nil, withoutPath(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("larger than %d bytes", limit)
	}
	return content, withoutPath(err)
}

// withoutPath unwraps the layer of an error that repeats the operation and the path.
func withoutPath(err error) error {
	if wrapped, ok := errors.AsType[*os.PathError](err); ok {
		return wrapped.Err
	}
	return err
}

// Space returns the number of bytes on the volume of dir that are available to this process, and the size of the
// volume. Errors name the directory and the cause.
func Space(dir string) (left, size int64, err error) {
	var volume unix.Statfs_t
	if err := unix.Statfs(dir, &volume); err != nil {
		return 0, 0, fmt.Errorf("cannot determine the free space on the volume of %s: %w", dir, err)
	}
	block := int64(volume.Bsize)                                           //nolint:unconvert // on some systems, Bsize is not an int64
	return int64(volume.Bavail) * block, int64(volume.Blocks) * block, nil //nolint:gosec // no volume is large enough for an overflow
}
