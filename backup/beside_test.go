package backup_test

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/cmd/suites/etcdtest"
)

// rights are the users, roles and settings of authentication in etcd's database.
type rights struct {
	revision int64 // etcd's then
	of       map[string]string
}

func rightsOf(revision int64, entries func(bucket backend.Bucket, each func(k, v []byte) error)) rights {
	found := rights{revision, map[string]string{}}
	for _, bucket := range []backend.Bucket{schema.Auth, schema.AuthUsers, schema.AuthRoles} {
		entries(bucket, func(k, v []byte) error {
			found.of[bucket.String()+"/"+string(k)] = string(v)
			return nil
		})
	}
	return found
}

// appoint creates root, which authentication requires.
func (p *past) appoint() {
	p.Helper()
	_, err := p.etcd.Client.UserAdd(p.Context(), "root", "secret")
	require.NoError(p, err)
	_, err = p.etcd.Client.UserGrantRole(p.Context(), "root", "root")
	require.NoError(p, err)
}

// govern sends a request of an administrator. It ignores errors such as a missing user.
func (p *past) govern(ctx context.Context) (err error) {
	client, user, role := p.etcd.Client, fmt.Sprint("user-", p.random.IntN(5)), fmt.Sprint("role-", p.random.IntN(5))
	switch p.random.IntN(8) {
	case 0, 1:
		_, _ = client.UserAddWithOptions(ctx, user, "", &clientv3.UserAddOptions{NoPassword: true})
	case 2:
		_, _ = client.RoleAdd(ctx, role)
	case 3:
		_, _ = client.RoleGrantPermission(ctx, role, p.key(), "key-30", clientv3.PermissionType(clientv3.PermReadWrite))
	case 4:
		_, _ = client.UserGrantRole(ctx, user, role)
	case 5:
		_, _ = client.UserDelete(ctx, user)
	case 6:
		_, _ = client.RoleDelete(ctx, role)
	default:
		err = p.rule(ctx)
	}
	return err
}

// rule enables authentication, records the state and disables it.
func (p *past) rule(ctx context.Context) error {
	if _, err := p.etcd.Client.AuthEnable(ctx); err != nil {
		return err
	}
	p.look()
	root, err := clientv3.New(clientv3.Config{
		Endpoints: p.etcd.Client.Endpoints(), Username: "root", Password: "secret", DialTimeout: etcdtest.Patience,
	})
	if err != nil {
		return err
	}
	defer root.Close()
	_, err = root.AuthDisable(ctx)
	return err
}

// requireRights requires that a snapshot has the rights of one moment, not of a later one. The last snapshot has the last
// rights.
func (p *past) requireRights(tx *bolt.Tx, revision int64) {
	p.Helper()
	found := rightsOf(revision, func(bucket backend.Bucket, each func(k, v []byte) error) {
		require.NoError(p, tx.Bucket(bucket.Name()).ForEach(each))
	})
	last := p.rights[len(p.rights)-1]
	if revision == last.revision {
		require.Equal(p, last.of, found.of, "at the end")
		return
	}
	var had []map[string]string
	for _, each := range p.rights {
		if each.revision <= revision {
			had = append(had, each.of)
		}
	}
	require.Contains(p, had, found.of, "at revision %d", revision)
}

// requireLeases requires that a snapshot has the lease of every key, which would stay forever without it.
func (p *past) requireLeases(tx *bolt.Tx) {
	p.Helper()
	named := map[string]int64{}
	require.NoError(p, tx.Bucket(schema.Key.Name()).ForEach(func(_, v []byte) error {
		var kv mvccpb.KeyValue
		require.NoError(p, kv.Unmarshal(v))
		named[string(kv.Key)] = kv.Lease // none if it was deleted
		return nil
	}))
	for key, id := range named {
		if id != 0 {
			require.NotNil(p, tx.Bucket(schema.Lease.Name()).Get(binary.BigEndian.AppendUint64(nil, uint64(id))), "the lease of %s", key)
		}
	}
}
