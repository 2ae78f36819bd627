package backup_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"sync/atomic"

	"etcd-wrapper/backup/store"
)

// gallows is a store as a process sees it that is killed: nothing that it asks for afterwards happens, and of what it has asked
// for it hears nothing any more, be it done or not.
type gallows struct {
	store.Store
	dead, happens atomic.Bool
}

var errKilled = errors.New("killed")

// kill says whether what is asked for at that moment is done all the same.
func (g *gallows) kill(happens bool) {
	g.happens.Store(happens)
	g.dead.Store(true)
}

func (g *gallows) Put(ctx context.Context, name string, content io.Reader) error {
	if g.dead.Load() && !g.happens.CompareAndSwap(true, false) {
		return errKilled
	}
	err := g.Store.Put(context.WithoutCancel(ctx), name, content)
	if g.dead.Load() {
		return errKilled
	}
	return err
}

func (g *gallows) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if g.dead.Load() {
		return nil, errKilled
	}
	return g.Store.Get(ctx, name, offset, length)
}

func (g *gallows) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	if g.dead.Load() {
		return store.Failed(errKilled)
	}
	return g.Store.List(ctx, prefix, after)
}

func (g *gallows) Delete(ctx context.Context, name string) error {
	if g.dead.Load() {
		return errKilled
	}
	return g.Store.Delete(ctx, name)
}
