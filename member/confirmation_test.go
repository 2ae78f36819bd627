package member_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"etcd-wrapper/backup/writer/ack"
	"etcd-wrapper/member"
)

// confirming is a member whose replies wait until the test confirms that their data is stored.
type confirming struct {
	*bench
	*testing.T
	gate *ack.Gate
	etcd *clientv3.Client

	waiting atomic.Int64 // number of replies being held back
}

// Wait, WaitAll and Revision implement member.Confirmation.
func (c *confirming) Wait(ctx context.Context, revision int64) error {
	c.waiting.Add(1)
	defer c.waiting.Add(-1)
	return c.gate.Wait(ctx, revision)
}

func (c *confirming) WaitAll(ctx context.Context) error {
	c.waiting.Add(1)
	defer c.waiting.Add(-1)
	return c.gate.WaitAll(ctx)
}

func (c *confirming) Revision() int64 { return c.gate.Revision() }

func newConfirming(t *testing.T) *confirming {
	t.Helper()
	t.Parallel()
	c := &confirming{T: t, gate: ack.NewGate()}
	c.bench = benchOptions(config(t, newDir(t)), func(o *member.Options) { o.Confirmation = c })
	require.NoError(t, c.Open(soon(t)))
	t.Cleanup(func() {
		c.gate.Close(errors.New("the test ends"))
		_, _ = c.Close()
	})
	c.etcd = c.client(t)
	return c
}

// confirm confirms all revisions so far, but not changes without a revision.
func (c *confirming) confirm() { c.confirmUpTo(c.Server().KV().Rev()) }

func (c *confirming) confirmUpTo(revision int64) { c.gate.Confirm(revision, 0, time.Now()) }

// confirmAll confirms all changes so far, including those without a revision.
func (c *confirming) confirmAll() {
	c.gate.Confirm(c.Server().KV().Rev(), c.gate.Requests(), time.Now())
}

// start sends a request, waits until its reply is held back, and returns a channel for the result.
func (c *confirming) start(request func(ctx context.Context) error) <-chan error {
	c.Helper()
	before, done := c.waiting.Load(), make(chan error, 1)
	go func() { done <- request(soon(c.T)) }()
	require.Eventually(c, func() bool { return c.waiting.Load() > before }, patience, tick, "the reply is held back")
	assert.Empty(c, done)
	return done
}

// requirePassed waits for the reply to a request and returns its error. The test fails if the reply is held back.
func (c *confirming) requirePassed(done <-chan error) error {
	c.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		require.FailNow(c, "the reply is still held back")
		return nil
	}
}

func (c *confirming) put(key string) func(context.Context) error {
	return func(ctx context.Context) error { _, err := c.etcd.Put(ctx, key, "value"); return err }
}

func TestRepliesForKeysWaitForTheirRevision(t *testing.T) {
	c := newConfirming(t)
	for name, request := range map[string]func(ctx context.Context) error{
		"put": c.put("key"),
		"transaction": func(ctx context.Context) error {
			_, err := c.etcd.Txn(ctx).Then(clientv3.OpPut("key", "other")).Commit()
			return err
		},
		"deletion": func(ctx context.Context) error { _, err := c.etcd.Delete(ctx, "key"); return err },
	} {
		done := c.start(request)
		c.confirmUpTo(c.Server().KV().Rev() - 1)
		assert.Empty(t, done, name)
		read := c.start(func(ctx context.Context) error { _, err := c.etcd.Get(ctx, "key"); return err })
		stale := c.start(func(ctx context.Context) error {
			_, err := c.etcd.Get(ctx, "key", clientv3.WithSerializable())
			return err
		})
		compare := c.start(func(ctx context.Context) error {
			_, err := c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision("key"), "=", 0)).Commit()
			return err
		})
		c.confirm()
		for _, each := range []<-chan error{done, read, stale, compare} {
			assert.NoError(t, c.requirePassed(each), name)
		}
	}
	_, err := c.etcd.Get(soon(t), "key")
	require.NoError(t, err, "a read of stored data does not wait")
}

