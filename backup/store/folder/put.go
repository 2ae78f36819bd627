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

// temporary is the prefix of files that are being written. No segment of an object name starts with a dot.
const temporary = ".new-"

// Put implements store.Store. The content is durable before the name appears, and the name is durable before Put returns nil or
// ErrExists.
func (s *Store) Put(ctx context.Context, name string, content io.Reader) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	source := &source{content: store.ContextReader{Context: ctx, Reader: content}}
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
	if err := mkdirAll(root, directory); err != nil {
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
	// Even if the object existed: its creator may have died before this.
	if err := syncDirectory(root, directory); err != nil {
		return err
	}
	return linked
}

// mkdirAll creates the directories of a path, each durable before it is used.
func mkdirAll(root *os.Root, directory string) error {
	if directory == "." {
		return nil
	}
	if info, err := root.Lstat(directory); err == nil && info.IsDir() {
		return nil
	}
	if err := mkdirAll(root, path.Dir(directory)); err != nil {
		return err
	}
	if err := root.Mkdir(directory, 0o700); err == nil {
		inheritOwner(root, directory)
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDirectory(root, path.Dir(directory))
}

// inheritOwner gives what root created to the owner of the store's directory, so that the service's user can read the record of
// a restore test that root ran. A file system may refuse that; the object is stored all the same.
func inheritOwner(root *os.Root, name string) {
	if info, err := root.Stat("."); err == nil && os.Geteuid() == 0 {
		owner := info.Sys().(*syscall.Stat_t)
		_ = root.Lchown(name, int(owner.Uid), int(owner.Gid))
	}
}

func writeSynced(root *os.Root, name string, content io.Reader) error {
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	inheritOwner(root, name)
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
		// Deliberately no error of package store: the object may exist without being durable, so reading it back would prove
		// nothing.
		err = fmt.Errorf("cannot sync directory %s: %s", name, err.Error())
	}
	return errors.Join(err, directory.Close())
}

// leave removes a draft. Without the right to delete, backups can still be made: the draft then stays as a hidden second name.
func leave(root *os.Root, draft string) error {
	if err := root.Remove(draft); !errors.Is(err, fs.ErrPermission) {
		return ignoreNotExist(err)
	}
	return nil
}

// source remembers an error of content.
type source struct {
	content io.Reader
	failed  error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.content.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.failed = err
	}
	return n, err
}
