// Package folder keeps objects as files below a directory: of a volume, or of a network file system that has hard links.
package folder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"etcd-wrapper/backup/store"
)

var errNoLinks = errors.New("the file system has no hard links, so it cannot create a file that is complete or absent")

// Store is an existing directory, the equivalent of a bucket. A missing one may be on a volume that is not mounted:
// treating it as empty would create a new cluster although its backups exist.
type Store struct {
	directory string // absolute
}

// New checks the path. It does not access it.
func New(directory string) (*Store, error) {
	if !filepath.IsAbs(directory) || filepath.Clean(directory) == "/" {
		return nil, fmt.Errorf("%q is not the absolute path of a directory", directory)
	}
	const longestName, longest = 255, 4095 // bytes; waiting for a longer one would be useless
	isTooLong := func(name string) bool { return len(name) > longestName }
	if len(directory) > longest || strings.ContainsRune(directory, 0) || slices.ContainsFunc(strings.Split(directory, "/"), isTooLong) {
		return nil, errors.New("the path has a zero byte, or is too long for a file system")
	}
	return &Store{directory: filepath.Clean(directory)}, nil
}

// String implements store.Store.
func (s *Store) String() string { return "file://" + s.directory }

// open opens the directory. Symbolic links that lead out of it are not followed.
func (s *Store) open() (*os.Root, error) {
	root, err := os.OpenRoot(s.directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: create the directory, or mount the volume that contains it", store.ErrNoBucket)
	}
	// os.OpenRoot has no error of its own for a file.
	if info, failed := os.Stat(s.directory); err != nil && failed == nil && !info.IsDir() {
		return nil, fmt.Errorf("%w: the path is not a directory", store.ErrNoBucket)
	}
	return root, err
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	file, err := s.openFile(name)
	switch {
	case err != nil:
		return nil, s.failed("cannot read "+name, err)
	case file == nil:
		return http.NoBody, nil
	case length < 0:
		length = 1<<62 - 1
	}
	return struct {
		io.Reader
		io.Closer
	}{store.ContextReader{Context: ctx, Reader: reader{io.NewSectionReader(file, offset, length)}}, file}, nil
}

// openFile returns nil if the name exists but is not a regular file: a pipe, a directory or a link. No object can be created with
// that name, so it counts as an object without content.
func (s *Store) openFile(name string) (*os.File, error) {
	root, err := s.open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if info, err := root.Lstat(name); err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	// Non-blocking: opening a pipe that was put there meanwhile would block forever.
	return root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// reader translates the errors of reading a file.
type reader struct{ *io.SectionReader }

func (r reader) Read(p []byte) (int, error) {
	n, err := r.SectionReader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = translate(err)
	}
	return n, err
}

// Delete implements store.Store. Directories stay: another writer may be about to use them.
func (s *Store) Delete(ctx context.Context, name string) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := s.remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return s.failed("cannot delete "+name, err)
}

func (s *Store) remove(name string) error {
	root, err := s.open()
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Remove(name); err != nil {
		return err
	}
	return syncDirectory(root, path.Dir(name))
}

func (s *Store) failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s in %s: %w", doing, s, translate(err))
}

// translate adds the error of package store that fits an error of the file system.
func translate(err error) error {
	number, _ := errors.AsType[syscall.Errno](err)
	switch {
	case errors.Is(err, store.ErrNoBucket):
		return err
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: %w", store.ErrNotFound, err)
	case errors.Is(err, errNoLinks):
		return err
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %w", store.ErrDenied, err)
	case slices.Contains(temporaryErrors, number):
		return &store.Unavailable{Cause: err}
	default:
		return err
	}
}

// temporaryErrors are those after which the next attempt may succeed.
var temporaryErrors = []syscall.Errno{
	syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.ESTALE, syscall.ETIMEDOUT, syscall.EMFILE, syscall.ENFILE,
	syscall.EAGAIN, syscall.EBUSY, syscall.EINTR, syscall.ENOTCONN, syscall.EHOSTDOWN,
}
