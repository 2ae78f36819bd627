package member_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/member"
)

// rooted returns a bench with a root password.
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
	go func() {
		client := first.client(t)
		for { // starts before the member is serving
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
	require.ErrorIs(t, <-anonymous, rpctypes.ErrUserEmpty, "no anonymous client was served, not even the first one")
	require.ErrorIs(t, <-streamed, rpctypes.ErrUserEmpty, "nor with a stream")
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
	require.NoError(t, put(t, second, "root", "first:secret"), "the password of a cluster stays")
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
			_, err := client.UserAdd(ctx, "somebody", "secret")
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

// A start may be interrupted between any two steps.
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

// openRooted starts a cluster with a member for each password. An empty password means that none is configured.
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
		"all have it":        {"secret", "secret", "secret"},
		"one of them has it": {"", "secret", ""}, // the leader may not have the flag yet while it is being rolled out
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
