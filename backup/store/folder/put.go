package folder

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/internal/steady"
)

// temporary begins the names of files that are being written. No object's name has a segment that begins with a dot.
const temporary = ".new-"

// Put implements store.Store. The content is durable before the object's name appears, and the name before Put returns nil or
// ErrExists.
func (s *Store) Put(ctx context.Context, name string, content io.Reader) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	source := &source{ctx: ctx, content: content}
	err := s.put(name, source)
	if source.failed != nil {
		return source.failed
	}
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s in %s: %w", name, s, store.ErrExists)
	}
	return s.failed("cannot create "+name, err)
}

func (s *Store) put(name string, content *source) (err error) {
	root, err := s.open()
	if err != nil {
		return err
	}
	defer root.Close()
	directory := path.Dir(name)
	if err := makeDirectories(root, directory); err != nil {
		return err
	}
	draft := path.Join(directory, temporary+rand.Text())
	defer func() { err = errors.Join(err, leave(root, draft)) }()
	if err := writeSynced(root, draft, content); err != nil {
		return err
	}
	linked := root.Link(draft, name)
	switch {
	case linked == nil, errors.Is(linked, fs.ErrExist):
	case errors.Is(linked, syscall.EPERM), errors.Is(linked, syscall.EOPNOTSUPP), errors.Is(linked, syscall.ENOSYS):
		return fmt.Errorf("%w: %w", errNoLinks, linked)
	default:
		return linked
	}
	// Also if it was there: whoever made it may have died before this.
	if err := syncDirectory(root, directory); err != nil {
		return err
	}
	return linked
}

// makeDirectories makes each directory of the path durable before there is something in it.
func makeDirectories(root *os.Root, directory string) error {
	if directory == "." {
		return nil
	}
	if info, err := root.Lstat(directory); err == nil && info.IsDir() {
		return nil
	}
	if err := makeDirectories(root, path.Dir(directory)); err != nil {
		return err
	}
	return makeDirectory(root, directory)
}

func makeDirectory(root *os.Root, directory string) error {
	if err := root.Mkdir(directory, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDirectory(root, path.Dir(directory))
}

func writeSynced(root *os.Root, name string, content io.Reader) error {
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(&steady.Writer{File: file, Drop: true}, content, make([]byte, 128<<10))
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func syncDirectory(root *os.Root, name string) error {
	directory, err := root.Open(name)
	if err != nil {
		return err
	}
	if err = directory.Sync(); err != nil {
		// Deliberately none of the store's errors: what was created may be there, but is not durable, so reading it back
		// proves nothing.
		err = fmt.Errorf("cannot sync directory %s: %s", name, err.Error())
	}
	return errors.Join(err, directory.Close())
}

// leave removes a draft. Whoever may create and not delete can still make backups: the draft then stays as a second name that nobody sees.
func leave(root *os.Root, draft string) error {
	if err := clear(root, draft); !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}

func clear(root *os.Root, draft string) error {
	if err := root.Remove(draft); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// source ends with its context, too, and remembers how content failed.
type source struct {
	ctx     context.Context
	content io.Reader
	failed  error
}

func (s *source) Read(p []byte) (int, error) {
	if s.ctx.Err() != nil {
		s.failed = context.Cause(s.ctx)
		return 0, s.failed
	}
	n, err := s.content.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.failed = err
	}
	return n, err
}