func TestRepliesWithoutARevisionWaitForEverything(t *testing.T) {
	c := newConfirming(t)
	c.confirm()
	lease := clientv3.LeaseID(7)
	_, err := c.etcd.Get(soon(t), "key")
	require.NoError(t, err)
	for _, each := range []struct {
		name    string
		request func(ctx context.Context) error
		err     error
	}{
		{name: "grant", request: func(ctx context.Context) error {
			_, err := clientv3.RetryLeaseClient(c.etcd).LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{ID: int64(lease), TTL: 100})
			return err
		}},
		{name: "time to live", request: func(ctx context.Context) error { _, err := c.etcd.TimeToLive(ctx, lease); return err }},
		{name: "leases", request: func(ctx context.Context) error { _, err := c.etcd.Leases(ctx); return err }},
		{name: "revoke", request: func(ctx context.Context) error { _, err := c.etcd.Revoke(ctx, lease); return err }},
		{name: "failed revoke", request: func(ctx context.Context) error { _, err := c.etcd.Revoke(ctx, lease); return err }, err: rpctypes.ErrLeaseNotFound},
		{name: "user", request: func(ctx context.Context) error { _, err := c.etcd.UserAdd(ctx, "user", "secret"); return err }},
		{name: "known user", request: func(ctx context.Context) error { _, err := c.etcd.UserAdd(ctx, "user", "secret"); return err }, err: rpctypes.ErrUserAlreadyExist},
		{name: "members", request: func(ctx context.Context) error { _, err := c.etcd.MemberList(ctx); return err }},
		{name: "alarms", request: func(ctx context.Context) error { _, err := c.etcd.AlarmList(ctx); return err }},
		{name: "compaction", request: func(ctx context.Context) error { _, err := c.etcd.Compact(ctx, 1); return err }},
		{name: "future revision", request: func(ctx context.Context) error { _, err := c.etcd.Get(ctx, "key", clientv3.WithRev(99)); return err }, err: rpctypes.ErrFutureRev},
		{name: "hash", request: func(ctx context.Context) error { _, err := c.etcd.HashKV(ctx, c.endpoint(), 0); return err }},
		{name: "gateway", request: c.rangeOverGateway},
	} {
		done := c.start(each.request)
		c.confirm()
		assert.Empty(t, done, each.name)
		c.confirmAll()
		assert.Equal(t, each.err, c.requirePassed(done), each.name)
	}
}

func (c *confirming) endpoint() string { return c.config.ListenClientUrls[0].String() }

// rangeOverGateway requests a revision that does not exist, so the reply is an error.
func (c *confirming) rangeOverGateway(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint()+"/v3/kv/range", strings.NewReader(`{"key":"a2V5","revision":99}`))
	if err != nil {
		return err
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if output, err := io.ReadAll(reply.Body); err != nil || !strings.Contains(string(output), "future revision") {
		return errors.Join(err, errors.New(string(output)))
	}
	return nil
}

func TestWatchSendsOnlyWhatIsStored(t *testing.T) {
	c := newConfirming(t)
	c.confirmAll()
	watch := c.etcd.Watch(soon(t), "key", clientv3.WithCreatedNotify())
	require.True(t, (<-watch).Created)
	first := c.start(c.put("key"))
	require.Eventually(t, func() bool { return c.waiting.Load() == 2 }, patience, tick, "the event is held back, and so is the reply to the put")
	second := c.start(c.put("key"))
	revision := c.Server().KV().Rev()
	assert.Empty(t, watch)
	c.confirmUpTo(revision - 1)
	assert.Equal(t, revision-1, (<-watch).Events[0].Kv.ModRevision)
	require.Eventually(t, func() bool { return c.waiting.Load() == 2 }, patience, tick, "the second event is held back, too")
	assert.Empty(t, watch)
	c.confirm()
	assert.Equal(t, revision, (<-watch).Events[0].Kv.ModRevision, "events arrive in order")
	require.NoError(t, c.requirePassed(first))
	require.NoError(t, c.requirePassed(second))

	late := c.start(c.put("other"))
	require.NoError(t, c.etcd.RequestProgress(soon(t)))
	require.Eventually(t, func() bool { return c.waiting.Load() == 2 }, patience, tick, "the progress notification is held back, too")
	assert.Empty(t, watch)
	c.confirm()
	assert.Equal(t, revision+1, (<-watch).Header.Revision)
	require.NoError(t, c.requirePassed(late))
}

