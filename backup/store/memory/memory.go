// Package memory is an in-memory store for tests, with scripted faults.
package memory

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"etcd-wrapper/backup/store"
)

// Store is an empty store at first. It ends with the test.
type Store struct {
	// Now is the clock for the times of objects; nil means time.Now.
	Now func() time.Time

	mu      sync.Mutex
	objects map[string]object
	faults  []*Fault
	calls   []Call
}

type object struct {
	content  []byte
	modified time.Time
}

// New returns an empty store without faults.
func New() *Store { return &Store{objects: map[string]object{}} }

// String implements store.Store.
func (s *Store) String() string { return "memory://test/" }

// Put implements store.Store.
func (s *Store) Put(ctx context.Context, name string, content io.Reader) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	fault := s.begin(Put, name)
	if fault.First != nil {
		fault.First()
	}
	if err := fault.applyBefore(ctx); err != nil {
		return s.failed("cannot create "+name, err)
	}
	bytes, err := io.ReadAll(&bounded{ctx: ctx, Reader: content})
	if err != nil {
		return err
	}
	if err := s.create(name, bytes, fault.Overwrite); err != nil {
		return s.failed("cannot create "+name, err)
	}
	return s.failed("cannot create "+name, fault.applyAfter(ctx))
}

func (s *Store) create(name string, content []byte, overwrite bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.objects[name]; there && !overwrite {
		return store.ErrExists
	}
	now := time.Now
	if s.Now != nil {
		now = s.Now
	}
	s.objects[name] = object{content: content, modified: now()}
	return nil
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	fault := s.begin(Get, name)
	defer fault.finish()
	if err := fault.applyBefore(ctx); err != nil {
		return nil, s.failed("cannot read "+name, err)
	}
	s.mu.Lock()
	found, there := s.objects[name]
	s.mu.Unlock()
	if !there {
		return nil, s.failed("cannot read "+name, store.ErrNotFound)
	}
	content := found.content[min(offset, int64(len(found.content))):]
	if length >= 0 {
		content = content[:min(length, int64(len(content)))]
	}
	return io.NopCloser(&bounded{ctx: ctx, Reader: fault.cut(bytes.NewReader(content))}), nil
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	if err := store.CheckPrefix(prefix, after); err != nil {
		return store.Failed(err)
	}
	return func(yield func(store.Object, error) bool) {
		fault := s.begin(List, prefix)
		defer fault.finish()
		if err := fault.applyBefore(ctx); err != nil {
			yield(store.Object{}, s.failed("cannot list", err))
			return
		}
		for _, object := range s.listing(prefix, after) {
			if ctx.Err() != nil {
				yield(store.Object{}, context.Cause(ctx))
				return
			}
			if !fault.omits(object.Name) && !yield(object, nil) {
				return
			}
		}
	}
}

func (s *Store) listing(prefix, after string) (found []store.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		if strings.HasPrefix(name, prefix) && name > after {
			object := s.objects[name]
			found = append(found, store.Object{Name: name, Size: int64(len(object.content)), Modified: object.modified})
		}
	}
	return found
}

// Delete implements store.Store.
func (s *Store) Delete(ctx context.Context, name string) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	fault := s.begin(Delete, name)
	if err := fault.applyBefore(ctx); err != nil {
		return s.failed("cannot delete "+name, err)
	}
	s.mu.Lock()
	delete(s.objects, name)
	s.mu.Unlock()
	return s.failed("cannot delete "+name, fault.applyAfter(ctx))
}

// Content returns the content of an object, bypassing faults.
func (s *Store) Content(name string) (content []byte, there bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, there := s.objects[name]
	return bytes.Clone(found.content), there
}

// SetContent creates or replaces an object, bypassing faults, as another holder of the credentials could.
func (s *Store) SetContent(name string, content []byte) {
	_ = s.create(name, bytes.Clone(content), true)
}

func (s *Store) failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s in %s: %w", doing, s, err)
}

// bounded ends with its context.
type bounded struct {
	ctx context.Context
	io.Reader
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.ctx.Err() != nil {
		return 0, context.Cause(b.ctx)
	}
	return b.Reader.Read(p)
}
