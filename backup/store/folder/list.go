package folder

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/store"
)

// pageSize limits the number of directory entries in memory. A larger directory is reread for each page.
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

// walk lists directories in byte order of object names.
type walk struct {
	ctx           context.Context
	root          *os.Root
	prefix, after string
	yield         func(store.Object, error) bool
	stopped       bool
}

var errStopped = errors.New("listing abandoned")

// directory lists a directory. The key of an entry is its name, followed by a slash if the entry is a directory. Keys
// sort like object names (a-b sorts before a/b).
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
		object.Size = info.Size() // other files count as objects without content
	}
	if !w.yield(object, nil) {
		w.stopped = true
		return errStopped
	}
	return nil
}

// page returns the next keys of a directory.
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

// keyOf returns the key of an entry, or "" if the entry cannot belong to an object.
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

// isMatch reports whether a name may belong to the listing. If name ends with a slash, isMatch reports whether a name
// below the directory may belong to it.
func (w *walk) isMatch(name string) bool {
	below := strings.HasSuffix(name, "/")
	inside := strings.HasPrefix(name, w.prefix) || below && strings.HasPrefix(w.prefix, name)
	beyond := name > w.after || below && strings.HasPrefix(w.after, name)
	return inside && beyond
}

// leftoverAge is the age after which a temporary file counts as abandoned.
const leftoverAge = time.Hour

// Sweep implements store.Sweeper by removing temporary files that have not grown for an hour.
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
