// Package seed builds the data directory of a restored cluster: a restored database, and a snapshot and a write-ahead
// log that start a new history. The cluster gets new IDs even if names and URLs stay the same, so its members reject
// members of the old cluster that may still be running elsewhere.
package seed

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"etcd-wrapper/backup/restore"
	"etcd-wrapper/internal/disk"
)

// unfinished is the suffix of a directory during its build.
const unfinished = ".restoring"

// A Seed describes the data directory to build.
type Seed struct {
	DataDir string        // must be absent or empty
	Name    string        // name of the member that uses the directory
	Members types.URLsMap // members of the cluster by name, including that member
	Token   string        // see NewToken; members that restore the same revision separately must use the same token
	// Generation is the number of the new generation, or 0 if none is created. The number is not in the database,
	// which may be older than the cluster that is being replaced.
	Generation int
}

// A Result describes the data directory that was built.
type Result struct {
	restore.Result
	ClusterID, MemberID uint64
	Voters              int      // number of voters in the backed-up cluster at Revision
	Alarms              []string // alarms that were raised in that cluster and are not restored
}

// Build builds the data directory from the source. The directory is named DATADIR.restoring during the build and
// renamed once everything is synced to disk; the remains of an interrupted build are removed first. etcd and
// etcd-wrapper can start with the directory without settings such as initial-cluster.
//
// If pages of the database contradict each other, bbolt can panic in a goroutine of its own. To survive such a
// panic, run Build in a separate process (see package child). Build returns an error if the data directory is not
// empty, if the members are invalid, or if restore.Database fails.
func (s Seed) Build(ctx context.Context, source restore.Source, options restore.Options) (Result, error) {
	s.DataDir = ResolvePath(s.DataDir)
	var lock *os.File
	c, err := s.newCluster()
	if err == nil {
		lock, err = s.prepare()
	}
	if err != nil {
		return Result{}, fmt.Errorf("cannot restore into %s: %w", s.DataDir, err)
	}
	defer lock.Close() // nothing was written, so a close error is harmless
	restored, err := s.build(ctx, c, source, options)
	if err != nil {
		return Result{}, errors.Join(err, os.RemoveAll(s.DataDir+unfinished))
	}
	return Result{Result: restored, ClusterID: uint64(c.ID()), MemberID: uint64(c.self.ID), Voters: c.votersBefore, Alarms: c.alarms}, nil
}

// logSize returns the size of a new write-ahead log: one segment plus the next one, which etcd preallocates.
func logSize() int64 { return 2 * wal.SegmentSizeBytes }

// CheckSpace returns restore.ErrNoRoom, with the required and the available space, if the volume has no room for the
// directory that Build would create.
func (s Seed) CheckSpace(source restore.Source) error {
	return restore.CheckSpace(filepath.Dir(ResolvePath(s.DataDir)), source, restore.Options{ReservedBytes: logSize()})
}

// prepare checks that the data directory can be created, and then creates and locks an empty directory for the
// build. Closing the returned file releases the lock.
func (s Seed) prepare() (*os.File, error) {
	if err := CheckPath(s.DataDir); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(s.DataDir)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case len(entries) > 0:
		return nil, fmt.Errorf("the directory is not empty: it contains %s", entries[0].Name())
	}
	dir := s.DataDir + unfinished
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := Lock(dir)
	if err != nil {
		return nil, err
	}
	remains, err := os.ReadDir(dir)
	for _, entry := range remains { // remains of an interrupted build
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, entry.Name())))
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, "member", "snap"), 0o700)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

func (s Seed) build(ctx context.Context, c *cluster, source restore.Source, options restore.Options) (restore.Result, error) {
	member := filepath.Join(s.DataDir+unfinished, "member")
	options.ReservedBytes, options.Finish = logSize(), c.rewriteMembers
	restored, err := restore.Database(ctx, source, filepath.Join(member, "snap", "db"), options)
	if err != nil {
		return restore.Result{}, err
	}
	if err := c.writeLog(member); err != nil {
		return restore.Result{}, fmt.Errorf("cannot create the write-ahead log in %s: %w", member, err)
	}
	if err := s.publish(member); err != nil {
		return restore.Result{}, fmt.Errorf("cannot rename the finished directory to %s: %w", s.DataDir, err)
	}
	return restored, nil
}

// publish syncs the directory to disk and renames it to its final name.
func (s Seed) publish(member string) error {
	for _, dir := range []string{filepath.Join(member, "wal"), filepath.Join(member, "snap"), member, filepath.Dir(member)} {
		if err := disk.SyncDirectory(dir); err != nil {
			return err
		}
	}
	if err := os.Remove(s.DataDir); err != nil && !errors.Is(err, fs.ErrNotExist) { // fails if the directory is no longer empty
		return err
	}
	return disk.Rename(s.DataDir+unfinished, s.DataDir)
}

