package member_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/member"
)

// three starts a three-member cluster and returns its members, leader first. All members except the leader are closed
// when the test ends.
func three(t *testing.T) (members []*bench) {
	t.Helper()
	return threeWith(t, func(*embed.Config, *member.Options) {})
}

func threeWith(t *testing.T, change func(*embed.Config, *member.Options)) (members []*bench) {
	t.Helper()
	for _, config := range clusterConfigs(t, 3) {
		members = append(members, benchOptions(config, func(o *member.Options) { change(config, o) }))
	}
	openAll(t, members)
	leads := leader(t, members)
	members[0], members[leads] = members[leads], members[0]
	t.Cleanup(func() {
		for _, b := range members[1:] {
			b.mustClose(t)
		}
	})
	return members
}

// leader waits until a member is the leader and returns its index.
func leader(t *testing.T, members []*bench) (index int) {
	t.Helper()
	require.Eventually(t, func() bool {
		index = slices.IndexFunc(members, func(b *bench) bool { return b.Server().Leader() == b.Server().MemberID() })
		return index >= 0
	}, patience, tick, "there is no leader")
	return index
}

func endpoint(config *embed.Config) string { return config.ListenClientUrls[0].String() }

// writers concurrently write keys to one member until it stops serving.
type writers struct {
	mu      sync.Mutex
	acked   map[string]bool // acknowledged keys
	errs    []error         // each writer's final error
	working sync.WaitGroup
	cancel  context.CancelFunc
}

func startWriters(t *testing.T, b *bench) *writers {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &writers{acked: map[string]bool{}, cancel: cancel}
	for i := range 3 { // more writers would just compete with etcd for CPU time
		client := b.client(t)
		w.working.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key := fmt.Sprintf("key-%d-%d", i, n)
				_, err := client.Put(ctx, key, "value")
				if w.note(key, err); err != nil {
					return
				}
			}
		})
	}
	return w
}

func (w *writers) note(key string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.errs = append(w.errs, err)
		return
	}
	w.acked[key] = true
}

func (w *writers) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.acked)
}

// stop cancels any pending requests and returns the acknowledged keys.
func (w *writers) stop() map[string]bool {
	w.cancel()
	w.working.Wait()
	return w.acked
}

