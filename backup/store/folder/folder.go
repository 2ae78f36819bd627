// Package folder stores objects as files in a directory on a volume, or on a network file system that supports hard
// links.
package folder

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/internal/steady"
)

var errNoLinks = errors.New("the file system does not support hard links, which are needed to create files atomically")

// Store is an existing directory, the equivalent of a bucket. If the directory is missing, methods return an error,
// because the volume may not be mounted. A store that looks empty would cause the wrapper to create a new cluster
// even though backups exist.
type Store struct {
	directory string // absolute path
}

// New validates the path without accessing it.
func New(directory string) (*Store, error) {
	if !filepath.IsAbs(directory) || filepath.Clean(directory) == "/" {
		return nil, fmt.Errorf("invalid directory %q: must be an absolute path other than /", directory)
	}
	const longestName, longest = 255, 4095 // limits in bytes; with a longer path, every request would fail
	isTooLong := func(name string) bool { return len(name) > longestName }
	if len(directory) > longest || strings.ContainsRune(directory, 0) || slices.ContainsFunc(strings.Split(directory, "/"), isTooLong) {
		return nil, fmt.Errorf("invalid directory: must have at most %d bytes, at most %d between slashes, and no NUL byte", longest, longestName)
	}
	return &Store{directory: filepath.Clean(directory)}, nil
}

// String implements store.Store.
func (s *Store) String() string { return "file://" + s.directory }

// open opens the directory. Symbolic links that lead out of the directory are not followed.
func (s *Store) open() (*os.Root, error) {
	root, err := os.OpenRoot(s.directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: create the directory or mount its volume", store.ErrNoBucket)
	}
	// If the path is a file, os.OpenRoot does not return a specific error.
	if info, failed := os.Stat(s.directory); err != nil && failed == nil && !info.IsDir() {
		return nil, fmt.Errorf("%w: not a directory", store.ErrNoBucket)
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

// openFile opens a regular file for reading. It returns nil without an error for anything else (for example, a pipe,
// a directory or a link), which is treated as an object without content, because no object with this name can be
// created.
func (s *Store) openFile(name string) (*os.File, error) {
	root, err := s.open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if info, err := root.Lstat(name); err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	// Without O_NONBLOCK, opening a pipe that was created in the meantime would block forever.
	return root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// reader translates read errors to store errors.
type reader struct{ *io.SectionReader }

func (r reader) Read(p []byte) (int, error) {
	n, err := r.SectionReader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = translate(err)
	}
	return n, err
}

// Delete implements store.Store. Directories are kept, because another writer may be about to use them.
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
	err = translate(err)
	if errors.Is(err, store.ErrDenied) {
		err = &deniedError{err, s.access(err)}
	}
	return fmt.Errorf("%s in %s: %w", doing, s, err)
}

// deniedError is an ErrDenied that suggests checking the owner and mode, because a folder has no credentials.
type deniedError struct {
	error
	nextStep string
}

func (e *deniedError) Unwrap() error { return e.error }

// NextStep returns the suggested next step.
func (e *deniedError) NextStep() string { return e.nextStep }

// access returns the next step after a denied request. It names the user that needs access, and the owner and the
// mode of the directory.
func (s *Store) access(denied error) string {
	if errors.Is(denied, syscall.EROFS) {
		return fmt.Sprintf("mount the volume of %s read-write", s.directory)
	}
	advice := fmt.Sprintf("grant user %d and group %d access to %s and its files", os.Geteuid(), os.Getegid(), s.directory)
	if info, err := os.Stat(s.directory); err == nil {
		owner := info.Sys().(*syscall.Stat_t)
		advice += fmt.Sprintf("; the directory is owned by user %d and group %d (mode %v)", owner.Uid, owner.Gid, info.Mode())
	}
	return advice
}

// translate converts a file system error to the corresponding store error.
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

// temporaryErrors lists the errors after which a retry may succeed.
var temporaryErrors = []syscall.Errno{
	syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.ESTALE, syscall.ETIMEDOUT, syscall.EMFILE, syscall.ENFILE,
	syscall.EAGAIN, syscall.EBUSY, syscall.EINTR, syscall.ENOTCONN, syscall.EHOSTDOWN,
}

// temporary is the name prefix of files that are not complete yet. No object name collides with it, because the
// segments of an object name never start with a dot.
const temporary = ".new-"

// Put implements store.Store. The content is synced to disk before the name becomes visible, and the name is synced
// before Put returns nil or ErrExists.
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
	in, err := openDirectory(root, path.Dir(name))
	if err != nil {
		return err
	}
	defer in.Close()
	draft := temporary + rand.Text()
	defer func() { err = errors.Join(err, removeDraft(in, draft)) }()
	if err := writeSynced(root, in, draft, content); err != nil {
		return err
	}
	linked := in.Link(draft, path.Base(name))
	switch {
	case linked == nil, errors.Is(linked, fs.ErrExist):
	case errors.Is(linked, syscall.EPERM), errors.Is(linked, syscall.EOPNOTSUPP), errors.Is(linked, syscall.ENOSYS):
		return fmt.Errorf("%w: %w", errNoLinks, linked)
	default:
		return linked
	}
	// Sync the directory even if the object exists, because its creator may have been killed before syncing.
	if err := syncDirectory(in, "."); err != nil {
		return err
	}
	return linked
}