func TestWaitOfAWatchEndsWithItsStream(t *testing.T) {
	c := newConfirming(t)
	c.confirmAll()
	ctx, cancel := context.WithCancel(soon(t))
	watch := c.etcd.Watch(ctx, "key", clientv3.WithCreatedNotify())
	require.True(t, (<-watch).Created)
	_ = c.start(c.put("key"))
	require.Eventually(t, func() bool { return c.waiting.Load() == 2 }, patience, tick, "the event and the reply to the put are held back")
	cancel()
	require.Eventually(t, func() bool { return c.waiting.Load() == 1 }, patience, tick, "canceling the watch ends the wait for its event")
}

func TestLeasesAreKeptAliveWhileOtherRepliesWait(t *testing.T) {
	c := newConfirming(t)
	granted := make(chan error, 1)
	var lease *clientv3.LeaseGrantResponse
	go func() {
		var err error
		lease, err = c.etcd.Grant(soon(t), 100)
		granted <- err
	}()
	c.confirmUpTo(1)
	require.Eventually(t, func() bool { return c.gate.Requests() == 1 }, patience, tick)
	c.confirmAll()
	require.NoError(t, <-granted)

	waiting := c.start(c.put("key"))
	kept, err := c.etcd.KeepAliveOnce(soon(t), lease.ID)
	require.NoError(t, err)
	assert.EqualValues(t, 100, kept.TTL)
	assert.EqualValues(t, 1, kept.Revision, "the header contains the last confirmed revision")
	state, err := c.etcd.Status(soon(t), c.endpoint())
	require.NoError(t, err)
	assert.EqualValues(t, 1, state.Header.Revision)

	ended := c.start(func(ctx context.Context) error { _, err := c.etcd.KeepAliveOnce(ctx, 4711); return err })
	c.confirmAll()
	assert.Equal(t, rpctypes.ErrLeaseNotFound, c.requirePassed(ended), "a reply about a missing lease waits, because it depends on revocations")
	require.NoError(t, c.requirePassed(waiting))

	c.gate.Confirm(2, 0, time.Now().Add(-ack.Validity))
	late := c.start(func(ctx context.Context) error { _, err := c.etcd.KeepAliveOnce(ctx, lease.ID); return err })
	c.confirm()
	require.NoError(t, c.requirePassed(late), "the reply waits while it is unknown whether the store still belongs to this cluster")
}

func TestNothingPassesBeforeTheStoreIsKnown(t *testing.T) {
	c := newConfirming(t)
	for _, request := range []func(ctx context.Context) error{
		func(ctx context.Context) error { _, err := c.etcd.Get(ctx, "key"); return err },
		func(ctx context.Context) error { _, err := c.etcd.MemberList(ctx); return err },
		func(ctx context.Context) error { _, err := c.etcd.Status(ctx, c.endpoint()); return err },
	} {
		done := c.start(request)
		c.confirmAll()
		require.NoError(t, c.requirePassed(done))
		c.gate.Confirm(0, 0, time.Now())
	}
}

func TestSnapshotIsSentOnceEverythingInItIsStored(t *testing.T) {
	c := newConfirming(t)
	c.confirm()
	var read int64
	done := c.start(func(ctx context.Context) error {
		reader, err := c.etcd.Snapshot(ctx)
		if err == nil {
			read, err = io.Copy(io.Discard, reader)
		}
		return err
	})
	c.confirm()
	assert.Empty(t, done)
	c.confirmAll()
	require.NoError(t, c.requirePassed(done))
	assert.Greater(t, read, int64(16<<10))
	assert.EqualValues(t, 1, c.gate.Requests(), "only the first chunk waits")
}

