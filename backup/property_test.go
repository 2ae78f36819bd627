package backup_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"google.golang.org/grpc/codes"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer"
	"etcd-wrapper/cmd/suites/etcdtest"
)

var histories = flag.Int("histories", 1, "how many random histories are backed up, and compared with what comes back")

// past records the history of an etcd server.
type past struct {
	*testing.T
	*subject
	kept   *memory.Store // survives process restarts
	dying  *killable     // the store as seen by the running process
	random *rand.Rand
	leases []clientv3.LeaseID
	rows   map[string][]byte // all rows ever seen
	hashes map[int64]recordedHash
	seen   int64
	begun  int64    // etcd's revision when the first full snapshot was stored
	rights []rights // in chronological order
}

// recordedHash is the hash that etcd returned for a revision. If etcd was compacted at the revision, the hash was
// recorded during the compaction.
type recordedHash struct {
	mvcc.KeyValueHash
	compaction bool
}

// TestEveryStoredRevisionEqualsEtcdsOwn compares the stored revisions of random histories with etcd's own state. The
// store fails randomly, and processes are killed at random points.
func TestEveryStoredRevisionEqualsEtcdsOwn(t *testing.T) {
	for range *histories {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			p := &past{
				T: t, subject: newSubject(t, archive.Verified), random: rand.New(rand.NewPCG(seed, 0)),
				rows: map[string][]byte{}, hashes: map[int64]recordedHash{},
			}
			p.kept = p.store.(*memory.Store)
			p.live()
			p.compare()
		})
	}
}

// live starts and stops backups a few times while etcd is running and the store fails occasionally.
func (p *past) live() {
	p.Helper()
	p.appoint()
	p.look()
	for life := range 4 {
		p.kept.ClearFaults() // so that failures do not accumulate
		p.dying = &killable{Store: p.kept}
		p.store = p.dying
		p.Backups = p.another(p.T, &format.Keys{})
		p.Begin(writer.Server(p.etcd.Server), p.dir, "")
		if life == 0 {
			p.eventually(p.T, func(f backup.Facts) bool { return f.Shipped.LastFull != nil }, "before that nothing is kept")
			p.begun = p.etcd.Revision()
		}
		for range 50 {
			p.fail()
			p.act()
			p.look()
		}
		if life < 3 && p.random.IntN(3) > 0 {
			p.dying.kill(p.random.IntN(2) == 0)
		}
		require.NoError(p, p.End(soon(p.T)))
	}
	_, err := p.etcd.Client.Put(p.Context(), p.key(), "not compacted, so that its hash can be compared")
	require.NoError(p, err)
	p.look()
	p.kept.ClearFaults()
	p.etcd.Server.Stop()
	require.NoError(p, p.Flush(soon(p.T), filepath.Join(p.dir, "member", "snap", "db")))
}

// fail makes the store fail occasionally.
func (p *past) fail() {
	wrong := []memory.Fault{
		{Err: memory.ErrServerError},
		{Err: memory.ErrLostReply, ReplyLost: true, Op: memory.Put},
		{Err: memory.ErrConflict, Op: memory.Put},
		{Delay: 50 * time.Millisecond},
		{Cut: 100, Op: memory.Get},
		{Err: memory.ErrUnreachable},
	}
	if p.random.IntN(8) == 0 {
		fault := wrong[p.random.IntN(len(wrong))]
		fault.Times = 1 + p.random.IntN(2)
		p.kept.Inject(fault)
	}
}

func (p *past) key() string { return fmt.Sprintf("key-%02d", p.random.IntN(30)) }

// act sends a random client request.
func (p *past) act() {
	p.Helper()
	ctx, client, value := p.Context(), p.etcd.Client, string(bytes.Repeat([]byte{'v'}, p.random.IntN(3000)))
	var err error
	switch p.random.IntN(16) {
	case 0, 1:
		_, err = client.Delete(ctx, p.key(), clientv3.WithRange("key-30"))
	case 2, 3, 4:
		_, err = client.Txn(ctx).Then(clientv3.OpPut("a"+p.key(), value), clientv3.OpDelete(p.key()), clientv3.OpPut("b", value)).Commit()
	case 5:
		err = p.grant(ctx)
	case 6:
		err = p.revoke(ctx)
	case 7:
		err = p.compact(ctx)
	case 8:
		err = p.defragment(ctx)
	case 9, 10:
		err = p.govern(ctx)
	case 11:
		p.askForFull(ctx)
	default:
		_, err = client.Put(ctx, p.key(), value)
	}
	require.NoError(p, err)
}

