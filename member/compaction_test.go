package member_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/member"
)

func TestBeforeCompaction(t *testing.T) {
	t.Parallel()
	var client *clientv3.Client
	var seen []error
	b := benchOptions(config(t, newDir(t)), func(o *member.Options) {
		o.BeforeCompaction = func(ctx context.Context) {
			_, err := client.Get(ctx, "k", clientv3.WithRev(2))
			seen = append(seen, err)
			<-ctx.Done() // a reader that blocks until its context ends
		}
	})
	require.NoError(t, b.Open(soon(t)))
	defer b.Close()
	client = b.client(t)
	for range 3 {
		_, err := client.Put(soon(t), "k", "v")
		require.NoError(t, err)
	}
	start := time.Now()
	_, err := client.Compact(soon(t), 4)
	require.NoError(t, err)
	assert.Less(t, time.Since(start), patience/2, "it does not wait for a reader without end")
	require.Equal(t, []error{nil}, seen, "the revision was there to be read")
	_, err = client.Get(soon(t), "k", clientv3.WithRev(2))
	require.ErrorContains(t, err, "compacted")
}

// compacting is a bench with auto-compaction. read counts the calls of BeforeCompaction.
type compacting struct {
	*bench
	read atomic.Int32
}

func newCompacting(config *embed.Config, mode, retention string) *compacting {
	c := &compacting{}
	config.AutoCompactionMode, config.AutoCompactionRetention = mode, retention
	c.bench = benchOptions(config, func(o *member.Options) { o.BeforeCompaction = func(context.Context) { c.read.Add(1) } })
	return c
}

// writeUntil writes keys until a condition holds.
func writeUntil(t *testing.T, client *clientv3.Client, holds func() bool, what string) {
	t.Helper()
	for ctx := soon(t); !holds(); {
		_, err := client.Put(ctx, "k", "v")
		require.NoError(t, err, what)
	}
}

func TestAutoCompaction_readsFirst(t *testing.T) {
	c := newCompacting(config(t, newDir(t)), "periodic", "300ms")
	require.NoError(t, c.Open(soon(t)))
	client := c.client(t)
	compacted := func() bool {
		_, err := client.Get(soon(t), "k", clientv3.WithRev(2))
		return err != nil && strings.Contains(err.Error(), "compacted")
	}
	writeUntil(t, client, compacted, "it compacts")
	assert.Positive(t, c.read.Load())
	c.mustClose(t)
	after := c.read.Load()
	assert.Never(t, func() bool { return c.read.Load() > after }, time.Second, tick, "it has ended with etcd")
}

func TestAutoCompaction_retention(t *testing.T) {
	for retention, taken := range map[string]bool{"": false, "0": false, "0s": false, "never": false, "7": true, "30m": true} {
		for _, mode := range []string{"periodic", "revision"} {
			c := newCompacting(config(t, newDir(t)), mode, retention)
			assert.Equal(t, taken, c.config.AutoCompactionRetention != retention, "%s %q", mode, retention)
		}
	}
	c := config(t, t.TempDir())
	c.AutoCompactionRetention = "30m"
	member.New(c, member.Options{})
	assert.Equal(t, "30m", c.AutoCompactionRetention, "where nobody reads, it is etcd's")
}

func TestAutoCompaction_leaderOnly(t *testing.T) {
	t.Parallel()
	var all []*compacting
	var members []*bench
	for _, config := range clusterConfigs(t, 3) {
		c := newCompacting(config, "periodic", "300ms")
		all, members = append(all, c), append(members, c.bench)
	}
	openAll(t, members)
	t.Cleanup(func() {
		for _, c := range all {
			c.mustClose(t)
		}
	})
	leads := leader(t, members)
	next := (leads + 1) % len(all)
	client := all[leads].client(t)
	writeUntil(t, client, func() bool { return all[leads].read.Load() > 1 }, "the leader compacts")
	assert.Zero(t, all[next].read.Load(), "the others do not")

	_, err := client.MoveLeader(soon(t), uint64(all[next].Server().MemberID()))
	require.NoError(t, err)
	client = all[next].client(t)
	writeUntil(t, client, func() bool { return all[next].read.Load() > 0 }, "so does the next one")
	before := all[leads].read.Load()
	more := all[next].read.Load() + 2
	writeUntil(t, client, func() bool { return all[next].read.Load() >= more }, "again and again")
	assert.Equal(t, before, all[leads].read.Load(), "the former does not any longer")
}