func TestLocksWaitForEverything(t *testing.T) {
	c := newConfirming(t)
	stop := make(chan struct{})
	finished := make(chan struct{})
	go func() { // creating the session also creates a lease and a key
		defer close(finished)
		for {
			select {
			case <-stop:
				return
			case <-time.After(tick):
				c.confirmAll()
			}
		}
	}()
	session, err := concurrency.NewSession(c.etcd)
	require.NoError(t, err)
	close(stop)
	<-finished
	done := c.start(func(ctx context.Context) error {
		_, err := v3lockpb.NewLockClient(c.etcd.ActiveConnection()).Lock(ctx, &v3lockpb.LockRequest{Name: []byte("lock"), Lease: int64(session.Lease())})
		return err
	})
	c.confirm()
	assert.Empty(t, done)
	c.confirmAll()
	require.NoError(t, c.requirePassed(done))
}

func TestNoMemberIsAdded(t *testing.T) {
	c := newConfirming(t)
	c.confirmAll()
	_, err := c.etcd.MemberAdd(soon(t), []string{"http://127.0.0.1:1"})
	assert.Equal(t, codes.FailedPrecondition, status.Code(err))
	assert.ErrorContains(t, err, "--backup-ack=local")
	assert.Len(t, c.Server().Cluster().Members(), 1)
}

func TestReplyEndsWithTheClientsDeadlineOrTheGate(t *testing.T) {
	c := newConfirming(t)
	ctx, cancel := context.WithCancel(soon(t))
	done := c.start(func(context.Context) error { return c.put("key")(ctx) })
	cancel()
	assert.ErrorIs(t, c.requirePassed(done), context.Canceled)
	require.Eventually(t, func() bool { return c.waiting.Load() == 0 }, patience, tick)

	stopped := c.start(c.put("key"))
	c.gate.Close(errors.New("etcd is stopping"))
	err := c.requirePassed(stopped)
	assert.Equal(t, codes.Unavailable, status.Code(err))
	assert.ErrorContains(t, err, "etcd is stopping")
}

func TestDataOfSeveralMembersIsRefused(t *testing.T) {
	members := three(t)
	b := members[0]
	b.mustClose(t)
	copied := *b.config
	restarted := benchOptions(&copied, func(o *member.Options) { o.Confirmation = &confirming{gate: ack.NewGate()} })
	require.ErrorIs(t, restarted.Open(soon(t)), member.ErrSeveralMembers)
	opened, err := restarted.Close()
	require.NoError(t, err)
	assert.False(t, opened, "etcd has not opened the data")
}

// rooted returns a bench with the given root password, or without one if password is empty.
func rooted(config *embed.Config, password string) *bench {
	return benchOptions(config, func(o *member.Options) { o.RootPassword = password })
}

// put writes a key as the given user, or anonymously if user is empty.
func put(t *testing.T, b *bench, user, password string) error {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint(b.config)}, Username: user, Password: password, DialTimeout: patience,
	})
	if err == nil {
		_, err = client.Put(soon(t), "key", "value")
		assert.NoError(t, client.Close())
	}
	return err
}