// openDirectory opens a directory in the store and creates the directory if necessary.
func openDirectory(root *os.Root, directory string) (*os.Root, error) {
	in, err := root.OpenRoot(directory)
	if !errors.Is(err, fs.ErrNotExist) {
		return in, err
	}
	if err := mkdirAll(root, directory); err != nil {
		return nil, err
	}
	return root.OpenRoot(directory)
}

// mkdirAll creates the directories of a path and syncs each of them to disk before creating the next.
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
		if created, err := root.OpenFile(directory, os.O_RDONLY|syscall.O_DIRECTORY, 0); err == nil {
			inheritOwner(root, created)
			_ = created.Close()
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDirectory(root, path.Dir(directory))
}

// inheritOwner changes the owner of a new file to the owner of the store's directory if the process runs as root,
// because the service must be able to read the result of a restore test run by root. Errors are ignored, because
// some file systems do not support changing the owner. inheritOwner uses the open file rather than its name,
// because the service's user could have replaced the name with a hard link to one of root's files.
func inheritOwner(root *os.Root, created *os.File) {
	if os.Geteuid() != 0 {
		return
	}
	if info, err := root.Stat("."); err == nil {
		owner := info.Sys().(*syscall.Stat_t)
		_ = created.Chown(int(owner.Uid), int(owner.Gid))
	}
}

// buffers holds copy buffers for reuse, because the backup writer stores an object every second.
var buffers = sync.Pool{New: func() any { return new([128 << 10]byte) }}

// writeSynced creates a file in a directory of the store and syncs it to disk.
func writeSynced(root, in *os.Root, name string, content io.Reader) error {
	file, err := in.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	inheritOwner(root, file)
	buffer := buffers.Get().(*[128 << 10]byte)
	_, err = io.CopyBuffer(&steady.Writer{File: file, Drop: true}, content, buffer[:])
	buffers.Put(buffer)
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
		// Do not return a store error, because PutOnce would then read the object back, which does not prove that it
		// is on disk.
		err = fmt.Errorf("cannot sync directory %s: %s", filepath.Join(root.Name(), name), err.Error())
	}
	return errors.Join(err, directory.Close())
}

// removeDraft removes a draft. Missing permission to delete is ignored, because backups must work without it. The
// draft then remains as a second, hidden name for the file.
func removeDraft(root *os.Root, draft string) error {
	if err := root.Remove(draft); !errors.Is(err, fs.ErrPermission) {
		return ignoreNotExist(err)
	}
	return nil
}

// source records errors from reading content, to distinguish them from file system errors.
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

