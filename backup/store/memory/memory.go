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
	fault, err := s.begin(ctx, Put, name)
	if err != nil {
		return err
	}
	read, err := io.ReadAll(&cancelable{ctx: ctx, Reader: content})
	if err != nil {
		return err
	}
	if !s.create(name, read, fault.Overwrite) {
		return fmt.Errorf("cannot create %s in %s: %w", name, s, store.ErrExists)
	}
	return s.loseReply(ctx, fault, Put, name)
}

// create reports whether it created or replaced an object.
func (s *Store) create(name string, content []byte, overwrite bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, exists := s.objects[name]; exists && !overwrite {
		return false
	}
	now := time.Now
	if s.Now != nil {
		now = s.Now
	}
	s.objects[name] = object{content: content, modified: now()}
	return true
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	fault, err := s.begin(ctx, Get, name)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	found, exists := s.objects[name]
	s.mu.Unlock()
	defer call(fault.Then)
	if !exists {
		return nil, fmt.Errorf("cannot read %s in %s: %w", name, s, store.ErrNotFound)
	}
	content := found.content[min(offset, int64(len(found.content))):]
	if length >= 0 {
		content = content[:min(length, int64(len(content)))]
	}
	return io.NopCloser(&cancelable{ctx: ctx, Reader: fault.cut(bytes.NewReader(content))}), nil
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	if err := store.CheckPrefix(prefix, after); err != nil {
		return store.Failed(err)
	}
	return func(yield func(store.Object, error) bool) {
		fault, err := s.begin(ctx, List, prefix)
		if err != nil {
			yield(store.Object{}, err)
			return
		}
		defer call(fault.Then)
		for _, object := range s.listing(prefix, after) {
			if ctx.Err() != nil {
				yield(store.Object{}, context.Cause(ctx))
				return
			}
			if hidden := fault.Hides != nil && fault.Hides(object.Name); !hidden && !yield(object, nil) {
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
	fault, err := s.begin(ctx, Delete, name)
	if err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.objects, name)
	s.mu.Unlock()
	return s.loseReply(ctx, fault, Delete, name)
}

// Content returns the content of an object, bypassing faults.
func (s *Store) Content(name string) (content []byte, exists bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, exists := s.objects[name]
	return bytes.Clone(found.content), exists
}

// SetContent creates or replaces an object, bypassing faults, as another holder of the credentials could.
func (s *Store) SetContent(name string, content []byte) {
	s.create(name, bytes.Clone(content), true)
}

// cancelable ends with its context.
type cancelable struct {
	ctx context.Context
	io.Reader
}

func (c *cancelable) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.Reader.Read(p)
}