// Every write must get a response, even though raft drops proposals during a leadership transfer.
func TestClose_leaderUnderLoad(t *testing.T) {
	t.Parallel()
	members := three(t)
	watcher := members[0].client(t)
	events := watcher.Watch(soon(t), "key-", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	require.True(t, (<-events).Created)
	watcher.SetEndpoints(endpoint(members[0].config), endpoint(members[1].config), endpoint(members[2].config))

	writers := startWriters(t, members[0])
	require.Eventually(t, func() bool { return writers.count() > 500 }, patience, tick)
	members[0].mustClose(t)
	acked := writers.stop()
	for _, err := range writers.errs {
		assert.NotRegexp(t, "raft|etcdserver", err, "etcd must not fail a write that it has accepted")
	}

	survivor := members[1].client(t)
	_, err := survivor.Put(soon(t), "key-last", "value")
	require.NoError(t, err)
	acked["key-last"] = true
	reply, err := survivor.Get(soon(t), "key-", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	written := map[string]bool{}
	for _, kv := range reply.Kvs {
		written[string(kv.Key)] = true
	}
	assert.Equal(t, acked, written, "the cluster has exactly the acknowledged keys")
	assert.Equal(t, acked, watchedKeys(t, events), "the watch has received an event for each acknowledged key")
}

// watchedKeys returns the keys of all events up to the final key, and checks that events arrive in order and without
// duplicates.
func watchedKeys(t *testing.T, events clientv3.WatchChan) map[string]bool {
	t.Helper()
	keys, revision := map[string]bool{}, int64(0)
	for !keys["key-last"] {
		reply, ok := <-events
		require.True(t, ok, "the watch must not end")
		require.NoError(t, reply.Err())
		for _, event := range reply.Events {
			require.Greater(t, event.Kv.ModRevision, revision)
			revision, keys[string(event.Kv.Key)] = event.Kv.ModRevision, true
		}
	}
	return keys
}

// pauseFailed reports whether any member has logged that writes were not paused in time.
func pauseFailed(members []*bench) bool {
	return slices.ContainsFunc(members, func(b *bench) bool { return strings.Contains(b.log.String(), "may be delayed") })
}

// No write may fail during a leadership transfer. In plain etcd, some of these writes fail with "raft proposal
// dropped", which clients must not retry, and others time out.
func TestMoveLeader_writes(t *testing.T) {
	t.Parallel()
	members := three(t)
	defer members[0].Close()
	var all []*writers
	for _, b := range members {
		all = append(all, startWriters(t, b))
	}
	moved := func() bool { return all[0].count() > 200 && all[1].count() > 200 && all[2].count() > 200 }
	require.Eventually(t, moved, patience, tick)
	for range 6 {
		leads := leader(t, members)
		to := members[(leads+1)%len(members)]
		_, err := members[leads].client(t).MoveLeader(soon(t), uint64(to.ID()))
		require.NoError(t, err)
	}
	counts := []int{all[0].count(), all[1].count(), all[2].count()}
	for i, w := range all {
		require.Eventually(t, func() bool { return w.count() > counts[i]+100 }, patience, tick, "all writers continue after the transfers")
		w.mu.Lock()
		if !pauseFailed(members) {
			assert.Empty(t, w.errs)
		}
		w.mu.Unlock()
	}
	for _, w := range all {
		w.stop()
	}
}

// reservedID returns the lease ID of a claim. It does not use package maintenance, so that the tests detect a change
// of the format, on which members of different releases rely.
func reservedID(kind, nonce int64, member types.ID) int64 {
	return 0x65e7<<48 | kind<<44 | nonce<<32 | int64(uint32(member))
}

const (
	turnKind         = 2
	handoverKind     = 3
	writesPausedKind = 4
)

// grant creates a claim without the interceptors, which reject reserved lease IDs.
func grant(t *testing.T, b *bench, id int64) {
	t.Helper()
	_, err := b.Server().LeaseGrant(soon(t), &etcdserverpb.LeaseGrantRequest{ID: id, TTL: 3600})
	require.NoError(t, err)
}

// appears waits for a lease and reports whether it was created.
func appears(t *testing.T, b *bench, id int64) bool {
	t.Helper()
	return assert.Eventually(t, func() bool {
		reply, err := b.Server().LeaseLeases(t.Context(), &etcdserverpb.LeaseLeasesRequest{})
		return err == nil && slices.ContainsFunc(reply.Leases, func(l *etcdserverpb.LeaseStatus) bool { return l.ID == id })
	}, patience, tick)
}

// timePut returns the duration of a write.
func timePut(t *testing.T, client *clientv3.Client) time.Duration {
	t.Helper()
	start := time.Now()
	_, err := client.Put(soon(t), "key", "value")
	require.NoError(t, err)
	return time.Since(start)
}

// pauseCount returns the number of times that the member has paused its writes.
func (b *bench) pauseCount() int {
	return strings.Count(b.log.String(), "paused writes during the leadership transfer")
}

// Every member must pause its writes exactly once, because the leader silently drops forwarded proposals during a
// leadership transfer, and clients would wait for 7 s.
func TestMoveLeader_pausesWritesOnce(t *testing.T) {
	t.Parallel()
	members := three(t)
	defer members[0].Close()
	leading := leader(t, members)
	leads := members[leading].ID()
	client, confirmed := members[1].client(t), make(chan bool, 3)
	// Announcements that are not from the current leader must be ignored.
	for nonce, id := range []types.ID{1, members[(leading+1)%3].ID()} {
		grant(t, members[1], reservedID(handoverKind, int64(nonce), id))
	}
	for range 20 {
		timePut(t, client)
	}
	assert.Zero(t, members[1].pauseCount(), "announcements from other members than the leader are ignored")
	for _, b := range members {
		go func() { confirmed <- appears(t, members[1], reservedID(writesPausedKind, 7, b.ID())) }()
	}
	grant(t, members[2], reservedID(handoverKind, 7, leads))
	require.Eventually(t, func() bool { return timePut(t, client) > 700*time.Millisecond }, patience, time.Millisecond, "a write must wait during the pause")
	for range 100 {
		timePut(t, client)
	}
	require.Eventually(t, func() bool { return members[1].pauseCount() > 0 }, patience, tick)
	assert.Equal(t, 1, members[1].pauseCount(), "an announcement pauses writes once, even if its lease is not revoked")
	for _, b := range members {
		assert.True(t, <-confirmed, "member %s must confirm the pause", b.ID())
	}
}

func TestMoveLeader_withoutRoot(t *testing.T) {
	public := filepath.Join(t.TempDir(), "public.pem")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600))
	members := threeWith(t, func(c *embed.Config, o *member.Options) {
		o.Maintenance.MaxPause = time.Minute
		c.AuthToken = "jwt,sign-method=ES256,pub-key=" + public
	})
	leadLastStarted(t, members)
	leads := leader(t, members)
	members[0], members[leads] = members[leads], members[0]
	enableAuth(t, members[1].client(t))
	revision := members[1].Server().KV().Rev()
	require.NoError(t, members[2].Maintainer.Trigger())
	require.Eventually(t, func() bool { return members[2].Maintainer.State().LastDefragmentation != nil }, patience, tick)
	assert.Empty(t, members[2].Maintainer.State().LastDefragmentation.Error)
	members[0].mustClose(t)
	assert.True(t, strings.Contains(members[0].log.String(), "transferred leadership before stopping"))
	assert.False(t, pauseFailed(members), "all members have paused their writes")
	assert.Equal(t, revision, members[1].Server().KV().Rev())
}

