package sidecarstore_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore/sidecarstore"
	"etcd-wrapper/backup/restore/sidecarstore/sidecarstoretest"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// fixture runs etcd and simulates a sidecar.
type fixture struct {
	*testing.T
	random *rand.Rand
	dir    string
	stop   func() // stops etcd, at most once
	client *clientv3.Client
	store  *memory.Store
	leases []clientv3.LeaseID
	clock  time.Time
	suffix string
}

func newFixture(t *testing.T, seed uint64) *fixture {
	w := &fixture{T: t, random: rand.New(rand.NewPCG(seed, 0)), dir: t.TempDir(), store: memory.New(), clock: noon, suffix: sidecarstoretest.Suffixes[seed%4]}
	server, err := datadirtest.Start(w.dir)
	require.NoError(t, err)
	w.client, err = clientv3.New(clientv3.Config{ // use gRPC, like the sidecar's client
		Endpoints: []string{server.Clients[0].Addr().String()}, Logger: zap.NewNop(),
	})
	require.NoError(t, err)
	w.stop = sync.OnceFunc(func() {
		_ = w.client.Close() // close the client first, because etcd waits for the client's watches
		server.Close()
	})
	t.Cleanup(w.stop)
	return w
}

func (w *fixture) revision() int64 {
	answer, err := w.client.Get(w.Context(), "\x00", clientv3.WithLastRev()...)
	require.NoError(w, err)
	return answer.Header.Revision
}

// full takes a full snapshot as the sidecar does: it reads the revision for the name, and takes the snapshot after
// other clients have written more. It returns the revision after the one in the name.
func (w *fixture) full(meanwhile int) (first int64) {
	last := w.revision()
	w.write(meanwhile)
	snapshot, err := w.client.Snapshot(w.Context())
	require.NoError(w, err)
	defer snapshot.Close()
	content, err := io.ReadAll(snapshot)
	require.NoError(w, err)
	w.keep(sidecarstoretest.Name("Full", 0, last, w.tick(), w.suffix), content)
	return last + 1
}

// watch starts a watch at a revision, as the sidecar does. The returned function collects the events and stores them
// in the given number of deltas.
func (w *fixture) watch(first int64) (keep func(deltas int)) {
	watch := w.client.Watch(w.Context(), "", clientv3.WithPrefix(), clientv3.WithRev(first))
	return func(deltas int) {
		w.keepDeltas(first, sidecarstoretest.UpTo(w, watch, w.revision()), deltas)
	}
}

func (w *fixture) keepDeltas(first int64, events []sidecarstoretest.Event, count int) {
	for ; len(events) > 0; count-- {
		size := len(events)
		if count > 1 {
			size = 1 + w.random.IntN(size)
		}
		for size < len(events) && events[size].EtcdEvent.Kv.ModRevision == events[size-1].EtcdEvent.Kv.ModRevision {
			size++ // keep all events of a revision in the same delta
		}
		last := events[size-1].EtcdEvent.Kv.ModRevision
		w.keep(sidecarstoretest.Name("Incr", first, last, w.tick(), w.suffix), sidecarstoretest.Delta(w, events[:size]...))
		first, events = last+1, events[size:]
	}
}

func (w *fixture) keep(name string, content []byte) {
	w.store.SetContent("v2/"+name, sidecarstoretest.Compress(w, w.suffix, content))
}

func (w *fixture) tick() time.Time {
	w.clock = w.clock.Add(time.Second)
	return w.clock
}

// write sends random requests.
func (w *fixture) write(requests int) {
	for range requests {
		_, err := w.client.Do(w.Context(), w.request())
		require.NoError(w, err)
		if w.random.IntN(20) == 0 {
			w.revoke()
		}
	}
}

func (w *fixture) request() clientv3.Op {
	switch w.random.IntN(6) {
	case 0:
		return clientv3.OpDelete(key(w.random.IntN(50)))
	case 1:
		return deleteBlock(w.random.IntN(5))
	case 2, 3:
		return w.transaction()
	default:
		return w.put(w.random.IntN(50))
	}
}

// transaction returns a transaction that changes multiple keys once each and may contain a nested transaction.
func (w *fixture) transaction() clientv3.Op {
	var outer, inner []clientv3.Op
	for _, number := range w.random.Perm(30)[:1+w.random.IntN(8)] {
		op := w.put(number)
		if w.random.IntN(3) == 0 {
			op = clientv3.OpDelete(key(number))
		}
		if w.random.IntN(4) == 0 {
			inner = append(inner, op)
		} else {
			outer = append(outer, op)
		}
	}
	for _, op := range []clientv3.Op{clientv3.OpTxn(nil, inner, nil), deleteBlock(3 + w.random.IntN(2))} {
		outer = slices.Insert(outer, w.random.IntN(len(outer)+1), op)
	}
	return clientv3.OpTxn(nil, outer, nil)
}

func (w *fixture) put(number int) clientv3.Op {
	value := make([]byte, w.random.IntN(40))
	for i := range value {
		value[i] = byte(w.random.Uint32())
	}
	if w.random.IntN(3) > 0 {
		return clientv3.OpPut(key(number), string(value))
	}
	return clientv3.OpPut(key(number), string(value), clientv3.WithLease(w.lease()))
}

// key returns a key in a block of ten keys. Each key contains bytes that JSON cannot represent.
func key(number int) string { return fmt.Sprintf("%s/%d", block(number/10), number) }

func block(number int) string { return fmt.Sprintf("<\x00\xff%d", number) }

func deleteBlock(number int) clientv3.Op {
	return clientv3.OpDelete(block(number), clientv3.WithPrefix())
}

func (w *fixture) lease() clientv3.LeaseID {
	if len(w.leases) < 3 {
		lease, err := w.client.Grant(w.Context(), 3600)
		require.NoError(w, err)
		w.leases = append(w.leases, lease.ID)
	}
	return w.leases[w.random.IntN(len(w.leases))]
}

// revoke revokes a lease, which deletes its keys in a single transaction, as the expiry of a lease does.
func (w *fixture) revoke() {
	_, err := w.client.Revoke(w.Context(), w.lease())
	require.NoError(w, err)
	w.leases = nil // forget the other leases without revoking them, so that their keys remain
}

// rows returns the rows in a database.
func rows(t *testing.T, file string) (rows []format.Row) {
	db, err := bolt.Open(file, 0o600, &bolt.Options{ReadOnly: true})
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.View(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("key")).ForEach(func(key, value []byte) error {
			rows = append(rows, format.Row{Key: bytes.Clone(key), Value: bytes.Clone(value)})
			return nil
		})
	}))
	return rows
}

// base writes a full snapshot to a file, opens the file, and returns its Base.
func (w *fixture) base(kept *sidecarstore.Archive, full sidecarstore.Object) sidecarstore.Base {
	snapshot, err := kept.Snapshot(w.Context(), full)
	require.NoError(w, err)
	defer snapshot.Close()
	content, err := io.ReadAll(snapshot)
	require.NoError(w, err)
	file := filepath.Join(w.TempDir(), "db")
	require.NoError(w, os.WriteFile(file, content, 0o600))
	held := rows(w.T, file)
	last := revisionsOf(held)[len(held)-1]
	return sidecarstore.Base{Revision: last, Row: func(revision []byte) (key, value []byte) {
		for _, row := range held {
			if bytes.HasPrefix(row.Key, revision) {
				return row.Key, row.Value
			}
		}
		return nil, nil
	}}
}