// askForFull requests a full snapshot and gives up after a short time.
func (p *past) askForFull(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, _ = p.Now(ctx)
}

func (p *past) defragment(ctx context.Context) error {
	end, err := p.turns.Acquire(ctx, "a defragmentation")
	if err != nil {
		return err
	}
	defer end()
	_, err = p.etcd.Client.Defragment(ctx, p.etcd.Config().ListenClientUrls[0].String())
	return err
}

func (p *past) grant(ctx context.Context) error {
	granted, err := p.etcd.Client.Grant(ctx, 10_000+p.random.Int64N(1000))
	if err != nil {
		return err
	}
	p.leases = append(p.leases, granted.ID)
	_, err = p.etcd.Client.Put(ctx, p.key(), "leased", clientv3.WithLease(granted.ID))
	return err
}

func (p *past) revoke(ctx context.Context) error {
	if len(p.leases) < 3 {
		return nil
	}
	_, err := p.etcd.Client.Revoke(ctx, p.leases[0])
	p.leases = p.leases[1:]
	return err
}

func (p *past) compact(ctx context.Context) error {
	p.BeforeCompaction(ctx)
	_, err := p.etcd.Client.Compact(ctx, p.etcd.Revision()-p.random.Int64N(4), clientv3.WithCompactPhysical())
	if err != nil && err.Error() == "etcdserver: mvcc: required revision has been compacted" {
		return nil
	}
	return err
}

// look records the state of etcd.
func (p *past) look() {
	p.Helper()
	tx := p.etcd.Server.Backend().ConcurrentReadTx()
	tx.RLock()
	defer tx.RUnlock()
	keys, values := tx.UnsafeRange(schema.Key, first(p.seen+1), first(math.MaxInt64), 0)
	for i, key := range keys {
		p.rows[string(key)] = bytes.Clone(values[i])
	}
	p.seen = p.etcd.Revision()
	p.rights = append(p.rights, rightsOf(p.seen, func(bucket backend.Bucket, each func(k, v []byte) error) { _ = tx.UnsafeForEach(bucket, each) }))
	stored := p.etcd.Server.KV().HashStorage()
	hash, _, err := stored.HashByRev(p.seen)
	require.NoError(p, err)
	p.hashes[p.seen] = recordedHash{hash, slices.Contains(stored.Hashes(), hash)}
}

// first returns the lowest row key of a revision.
func first(revision int64) []byte {
	return mvcc.RevToBytes(mvcc.Revision{Main: revision}, mvcc.NewRevBytes())
}

// compare exports every recorded revision that is stored, and compares it with etcd's state at that revision.
func (p *past) compare() {
	p.Helper()
	from, compared := archive.New(p.kept, &format.Keys{}), map[int64]bool{}
	history, err := from.History(p.Context())
	require.NoError(p, err)
	for revision, hash := range p.hashes {
		path, err := from.Find(p.Context(), archive.Target{Revision: revision})
		if err != nil {
			require.ErrorIs(p, err, archive.ErrNotKept)
			p.requireReason(history.Newest().Chains, revision)
			continue
		}
		file := filepath.Join(p.TempDir(), fmt.Sprint(revision))
		_, err = restore.Export(p.Context(), restore.NewSource(from, path), file, restore.Options{})
		require.NoError(p, err)
		p.requireRows(file, path)
		if had := max(0, hash.CompactRevision); path.Full.Compacted <= had {
			got, err := restore.HashKV(p.Context(), file, restore.HashRequest{Compacted: had, Revision: revision, Compaction: hash.compaction})
			require.NoError(p, err)
			require.Equal(p, hash.Hash, got, "etcd's own hash at revision %d", revision)
			compared[revision] = true
		}
	}
	require.Contains(p, compared, p.seen, "everything was stored at the end")
	p.Logf("%d of %d revisions compared by etcd's hash", len(compared), len(p.hashes))
}

// requireReason requires that a revision is missing only because etcd was compacted before the revision was captured,
// or because there was no full snapshot yet.
func (p *past) requireReason(chains []archive.Chain, revision int64) {
	p.Helper()
	next := slices.IndexFunc(chains, func(c archive.Chain) bool { return c.From > revision })
	require.GreaterOrEqual(p, next, 0, "revision %d is missing at the end", revision)
	if next == 0 {
		require.LessOrEqual(p, chains[next].From, p.begun, "revision %d is missing at the beginning", revision)
		return
	}
	require.Greater(p, chains[next].Fulls[0].Compacted, chains[next-1].To, "revision %d is missing, and nothing was compacted", revision)
}

