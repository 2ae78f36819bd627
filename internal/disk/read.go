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

// patience is the maximum time for a read. On a busy machine, a read of a healthy volume may take more than a
// second. Its callers continue without the result.
const patience = 3 * time.Second

// ErrHangs means that the file did not answer in time.
var ErrHangs = errors.New("it does not answer; the volume that it lies on may hang")

// A reading is one read of a path. All callers that request the path share it, so that a hanging mount blocks only
// one thread.
type reading struct {
	began   time.Time
	done    chan struct{}
	content []byte
	err     error
}

var (
	mu      sync.Mutex
	current = map[string]*reading{} // running reads by path
)

// Read returns the content of a regular file of at most limit bytes. It follows symbolic links. It takes at most 3 s.
// While an earlier read of the path hangs, it returns ErrHangs immediately. Errors wrap their cause and do not repeat
// the path. Any goroutine may call it.
func Read(path string, limit int64) ([]byte, error) {
	return readWithin(path, func() ([]byte, error) { return read(path, limit, 0) })
}

// maxBundle limits a bundle of certificates, in bytes. The bundles of whole operating systems have a quarter of that.
const maxBundle = 1 << 20

// ReadCertificates reads a file of PEM blocks like Read.
func ReadCertificates(path string) ([]byte, error) { return Read(path, maxBundle) }

// ReadRoots returns the certificates of a CA bundle. It reads the file like Read.
func ReadRoots(path string) (*x509.CertPool, error) {
	bundle, err := ReadCertificates(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read CA bundle %s: %w", path, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("CA bundle %s holds no certificate", path)
	}
	return pool, nil
}

// ReadHere is like Read, but for a file that this program wrote: it does not follow symbolic links, and waits as long
// as the disk takes.
func ReadHere(path string, limit int64) ([]byte, error) { return read(path, limit, syscall.O_NOFOLLOW) }

func readWithin(path string, read func() ([]byte, error)) ([]byte, error) {
	r := join(path, read)
	left := time.NewTimer(patience - time.Since(r.began))
	defer left.Stop()
	select {
	case <-r.done:
		return r.content, r.err
	case <-left.C:
		return nil, ErrHangs
	}
}

// join returns the running read of the path, or starts one.
func join(path string, read func() ([]byte, error)) *reading {
	mu.Lock()
	defer mu.Unlock()
	if r := current[path]; r != nil {
		return r
	}
	r := &reading{began: time.Now(), done: make(chan struct{})}
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

// read opens a file without waiting for the other end of a pipe, and reads only regular files.
func read(path string, limit int64, flags int) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|flags, 0)
	if err != nil {
		return nil, withoutPath(err)
	}
	defer file.Close() // the file was only read
	info, err := file.Stat()
	if err != nil {
		return nil, withoutPath(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("it has more than %d bytes", limit)
	}
	return content, withoutPath(err)
}

// withoutPath removes the layer of an error that repeats operation and path.
func withoutPath(err error) error {
	if wrapped, ok := errors.AsType[*os.PathError](err); ok {
		return wrapped.Err
	}
	return err
}

// Space returns how many bytes of a directory's volume are available to this process, and the size of the volume. The
// error names the directory and the cause.
func Space(dir string) (left, size int64, err error) {
	var volume unix.Statfs_t
	if err := unix.Statfs(dir, &volume); err != nil {
		return 0, 0, fmt.Errorf("cannot see how much room the volume of %s has: %w", dir, err)
	}
	block := int64(volume.Bsize)                                           //nolint:unconvert // the types differ by system
	return int64(volume.Bavail) * block, int64(volume.Blocks) * block, nil //nolint:gosec // far from overflowing
}