func TestRootPassword_newCluster(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	first := rooted(config(t, dir), "first:secret")
	anonymous := make(chan error)
	go func() { // send requests from before the member serves clients
		client := first.client(t)
		for {
			if _, err := client.Put(soon(t), "key", "value"); err == nil || errors.Is(err, rpctypes.ErrUserEmpty) {
				anonymous <- err
				return
			}
		}
	}()
	streamed := make(chan error)
	go func() {
		client := first.client(t)
		for {
			database, err := client.Snapshot(soon(t))
			if err == nil {
				_, err = io.Copy(io.Discard, database)
			}
			if err == nil || errors.Is(err, rpctypes.ErrUserEmpty) {
				streamed <- err
				return
			}
		}
	}()
	require.NoError(t, first.Open(soon(t)))
	require.ErrorIs(t, <-anonymous, rpctypes.ErrUserEmpty, "no anonymous write was accepted at any time")
	require.ErrorIs(t, <-streamed, rpctypes.ErrUserEmpty, "no anonymous snapshot was sent at any time")
	require.ErrorIs(t, put(t, first, "root", "secret"), rpctypes.ErrAuthFailed)
	require.NoError(t, put(t, first, "root", "first:secret"))
	require.NoError(t, first.LinearizableRead(soon(t)))
	require.Contains(t, first.log.String(), "created the root user")
	first.mustClose(t)
	assert.NotContains(t, first.log.String(), "first:secret")

	second := rooted(config(t, dir), "another")
	require.NoError(t, second.Open(soon(t)))
	defer second.Close()
	require.ErrorIs(t, put(t, second, "", ""), rpctypes.ErrUserEmpty)
	require.NoError(t, put(t, second, "root", "first:secret"), "a different --root-password-file does not change the password")
	assert.NotContains(t, second.log.String(), "root-password-file")
}

// A cluster with keys or users must not be changed.
func TestRootPassword_existingCluster(t *testing.T) {
	t.Parallel()
	for name, fill := range map[string]func(ctx context.Context, client *clientv3.Client) error{
		"a key": func(ctx context.Context, client *clientv3.Client) error {
			_, err := client.Put(ctx, "key", "value")
			return err
		},
		"a deleted key": func(ctx context.Context, client *clientv3.Client) error {
			_, err := client.Put(ctx, "key", "value")
			if err == nil {
				_, err = client.Delete(ctx, "key")
			}
			return err
		},
		"a user": func(ctx context.Context, client *clientv3.Client) error {
			_, err := client.UserAdd(ctx, "alice", "secret")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := newDir(t)
			before := newBench(t, dir)
			require.NoError(t, before.Open(soon(t)))
			require.NoError(t, fill(soon(t), before.client(t)))
			before.mustClose(t)

			after := rooted(config(t, dir), "secret")
			require.NoError(t, after.Open(soon(t)))
			defer after.Close()
			require.NoError(t, put(t, after, "", ""))
			require.Contains(t, after.log.String(), "ignoring --root-password-file")
		})
	}
}

// A member must finish setting up the root user even if previous attempts were interrupted halfway.
func TestRootPassword_interrupted(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	before := newBench(t, dir)
	require.NoError(t, before.Open(soon(t)))
	_, err := before.client(t).UserAdd(soon(t), "root", "old")
	require.NoError(t, err)
	before.mustClose(t)

	after := rooted(config(t, dir), "new")
	require.NoError(t, after.Open(soon(t)))
	defer after.Close()
	require.ErrorIs(t, put(t, after, "", ""), rpctypes.ErrUserEmpty)
	require.ErrorIs(t, put(t, after, "root", "old"), rpctypes.ErrAuthFailed)
	require.NoError(t, put(t, after, "root", "new"))
}

// openRooted starts a cluster with one member per password. A member with an empty password runs without
// --root-password-file.
func openRooted(t *testing.T, passwords ...string) (members []*bench) {
	t.Helper()
	for i, config := range clusterConfigs(t, len(passwords)) {
		b := rooted(config, passwords[i])
		t.Cleanup(func() { _, _ = b.Close() })
		members = append(members, b)
	}
	openAll(t, members)
	return members
}

func TestRootPassword_severalMembers(t *testing.T) {
	t.Parallel()
	for name, passwords := range map[string][]string{
		"all members have a password": {"secret", "secret", "secret"},
		"one member has a password":   {"", "secret", ""}, // as during a rollout, when the leader may not have the flag yet
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, b := range openRooted(t, passwords...) {
				require.ErrorIs(t, put(t, b, "", ""), rpctypes.ErrUserEmpty)
				require.NoError(t, put(t, b, "root", "secret"))
				if passwords[0] != "" {
					assert.NotContains(t, b.log.String(), "cannot create the root user")
				}
			}
		})
	}
}