// requireRows requires that a snapshot contains every row that etcd had not compacted before the full snapshot.
func (p *past) requireRows(file string, path archive.Path) {
	p.Helper()
	left := map[string]bool{}
	for key := range p.rows {
		if at := mvcc.BytesToRev([]byte(key)[:17]).Main; path.Full.Compacted < at && at <= path.Revision {
			left[key] = true
		}
	}
	db, err := bolt.Open(file, 0o600, &bolt.Options{ReadOnly: true})
	require.NoError(p, err)
	defer db.Close()
	require.NoError(p, db.View(func(tx *bolt.Tx) error {
		p.requireLeases(tx)
		p.requireRights(tx, path.Revision)
		return tx.Bucket(schema.Key.Name()).ForEach(func(k, v []byte) error {
			require.Equal(p, p.rows[string(k)], v, "row %x", k)
			delete(left, string(k))
			return nil
		})
	}))
	require.Empty(p, left, "rows that are missing at revision %d", path.Revision)
}

// rights contains the users, roles and authentication settings in etcd's database.
type rights struct {
	revision int64 // etcd's revision at that time
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

// appoint creates the root user, which is required to enable authentication.
func (p *past) appoint() {
	p.Helper()
	_, err := p.etcd.Client.UserAdd(p.Context(), "root", "secret")
	require.NoError(p, err)
	_, err = p.etcd.Client.UserGrantRole(p.Context(), "root", "root")
	require.NoError(p, err)
}

// govern sends a random administrative request. etcd rejects some requests, for example if the user does not exist.
func (p *past) govern(ctx context.Context) (err error) {
	client, user, role := p.etcd.Client, fmt.Sprint("user-", p.random.IntN(5)), fmt.Sprint("role-", p.random.IntN(5))
	switch p.random.IntN(8) {
	case 0, 1:
		_, err = client.UserAddWithOptions(ctx, user, "", &clientv3.UserAddOptions{NoPassword: true})
	case 2:
		_, err = client.RoleAdd(ctx, role)
	case 3:
		_, err = client.RoleGrantPermission(ctx, role, p.key(), "key-30", clientv3.PermissionType(clientv3.PermReadWrite))
	case 4:
		_, err = client.UserGrantRole(ctx, user, role)
	case 5:
		_, err = client.UserDelete(ctx, user)
	case 6:
		_, err = client.RoleDelete(ctx, role)
	default:
		return p.rule(ctx)
	}
	var refused rpctypes.EtcdError
	if errors.As(err, &refused) && refused.Code() == codes.FailedPrecondition {
		return nil
	}
	return err // a request that timed out may still be applied after look has recorded the state
}

// rule enables authentication, records the state, and disables authentication again.
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

// requireRights requires that the rights in a snapshot are equal to etcd's rights at some revision up to that of the
// snapshot. The last snapshot must contain the latest rights.
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

// requireLeases requires that a snapshot contains the lease of every key.
func (p *past) requireLeases(tx *bolt.Tx) {
	p.Helper()
	named := map[string]int64{}
	require.NoError(p, tx.Bucket(schema.Key.Name()).ForEach(func(_, v []byte) error {
		var kv mvccpb.KeyValue
		require.NoError(p, kv.Unmarshal(v))
		named[string(kv.Key)] = kv.Lease // zero if the key was deleted
		return nil
	}))
	for key, id := range named {
		if id != 0 {
			require.NotNil(p, tx.Bucket(schema.Lease.Name()).Get(binary.BigEndian.AppendUint64(nil, uint64(id))), "the lease of %s", key)
		}
	}
}

// killable is the store of a process that can be killed. After a kill, requests are not executed and return no
// response.
type killable struct {
	store.Store
	dead, happens atomic.Bool
}

var errKilled = errors.New("killed")

// kill kills the process. If happens is set, the in-flight request is still executed.
func (s *killable) kill(happens bool) {
	s.happens.Store(happens)
	s.dead.Store(true)
}

func (s *killable) Put(ctx context.Context, name string, content io.Reader) error {
	if s.dead.Load() && !s.happens.CompareAndSwap(true, false) {
		return errKilled
	}
	err := s.Store.Put(context.WithoutCancel(ctx), name, content)
	if s.dead.Load() {
		return errKilled
	}
	return err
}

func (s *killable) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if s.dead.Load() {
		return nil, errKilled
	}
	return s.Store.Get(ctx, name, offset, length)
}

func (s *killable) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	if s.dead.Load() {
		return store.Failed(errKilled)
	}
	return s.Store.List(ctx, prefix, after)
}

func (s *killable) Delete(ctx context.Context, name string) error {
	if s.dead.Load() {
		return errKilled
	}
	return s.Store.Delete(ctx, name)
}
