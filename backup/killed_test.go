package backup_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"sync/atomic"

	"etcd-wrapper/backup/store"
)

// killable is a store that a killed process has used: later requests are not executed, and the process gets no answers.
type killable struct {
	store.Store
	dead, happens atomic.Bool
}

var errKilled = errors.New("killed")

// kill kills the process. With happens, the next request is still executed.
func (s *killable) kill(happens bool) {
	s.happens.Store(happens)
	s.dead.Store(true)
}

func (s *killable) Put(ctx context.Context, name string, content io.Reader) error {
	if s.dead.Load() && !s.happens.CompareAndSwap(true, false) {
		return errKilled
	}
	err := s.Store.Put(context.WithoutCancel(ctx), name, content)
	if s.dead.Load() {
		return errKilled
	}
	return err
}

func (s *killable) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if s.dead.Load() {
		return nil, errKilled
	}
	return s.Store.Get(ctx, name, offset, length)
}

func (s *killable) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	if s.dead.Load() {
		return store.Failed(errKilled)
	}
	return s.Store.List(ctx, prefix, after)
}

func (s *killable) Delete(ctx context.Context, name string) error {
	if s.dead.Load() {
		return errKilled
	}
	return s.Store.Delete(ctx, name)
}
