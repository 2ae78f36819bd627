// Package folder keeps objects as files below a directory: of a volume, or of a network file system that has hard links.
package folder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

var errNoLinks = errors.New("the file system has no hard links, so it cannot create a file that is complete or absent")

// Store is a directory, which somebody has made, as a bucket: one that is missing may lie on a volume that is not mounted. To
// take it for empty would have a cluster begun anew whose backups are there.
type Store struct {
	directory string // absolute
}

// New checks the path; it looks at nothing yet.
func New(directory string) (*Store, error) {
	if !filepath.IsAbs(directory) || filepath.Clean(directory) == "/" {
		return nil, fmt.Errorf("%q is not the absolute path of a directory", directory)
	}
	if cannotBe(directory) {
		return nil, errors.New("the path has a zero byte, or is too long for a file system")
	}
	return &Store{directory: filepath.Clean(directory)}, nil
}

// cannotBe tells whether no file system could ever have such a directory, so that nobody need wait for it.
func cannotBe(directory string) bool {
	const longestName, longest = 255, 4095 // bytes
	names := strings.Split(directory, "/")
	return len(directory) > longest || strings.ContainsRune(directory, 0) ||
		slices.ContainsFunc(names, func(name string) bool { return len(name) > longestName })
}

// String implements store.Store.
func (s *Store) String() string { return "file://" + s.directory }

// open returns the directory. Nothing beneath it is reached through a symbolic link that leads out of it.
func (s *Store) open() (*os.Root, error) {
	root, err := os.OpenRoot(s.directory)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: create the directory, or mount the volume that contains it", store.ErrNoBucket)
	case err != nil && s.noDirectory():
		return nil, fmt.Errorf("%w: the path is not a directory", store.ErrNoBucket)
	default:
		return root, err
	}
}

// noDirectory is for an error of os.OpenRoot, which has none of its own for it.
func (s *Store) noDirectory() bool {
	info, err := os.Stat(s.directory)
	return err == nil && !info.IsDir()
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
		return wire.Empty(), nil
	case length < 0:
		length = 1<<62 - 1
	}
	return &reader{ctx: ctx, section: io.NewSectionReader(file, offset, length), file: file}, nil
}

// openFile returns nil for what is there and no regular file: a pipe, a directory, or a link, which could lead anywhere. Nobody can
// create an object of its name, so it is one without content.
func (s *Store) openFile(name string) (*os.File, error) {
	root, err := s.open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if info, err := root.Lstat(name); err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	// Without waiting: a pipe that somebody put there since would keep us for ever.
	return root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// reader ends with its context, too.
type reader struct {
	ctx     context.Context
	section *io.SectionReader
	file    *os.File
}

func (r *reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	n, err := r.section.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = translate(err)
	}
	return n, err
}

func (r *reader) Close() error { return r.file.Close() }

// Delete implements store.Store. Directories stay: another writer may be about to create something there.
func (s *Store) Delete(ctx context.Context, name string) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := s.remove(name)
	if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, store.ErrNoBucket) {
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

// translate adds what an error of the file system means.
func translate(err error) error {
	switch {
	case errors.Is(err, store.ErrNoBucket):
		return err
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: %w", store.ErrNotFound, err)
	case errors.Is(err, errNoLinks):
		return err
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %w", store.ErrDenied, err)
	case passing(err):
		return &store.Unavailable{Cause: err}
	default:
		return err
	}
}

// passing errors are those that may be gone the next time.
func passing(err error) bool {
	for _, number := range []syscall.Errno{
		syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.ESTALE, syscall.ETIMEDOUT, syscall.EMFILE, syscall.ENFILE,
		syscall.EAGAIN, syscall.EBUSY, syscall.EINTR, syscall.ENOTCONN, syscall.EHOSTDOWN,
	} {
		if errors.Is(err, number) {
			return true
		}
	}
	return false
}