// replaceDatabase disconnects a member until the other members have compacted log entries that it lacks, so that the
// leader must send it a snapshot. This may take several attempts, because a leader does not compact its log for 30 s
// after sending a snapshot.
func replaceDatabase(t *testing.T, others []*bench, behind *bench) {
	t.Helper()
	client := others[0].client(t)
	forEachLink := func(change func(a, b *bench)) {
		for _, b := range others {
			change(b, behind)
			change(behind, b)
		}
	}
	replaced := logs(behind, "closed old backend file")
	for start := time.Now(); !replaced(); {
		require.Less(t, time.Since(start), 2*patience, "the leader has not sent a snapshot")
		forEachLink(func(a, b *bench) { a.Server().CutPeer(b.ID()) })
		for range 100 {
			timePut(t, client)
		}
		forEachLink(func(a, b *bench) { a.Server().MendPeer(b.ID()) })
		require.Eventually(t, func() bool {
			return replaced() || behind.Server().AppliedIndex() >= others[0].Server().AppliedIndex()
		}, patience, tick)
	}
}

// A member must still pause its writes after a snapshot from the leader has replaced its database.
func TestMoveLeader_afterASnapshot(t *testing.T) {
	t.Parallel()
	members := threeWith(t, func(c *embed.Config, _ *member.Options) { c.SnapshotCount, c.SnapshotCatchUpEntries = 10, 10 })
	defer members[0].Close()
	leads, behind := members[0], members[2]
	replaceDatabase(t, members[:2], behind)
	grant(t, leads, reservedID(handoverKind, 9, types.ID(leads.Server().Lead())))
	assert.True(t, appears(t, leads, reservedID(writesPausedKind, 9, behind.ID())))
}

func TestClose_unreadResponse(t *testing.T) {
	t.Parallel()
	for name, secure := range map[string]bool{"plain text": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			config, transportSecurity := config(t, t.TempDir()), insecure.NewCredentials()
			if secure {
				authority := certificates.NewAuthority(t, "authority")
				pair := authority.Issue("server")
				config.ClientTLSInfo = transport.TLSInfo{CertFile: pair.Cert, KeyFile: pair.Key}
				config.ListenClientUrls[0].Scheme, config.AdvertiseClientUrls[0].Scheme = "https", "https"
				transportSecurity = credentials.NewTLS(&tls.Config{RootCAs: authority.Pool(), MinVersion: tls.VersionTLS12})
			}
			b := benchWith(t, config)
			require.NoError(t, b.Open(soon(t)))
			for i := range 16 {
				_, err := b.Server().Put(soon(t), &etcdserverpb.PutRequest{Key: []byte{byte(i)}, Value: []byte(strings.Repeat("x", 1<<20))})
				require.NoError(t, err)
			}
			connection, err := grpc.NewClient(config.ListenClientUrls[0].Host, grpc.WithTransportCredentials(transportSecurity))
			require.NoError(t, err)
			defer connection.Close()
			unread, err := connection.NewStream(context.Background(), &grpc.StreamDesc{ServerStreams: true}, "/etcdserverpb.KV/Range")
			require.NoError(t, err)
			require.NoError(t, unread.SendMsg(&etcdserverpb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}))
			_, err = unread.Header()
			require.NoError(t, err, "the server has started to send the response")

			watch := harness.StartWatch()
			b.mustClose(t)
			assert.Less(t, watch.Duration(), 5*time.Second, "plain etcd would wait 7 s without TLS, and forever with TLS")
			if secure {
				assert.Contains(t, b.log.String(), "is not reading the response to KV/Range")
			}
		})
	}
}

// Two of three members, including the leader, must be able to leave at the same time, as when a StatefulSet is scaled
// from three to one.
func TestClose_unwantedMembersLeave(t *testing.T) {
	t.Parallel()
	// etcd refuses to remove a member until all members have been connected for 5 s.
	members := threeWith(t, func(_ *embed.Config, o *member.Options) { o.CloseTimeout = patience })
	stays, client := members[1], members[1].client(t)
	_, err := client.Put(soon(t), "key", "before")
	require.NoError(t, err)
	closed := make(chan error, 2)
	for _, b := range []*bench{members[0], members[2]} {
		b.unwanted.Store(true)
		go func() {
			_, err := b.Close()
			closed <- err
		}()
	}
	for range 2 {
		require.NoError(t, <-closed)
	}
	left, err := client.MemberList(soon(t))
	require.NoError(t, err)
	require.Len(t, left.Members, 1)
	assert.Equal(t, stays.config.Name, left.Members[0].Name)
	_, err = client.Put(soon(t), "key", "after")
	require.NoError(t, err, "the remaining member has a quorum on its own")
	for _, b := range []*bench{members[0], members[2]} {
		assert.Contains(t, b.log.String(), "left the cluster")
	}
}

// The last member must not remove itself from the cluster.
func TestClose_lastMemberStays(t *testing.T) {
	b := openBench(t)
	b.unwanted.Store(true)
	opened, err := b.Close()
	require.NoError(t, err)
	assert.True(t, opened)
	assert.NotContains(t, b.log.String(), "scaled down")
}
