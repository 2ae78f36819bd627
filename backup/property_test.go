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

var histories = flag.Int("histories", 1, "number of random histories to back up, restore and compare with etcd")

// recording is an etcd server with backups, and a record of the server's history.
type recording struct {
	*testing.T
	*subject
	memory      *memory.Store // the store itself, which survives the simulated processes
	process     *killable     // the store as the current process sees it
	random      *rand.Rand
	leases      []clientv3.LeaseID
	rows        map[string][]byte      // all rows that have been in the database, including those compacted since
	hashes      map[int64]recordedHash // etcd's hashes by revision
	seen        int64                  // etcd's revision at the last record
	firstStored int64                  // etcd's revision when the first full snapshot was stored
	rights      []rights               // in chronological order
}

// recordedHash is the hash that etcd returned for a revision. If etcd was compacted at the revision, the hash was
// recorded during the compaction.
type recordedHash struct {
	mvcc.KeyValueHash
	compaction bool
}

// TestEveryStoredRevisionEqualsEtcdsOwn sends random requests to etcd, restores every stored revision, and compares it
// with etcd's state at that revision. The store fails randomly, and processes are killed at random points.
func TestEveryStoredRevisionEqualsEtcdsOwn(t *testing.T) {
	for range *histories {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			p := &recording{
				T: t, subject: newSubject(t, archive.Verified), random: rand.New(rand.NewPCG(seed, 0)),
				rows: map[string][]byte{}, hashes: map[int64]recordedHash{},
			}
			p.memory = p.store.(*memory.Store)
			p.run()
			p.compare()
		})
	}
}

// run sends random requests to etcd while backups are started and stopped a few times and the store fails
// occasionally.
func (p *recording) run() {
	p.Helper()
	p.addRoot()
	p.record()
	for number := range 4 {
		p.memory.ClearFaults() // otherwise, faults that have not occurred yet would accumulate
		p.process = &killable{Store: p.memory}
		p.store = p.process
		p.Backups = p.newBackups(p.T, &format.Keys{})
		p.Begin(writer.Server(p.etcd.Server), p.dir, "")
		if number == 0 {
			p.eventually(p.T, func(f backup.Facts) bool {
				return f.Writer.LastFull != nil
			}, "the first full snapshot is stored")
			p.firstStored = p.etcd.Revision()
		}
		for range 50 {
			p.injectFault()
			p.sendRequest()
			p.record()
		}
		if number < 3 && p.random.IntN(3) > 0 {
			p.process.kill(p.random.IntN(2) == 0)
		}
		require.NoError(p, p.End(soon(p.T)))
	}
	_, err := p.etcd.Client.Put(p.Context(), p.key(), "last value")
	require.NoError(p, err)
	p.record()
	p.memory.ClearFaults()
	p.etcd.Server.Stop()
	require.NoError(p, p.Flush(soon(p.T), filepath.Join(p.dir, "member", "snap", "db")))
}

// injectFault makes the next requests to the store fail, at one call in eight on average.
func (p *recording) injectFault() {
	faults := []memory.Fault{
		{Err: memory.ErrServerError},
		{Err: memory.ErrLostReply, ReplyLost: true, Op: memory.Put},
		{Err: memory.ErrConflict, Op: memory.Put},
		{Delay: 50 * time.Millisecond},
		{Cut: 100, Op: memory.Get},
		{Err: memory.ErrUnreachable},
	}
	if p.random.IntN(8) == 0 {
		fault := faults[p.random.IntN(len(faults))]
		fault.Times = 1 + p.random.IntN(2)
		p.memory.Inject(fault)
	}
}

func (p *recording) key() string { return fmt.Sprintf("key-%02d", p.random.IntN(30)) }

// sendRequest sends a random client request.
func (p *recording) sendRequest() {
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
		err = p.sendAuthRequest(ctx)
	case 11:
		p.requestFull(ctx)
	default:
		_, err = client.Put(ctx, p.key(), value)
	}
	require.NoError(p, err)
}