// pageSize limits the number of directory entries in memory. Larger directories are reread for each page.
var pageSize = 4096 // tests lower it

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	if err := store.CheckPrefix(prefix, after); err != nil {
		return store.Failed(err)
	}
	return store.InOrder(func(yield func(store.Object, error) bool) {
		root, err := s.open()
		if err != nil {
			yield(store.Object{}, s.failed("cannot list", err))
			return
		}
		defer root.Close()
		walk := &walk{ctx: ctx, root: root, prefix: prefix, after: after, yield: yield}
		if err := walk.directory("."); err != nil && !walk.stopped {
			yield(store.Object{}, s.failed("cannot list", err))
		}
	}, "", after)
}

// walk lists a store recursively, in byte order of object names.
type walk struct {
	ctx           context.Context
	root          *os.Root
	prefix, after string
	yield         func(store.Object, error) bool
	stopped       bool
}

var errStopped = errors.New("listing abandoned")

// directory yields the objects in a directory in the order of their keys, and recurses into subdirectories. The key
// of an entry is its name, followed by a slash if the entry is a directory, so that keys sort like object names (a-b
// sorts before a/b).
func (w *walk) directory(directory string) error {
	for last := ""; ; {
		keys, err := w.page(directory, last)
		if err != nil {
			return err
		}
		for _, key := range keys {
			if err := w.entry(directory, key); err != nil {
				return err
			}
		}
		if len(keys) < pageSize {
			return nil
		}
		last = keys[len(keys)-1]
	}
}

func (w *walk) entry(directory, key string) error {
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	name := path.Join(directory, key)
	if strings.HasSuffix(key, "/") {
		return w.directory(name)
	}
	info, err := w.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // deleted in the meantime
	}
	if err != nil {
		return err
	}
	object := store.Object{Name: name, Modified: info.ModTime()}
	if info.Mode().IsRegular() {
		object.Size = info.Size() // other files, such as pipes, are listed as empty objects
	}
	if !w.yield(object, nil) {
		w.stopped = true
		return errStopped
	}
	return nil
}

// page returns the keys of a directory that match the listing and sort after last, in order, but not more than
// pageSize keys.
func (w *walk) page(directory, last string) (keys []string, err error) {
	opened, err := w.root.Open(directory)
	if err != nil {
		return nil, ignoreNotExist(err)
	}
	defer opened.Close()
	for {
		entries, err := opened.ReadDir(1024)
		for _, entry := range entries {
			if key := keyOf(entry); key > last && w.isMatch(strings.TrimPrefix(directory+"/"+key, "./")) {
				keys = append(keys, key)
			}
		}
		if len(keys) >= 2*pageSize || err != nil {
			slices.Sort(keys)
			keys = keys[:min(len(keys), pageSize)]
		}
		if errors.Is(err, io.EOF) {
			return keys, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// keyOf returns the key of a directory entry, or "" if the entry cannot belong to an object.
func keyOf(entry fs.DirEntry) string {
	switch {
	case strings.HasPrefix(entry.Name(), "."):
		return ""
	case entry.IsDir():
		return entry.Name() + "/"
	default:
		return entry.Name()
	}
}

// isMatch reports whether a name may belong to the listing. For a directory (a name that ends with a slash),
// isMatch reports whether any name in the directory may belong to the listing.
func (w *walk) isMatch(name string) bool {
	below := strings.HasSuffix(name, "/")
	inside := strings.HasPrefix(name, w.prefix) || below && strings.HasPrefix(w.prefix, name)
	beyond := name > w.after || below && strings.HasPrefix(w.after, name)
	return inside && beyond
}

// leftoverAge is the age after which a temporary file is considered abandoned.
const leftoverAge = time.Hour

// Sweep implements store.Sweeper by removing temporary files that have not been modified for an hour.
func (s *Store) Sweep(ctx context.Context) (removed int, err error) {
	root, err := s.open()
	if err != nil {
		return 0, s.failed("cannot sweep", err)
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || ctx.Err() != nil {
			return errors.Join(ignoreNotExist(err), context.Cause(ctx))
		}
		if !entry.Type().IsRegular() || !strings.HasPrefix(entry.Name(), temporary) {
			return nil
		}
		if info, err := entry.Info(); err != nil || time.Since(info.ModTime()) <= leftoverAge {
			return nil
		}
		removed++
		return ignoreNotExist(root.Remove(name))
	})
	return removed, s.failed("cannot sweep", err)
}
