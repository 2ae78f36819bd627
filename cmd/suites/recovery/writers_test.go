package recovery_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	writers  = 3
	keys     = 30   // number of keys of each client
	longTTL  = 3600 // TTL of leases that must not expire during the test, in seconds
	shortTTL = 3    // TTL of leases that expire during the test, in seconds
	pace     = 2 * time.Millisecond
	patience = 5 * time.Second // timeout of a client request
)

// A client writes keys that no other client writes at the same time.
type client struct {
	etcd   *clientv3.Client
	ledger *ledger
	dice   *rand.Rand
	name   int
	lease  clientv3.LeaseID
}

// startWriting starts clients that write until stop is called.
func (l *ledger) startWriting(etcd *clientv3.Client, dice *rand.Rand) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	for n := range writers {
		w := &client{etcd: etcd, ledger: l, dice: rand.New(rand.NewPCG(dice.Uint64(), 0)), name: n}
		writing.Go(func() {
			w.prepare(ctx)
			for ctx.Err() == nil {
				w.change(ctx)
				select {
				case <-ctx.Done():
				case <-time.After(pace):
				}
			}
		})
	}
	return func() {
		cancel()
		writing.Wait()
		_ = etcd.Close() // an error is expected if the server is down
	}
}

// prepare grants a lease for the client's keys, and puts a key whose own lease expires soon.
func (w *client) prepare(ctx context.Context) {
	if long, err := w.etcd.Grant(ctx, longTTL); err == nil {
		w.lease = long.ID
	}
	if short, err := w.etcd.Grant(ctx, shortTTL); err == nil {
		_, _ = w.etcd.Put(ctx, fmt.Sprintf("brief/%d", w.name), "value", clientv3.WithLease(short.ID)) // fails during some faults
	}
}

// change puts or deletes a key and its mark in a transaction, and records the attempt in the ledger. Sometimes, it
// compacts instead.
func (w *client) change(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if w.dice.IntN(100) == 0 {
		if at := w.ledger.highest() - w.dice.Int64N(50); at > 0 { // not revision 0, which etcd also accepts
			_, _ = w.etcd.Compact(ctx, at) // fails if the revision has already been compacted
		}
		return
	}
	key := fmt.Sprintf("%d/%d", w.name, w.dice.IntN(keys))
	deletes, lease := w.dice.IntN(8) == 0, clientv3.LeaseID(0)
	if w.dice.IntN(10) == 0 && !deletes {
		lease = w.lease
	}
	now := w.ledger.attempt(key, deletes, lease)
	first := clientv3.OpPut(key, now.token, clientv3.WithLease(lease))
	if deletes {
		first = clientv3.OpDelete(key)
	}
	reply, err := w.etcd.Txn(ctx).Then(first, clientv3.OpPut(markPrefix+key, now.token)).Commit()
	if err == nil {
		w.ledger.acknowledge(now, reply.Header.Revision)
	}
}