// requestFull requests a full snapshot and waits for at most a second, because the store may fail.
func (p *recording) requestFull(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, _ = p.Now(ctx)
}

func (p *recording) defragment(ctx context.Context) error {
	end, err := p.gate.Acquire(ctx, "a defragmentation")
	if err != nil {
		return err
	}
	defer end()
	_, err = p.etcd.Client.Defragment(ctx, p.etcd.Config().ListenClientUrls[0].String())
	return err
}

func (p *recording) grant(ctx context.Context) error {
	granted, err := p.etcd.Client.Grant(ctx, 10_000+p.random.Int64N(1000))
	if err != nil {
		return err
	}
	p.leases = append(p.leases, granted.ID)
	_, err = p.etcd.Client.Put(ctx, p.key(), "leased", clientv3.WithLease(granted.ID))
	return err
}

func (p *recording) revoke(ctx context.Context) error {
	if len(p.leases) < 3 {
		return nil
	}
	_, err := p.etcd.Client.Revoke(ctx, p.leases[0])
	p.leases = p.leases[1:]
	return err
}

func (p *recording) compact(ctx context.Context) error {
	p.BeforeCompaction(ctx)
	_, err := p.etcd.Client.Compact(ctx, p.etcd.Revision()-p.random.Int64N(4), clientv3.WithCompactPhysical())
	if err != nil && err.Error() == "etcdserver: mvcc: required revision has been compacted" {
		return nil
	}
	return err
}

// record adds etcd's current state to the recording.
func (p *recording) record() {
	p.Helper()
	tx := p.etcd.Server.Backend().ConcurrentReadTx()
	tx.RLock()
	defer tx.RUnlock()
	keys, values := tx.UnsafeRange(schema.Key, firstKey(p.seen+1), firstKey(math.MaxInt64), 0)
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

// firstKey returns the lowest row key of a revision.
func firstKey(revision int64) []byte {
	return mvcc.RevToBytes(mvcc.Revision{Main: revision}, mvcc.NewRevBytes())
}

// compare exports every recorded revision that can be restored, and compares it with etcd's state at that revision.
func (p *recording) compare() {
	p.Helper()
	from, compared := archive.New(p.memory, &format.Keys{}), map[int64]bool{}
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
		if compacted := max(0, hash.CompactRevision); path.Full.Compacted <= compacted {
			got, err := restore.HashKV(p.Context(), file, restore.HashRequest{Compacted: compacted, Revision: revision, Compaction: hash.compaction})
			require.NoError(p, err)
			require.Equal(p, hash.Hash, got, "etcd's own hash at revision %d", revision)
			compared[revision] = true
		}
	}
	require.Contains(p, compared, p.seen, "the last revision can be restored")
	p.Logf("compared the hashes of %d of %d recorded revisions", len(compared), len(p.hashes))
}

// requireReason requires that there is a valid reason why a revision cannot be restored: etcd was compacted before the
// revision was captured, or there was no full snapshot yet.
func (p *recording) requireReason(chains []archive.Chain, revision int64) {
	p.Helper()
	next := slices.IndexFunc(chains, func(c archive.Chain) bool { return c.From > revision })
	require.GreaterOrEqual(p, next, 0, "revision %d is missing, but no later chain exists", revision)
	if next == 0 {
		require.LessOrEqual(p, chains[next].From, p.firstStored, "revision %d is missing", revision)
		return
	}
	require.Greater(p, chains[next].Fulls[0].Compacted, chains[next-1].To, "revision %d is missing without a gap", revision)
}

// requireRows requires that an exported snapshot contains no other rows than etcd's, and every row up to its revision
// that etcd had not compacted before the full snapshot.
func (p *recording) requireRows(file string, path archive.Path) {
	p.Helper()
	missing := map[string]bool{}
	for key := range p.rows {
		if at := mvcc.BytesToRev([]byte(key)[:17]).Main; path.Full.Compacted < at && at <= path.Revision {
			missing[key] = true
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
			delete(missing, string(k))
			return nil
		})
	}))
	require.Empty(p, missing, "rows are missing from the snapshot at revision %d", path.Revision)
}