// maxLinks is the maximum number of symbolic links to follow, as in the Linux kernel.
const maxLinks = 40

// ResolvePath returns the actual path of a data directory by following symbolic links, even if the target does not
// exist. A directory next to the actual path is on the same volume, so it can be renamed to that path.
func ResolvePath(dataDir string) string {
	path := dataDir
	for range maxLinks {
		path = filepath.Clean(path)
		if parent, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
			path = filepath.Join(parent, filepath.Base(path))
		}
		target, err := os.Readlink(path)
		if err != nil {
			return path
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		path = target
	}
	return dataDir
}

// CheckPath returns an error if a directory cannot be renamed to the path.
func CheckPath(path string) error {
	if isMountPoint(path) {
		return fmt.Errorf("%s is a mount point and cannot be replaced; use a subdirectory instead", path)
	}
	return nil
}

// ErrInUse reports that another process has locked the directory.
var ErrInUse = errors.New("another process is using the data directory")

// Lock locks a directory for this process until the file is closed. The lock keeps two wrappers with different
// volumes but the same data directory from removing each other's builds. If the file system does not support locks,
// Lock continues without one.
func Lock(dir string) (*os.File, error) {
	lock, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if errors.Is(unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
		err = fmt.Errorf("%w: it is restoring data to %s; stop that process or use a different data-dir", ErrInUse, dir)
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// MountedWithin returns a mount point within a data directory, or "" if there is none. After a restore, the contents
// of such a mount would become part of the restored data.
func MountedWithin(dataDir string) string {
	for _, part := range []string{"member", "member/wal", "member/snap"} {
		if at := filepath.Join(dataDir, part); isMountPoint(at) {
			return at
		}
	}
	return ""
}

// NewToken returns a token that no cluster has used before. etcd computes its IDs only from the token and the peer
// URLs of the members.
func NewToken() string { return "restored-" + rand.Text() }

// A cluster describes the restored cluster, and what the database contains about the backed-up cluster.
type cluster struct {
	*membership.RaftCluster
	self         *membership.Member
	votersBefore int      // number of voters in the backed-up cluster
	alarms       []string // alarms that were raised in that cluster
	generation   uint64   // number of the new generation; 0 if none is created
	start        uint64   // index of the snapshot at the start of the log; set when the database is rewritten
}

// newCluster computes the IDs of the cluster and its members.
func (s Seed) newCluster() (*cluster, error) {
	if s.Token == "" {
		return nil, errors.New("the cluster has no token")
	}
	raftCluster, err := membership.NewClusterFromURLsMap(zap.NewNop(), s.Token, s.Members)
	if err != nil {
		return nil, err
	}
	c := &cluster{RaftCluster: raftCluster, self: raftCluster.MemberByName(s.Name), generation: uint64(max(0, s.Generation))} //nolint:gosec // max excludes negative numbers
	if c.self == nil {
		return nil, fmt.Errorf("%q is not a member of the cluster", s.Name)
	}
	return c, nil
}

// confState returns the voters in raft's format.
func (c *cluster) confState() *raftpb.ConfState {
	state := &raftpb.ConfState{}
	for _, m := range c.Members() {
		state.Voters = append(state.Voters, uint64(m.ID))
	}
	return state
}

// rewriteMembers replaces the members and the index in the database with those of the new cluster. The alarms are
// removed because the members that raised them no longer exist.
func (c *cluster) rewriteMembers(tx *bolt.Tx) error {
	c.votersBefore, c.alarms = countVoters(tx), listAlarms(tx)
	for _, name := range [][]byte{schema.Members.Name(), schema.MembersRemoved.Name(), schema.Alarm.Name()} {
		if err := tx.DeleteBucket(name); err != nil && !errors.Is(err, bolterrors.ErrBucketNotFound) {
			return err
		}
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	for _, m := range c.Members() {
		value, err := json.Marshal(m)
		if err != nil {
			return err
		}
		if err := tx.Bucket(schema.Members.Name()).Put(schema.BackendMemberKey(m.ID), value); err != nil {
			return err
		}
	}
	return cmp.Or(c.invalidateTokens(tx), c.rewriteMeta(tx.Bucket(schema.Meta.Name())))
}

// authRevisionDistance is the step by which nextStart increases the auth revision. A cluster never changes users and
// roles that often.
const authRevisionDistance = 1 << 20

// invalidateTokens makes etcd reject all existing tokens. A JWT contains the auth revision, and would otherwise
// remain valid even if its user's password was changed after the backup.
func (c *cluster) invalidateTokens(tx *bolt.Tx) error {
	users, err := tx.CreateBucketIfNotExists(schema.Auth.Name())
	if err != nil {
		return err
	}
	revision := c.nextStart(decodeNumber(users.Get(schema.AuthRevisionKeyName)), authRevisionDistance)
	return users.Put(schema.AuthRevisionKeyName, binary.BigEndian.AppendUint64(nil, revision))
}

// decodeNumber decodes a number from the database, or returns 0 if there is none.
func decodeNumber(stored []byte) uint64 {
	if len(stored) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(stored)
}

// countVoters counts the voting members in a database and skips unreadable entries.
func countVoters(tx *bolt.Tx) (count int) {
	if members := tx.Bucket(schema.Members.Name()); members != nil {
		_ = members.ForEach(func(_, value []byte) error {
			var m membership.Member
			if json.Unmarshal(value, &m) == nil && !m.IsLearner {
				count++
			}
			return nil
		})
	}
	return count
}

// listAlarms returns each raised alarm once and skips unreadable entries.
func listAlarms(tx *bolt.Tx) (raised []string) {
	if bucket := tx.Bucket(schema.Alarm.Name()); bucket != nil {
		_ = bucket.ForEach(func(key, _ []byte) error {
			var alarm etcdserverpb.AlarmMember
			if alarm.Unmarshal(key) == nil && !slices.Contains(raised, alarm.Alarm.String()) {
				raised = append(raised, alarm.Alarm.String())
			}
			return nil
		})
	}
	return raised
}

func (c *cluster) rewriteMeta(meta *bolt.Bucket) error {
	c.start = c.nextStart(decodeNumber(meta.Get(schema.MetaConsistentIndexKeyName)), logDistance)
	state, err := json.Marshal(c.confState())
	if err != nil {
		return err
	}
	for _, entry := range []struct{ key, value []byte }{
		{schema.MetaConsistentIndexKeyName, binary.BigEndian.AppendUint64(nil, c.commit())},
		{schema.MetaTermKeyName, binary.BigEndian.AppendUint64(nil, firstTerm)},
		{schema.MetaConfStateName, state},
	} {
		if err := meta.Put(entry.key, entry.value); err != nil {
			return err
		}
	}
	return nil
}

// firstTerm is the term of the first log entry. That entry counts as committed, because the log of every member starts
// with it.
const firstTerm = 1

// logDistance is the step by which nextStart increases the index of the log. The restored log must start above every
// index of the old log: a simple token contains the index at which it was created, and etcd keeps a request waiting
// until that index is applied, so requests with tokens of the old cluster would hang instead of being rejected. No
// cluster appends 2^40 entries, so members that restore different backups still start at the same index.
const logDistance = 1 << 40

// commit returns the index of the first log entry after the snapshot.
func (c *cluster) commit() uint64 { return c.start + 1 }

// nextStart returns the number at which the new cluster starts, for example the index of its log. reached is the
// corresponding number in the database. Every cluster starts at a multiple of step and advances by less than a step.
// The result is therefore higher than any number that the backed-up cluster has reached. Because the result is at
// least generation steps, it is also higher than the numbers of restored clusters that are newer than the database,
// unless one of them had adopted data from a store with more generations. All members that restore the same data
// compute the same number.
func (c *cluster) nextStart(reached, step uint64) uint64 {
	return max(reached/step+1, c.generation) * step
}

// writeLog creates a log that starts with a snapshot of the database and its members. From the empty entry after
// the snapshot, etcd recognizes immediately that all committed entries are applied.
func (c *cluster) writeLog(member string) (err error) {
	metadata, err := (&etcdserverpb.Metadata{NodeID: uint64(c.self.ID), ClusterID: uint64(c.ID())}).Marshal()
	if err != nil {
		return err
	}
	log, err := wal.Create(zap.NewNop(), filepath.Join(member, "wal"), metadata)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	state := c.confState()
	if err := log.SaveSnapshot(walpb.Snapshot{Index: c.start, Term: firstTerm, ConfState: state}); err != nil {
		return err
	}
	if err := c.saveSnapshot(filepath.Join(member, "snap"), *state); err != nil {
		return err
	}
	first := raftpb.Entry{Type: raftpb.EntryNormal, Term: firstTerm, Index: c.commit()}
	return log.Save(raftpb.HardState{Term: firstTerm, Vote: state.Voters[0], Commit: first.Index}, []raftpb.Entry{first})
}

// saveSnapshot saves the snapshot with permissions for its owner only. etcd's own function would make the
// permissions depend on the umask.
func (c *cluster) saveSnapshot(dir string, state raftpb.ConfState) error {
	err := snap.New(zap.NewNop(), dir).SaveSnap(raftpb.Snapshot{
		Data:     etcdserver.GetMembershipInfoInV2Format(zap.NewNop(), c.RaftCluster),
		Metadata: raftpb.SnapshotMetadata{Index: c.start, Term: firstTerm, ConfState: state},
	})
	if err != nil {
		return err
	}
	return os.Chmod(filepath.Join(dir, fmt.Sprintf("%016x-%016x.snap", firstTerm, c.start)), 0o600)
}
