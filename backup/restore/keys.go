package restore

import (
	"context"
	"errors"
	"iter"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/lease"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.uber.org/zap"
)

// Keys are those of a database that nobody else uses, as etcd's own store reads them. They belong to one goroutine.
type Keys struct {
	database backend.Backend
	store    mvcc.WatchableKV
}

// OpenKeys opens a database that was rebuilt, or a snapshot that was exported. It changes the file. Opening takes memory for the name of
// every key.
func OpenKeys(file string) (keys *Keys, err error) {
	err = guarded(func() error {
		config := backend.DefaultBackendConfig(zap.NewNop())
		config.Path, config.UnsafeNoFsync = file, true
		database := backend.New(config)
		keys = &Keys{database, mvcc.New(zap.NewNop(), database, &lease.FakeLessor{}, mvcc.StoreConfig{})}
		return nil
	})
	return keys, err
}

// keysAtOnce is how many keys are held in memory with their values.
const keysAtOnce = 1000

// From yields the keys from one on up to end, in order, as etcd has ranges: a nil end means that key alone, and an empty one all behind
// it. An error comes last.
func (k *Keys) From(ctx context.Context, key, end []byte) iter.Seq2[*mvccpb.KeyValue, error] {
	return func(yield func(*mvccpb.KeyValue, error) bool) {
		for {
			page, err := k.store.Range(ctx, key, end, mvcc.RangeOptions{Limit: keysAtOnce})
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range page.KVs {
				if !yield(&page.KVs[i], nil) {
					return
				}
			}
			if len(page.KVs) < keysAtOnce || end == nil {
				return
			}
			key = append(page.KVs[len(page.KVs)-1].Key, 0)
		}
	}
}

// Close ends reading.
func (k *Keys) Close() error { return errors.Join(k.store.Close(), k.database.Close()) }