// rights contains the users, roles and authentication settings in etcd's database.
type rights struct {
	revision int64             // etcd's revision when the rights were read
	entries  map[string]string // values by bucket and key
}

// rightsOf reads the rights with forEach, which must call each for every entry of a bucket.
func rightsOf(revision int64, forEach func(bucket backend.Bucket, each func(k, v []byte) error)) rights {
	found := rights{revision, map[string]string{}}
	for _, bucket := range []backend.Bucket{schema.Auth, schema.AuthUsers, schema.AuthRoles} {
		forEach(bucket, func(k, v []byte) error {
			found.entries[bucket.String()+"/"+string(k)] = string(v)
			return nil
		})
	}
	return found
}

// addRoot creates the root user, which is required to enable authentication.
func (p *recording) addRoot() {
	p.Helper()
	_, err := p.etcd.Client.UserAdd(p.Context(), "root", "secret")
	require.NoError(p, err)
	_, err = p.etcd.Client.UserGrantRole(p.Context(), "root", "root")
	require.NoError(p, err)
}

// sendAuthRequest sends a random administrative request. etcd rejects some requests, for example if the user does not
// exist.
func (p *recording) sendAuthRequest(ctx context.Context) (err error) {
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
		return p.toggleAuth(ctx)
	}
	var refused rpctypes.EtcdError
	if errors.As(err, &refused) && refused.Code() == codes.FailedPrecondition {
		return nil
	}
	return err // a request that timed out must fail the test, because it may be applied after the state is recorded
}

// toggleAuth enables authentication, records the state, and disables authentication again.
func (p *recording) toggleAuth(ctx context.Context) error {
	if _, err := p.etcd.Client.AuthEnable(ctx); err != nil {
		return err
	}
	p.record()
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
func (p *recording) requireRights(tx *bolt.Tx, revision int64) {
	p.Helper()
	found := rightsOf(revision, func(bucket backend.Bucket, each func(k, v []byte) error) {
		require.NoError(p, tx.Bucket(bucket.Name()).ForEach(each))
	})
	last := p.rights[len(p.rights)-1]
	if revision == last.revision {
		require.Equal(p, last.entries, found.entries, "the last snapshot contains the latest rights")
		return
	}
	var recorded []map[string]string
	for _, each := range p.rights {
		if each.revision <= revision {
			recorded = append(recorded, each.entries)
		}
	}
	require.Contains(p, recorded, found.entries, "etcd never had the rights of the snapshot at revision %d", revision)
}

// requireLeases requires that a snapshot contains the lease of every key.
func (p *recording) requireLeases(tx *bolt.Tx) {
	p.Helper()
	leases := map[string]int64{} // lease IDs by key
	require.NoError(p, tx.Bucket(schema.Key.Name()).ForEach(func(_, v []byte) error {
		var kv mvccpb.KeyValue
		require.NoError(p, kv.Unmarshal(v))
		leases[string(kv.Key)] = kv.Lease // zero if the key was deleted
		return nil
	}))
	for key, id := range leases {
		if id != 0 {
			require.NotNil(p, tx.Bucket(schema.Lease.Name()).Get(binary.BigEndian.AppendUint64(nil, uint64(id))), "the lease of %s", key)
		}
	}
}

// killable is the store as seen by a process that can be killed. After a kill, all requests fail.
type killable struct {
	store.Store
	dead        atomic.Bool
	applyUpload atomic.Bool // the next upload takes effect although the process is dead
}

var errKilled = errors.New("killed")

// kill simulates that the process is killed. If applyUpload is set, the next upload still takes effect, like a request
// that was in flight.
func (s *killable) kill(applyUpload bool) {
	s.applyUpload.Store(applyUpload)
	s.dead.Store(true)
}

func (s *killable) Put(ctx context.Context, name string, content io.Reader) error {
	if s.dead.Load() && !s.applyUpload.CompareAndSwap(true, false) {
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
