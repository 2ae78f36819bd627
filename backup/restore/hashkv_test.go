package restore

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/pkg/v3/traceutil"
	"go.etcd.io/etcd/server/v3/lease"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"pgregory.net/rapid"
)

func key(t *rapid.T) []byte { return fmt.Appendf(nil, "key-%d", rapid.IntRange(0, 6).Draw(t, "key")) }

// table is how many keys are looked at a time; the first one needs a pass for each.
func table(t *rapid.T) int { return rapid.SampledFrom([]int{1, 2, 3, 0}).Draw(t, "table") }

// change is what a client can ask for.
func (e *etcd) change(t *rapid.T, w mvcc.WriteView, key []byte) {
	switch rapid.IntRange(0, 9).Draw(t, "change") {
	case 0, 1, 2:
		w.DeleteRange(key, nil)
	case 3:
		if len(e.leases) > 0 {
			w.Put(key, []byte("leased"), rapid.SampledFrom(e.leases).Draw(t, "lease"))
		}
	default:
		w.Put(key, rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "value"), lease.NoLease)
	}
}

// transaction changes each key once: etcd refuses one that deletes and stores the same.
func (e *etcd) transaction(t *rapid.T) {
	keys := rapid.SliceOfNDistinct(rapid.Custom(key), 1, 4, func(key []byte) string { return string(key) }).Draw(t, "keys")
	txn := e.Write(traceutil.TODO())
	defer txn.End() // also when rapid stops the test, to find a shorter history
	for _, key := range keys {
		e.change(t, txn, key)
	}
}

func (e *etcd) grantOrRevoke(t *rapid.T) {
	if len(e.leases) > 0 && rapid.Bool().Draw(t, "revoke") {
		require.NoError(t, e.lessor.Revoke(e.leases[0]))
		e.leases = e.leases[1:]
		return
	}
	granted, err := e.lessor.Grant(lease.LeaseID(rapid.Int64Range(1, 1<<40).Draw(t, "id")), 1000)
	if err == nil {
		e.leases = append(e.leases, granted.ID)
	}
}

// compactAndCompare compacts, and compares the hash that etcd stores with the one of the database before and after.
func (e *etcd) compactAndCompare(t *rapid.T, at int64) {
	before := e.file()
	e.compact(at)
	for _, stored := range e.HashStorage().Hashes() {
		if stored.Revision != at {
			continue
		}
		hash, err := request{stored.CompactRevision, stored.Revision, true, table(t)}.of(t.Context(), before)
		require.NoError(t, err)
		require.Equal(t, stored.Hash, hash, "compaction at %d after %d", stored.Revision, stored.CompactRevision)
	}
}

// compare compares the hash of etcd at a revision with that of a copy of its database.
func (e *etcd) compare(t *rapid.T) {
	at := rapid.Int64Range(max(1, e.FirstRev()), e.Rev()).Draw(t, "at")
	for _, stored := range e.HashStorage().Hashes() {
		if stored.Revision == at {
			return // etcd answers with the hash of that compaction, and its rows are gone
		}
	}
	said, _, err := e.HashStorage().HashByRev(at)
	require.NoError(t, err)
	copied := e.file()
	hash, err := HashKV(t.Context(), copied, said.CompactRevision, at)
	require.NoError(t, err)
	require.Equal(t, said.Hash, hash, "revision %d, compacted at %d", at, said.CompactRevision)
	hash, err = request{said.CompactRevision, at, false, table(t)}.of(t.Context(), copied)
	require.NoError(t, err)
	require.Equal(t, said.Hash, hash, "revision %d, compacted at %d", at, said.CompactRevision)
}

// act does one thing that can happen to an etcd.
func (e *etcd) act(t *rapid.T) {
	switch what := rapid.SampledFrom(actions).Draw(t, "action"); what {
	case "change":
		e.change(t, e, key(t))
	case "deletion":
		e.DeleteRange(key(t), []byte("key-9"))
	case "transaction":
		e.transaction(t)
	case "lease":
		e.grantOrRevoke(t)
	case "compaction", "interrupted compaction":
		at := rapid.Int64Range(e.FirstRev()+1, max(e.FirstRev()+1, e.Rev())).Draw(t, "compaction at")
		if at > e.Rev() {
			return
		}
		if what == "compaction" {
			e.compactAndCompare(t, at)
			return
		}
		e.compactInterrupted(at)
		e.await()
	case "defragmentation":
		require.NoError(t, e.back.Defrag())
	case "restart":
		e.stop()
		e.open(0)
	}
}

var actions = []string{
	"change", "change", "change", "change", "change", "transaction", "transaction", "deletion", "lease",
	"compaction", "interrupted compaction", "defragmentation", "restart",
}

func TestTheHashIsTheOneThatEtcdSaysAfterAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "hashkv-")
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		e := start(t, dir)
		defer func() { e.stop() }()
		for range rapid.IntRange(1, 40).Draw(t, "actions") {
			e.act(t)
			e.compare(t)
		}
	})
}
