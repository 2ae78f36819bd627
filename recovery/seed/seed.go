// Package seed builds the data directory of a restored cluster: a rebuilt database, and a log and a snapshot that
// start a new history with it. The cluster has new IDs even if names and URLs are the same, so members of the old
// cluster that may still be running elsewhere belong to a different cluster.
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

// unfinished is the suffix of a directory that is being built.
const unfinished = ".restoring"

// A Seed describes the data directory to build.
type Seed struct {
	DataDir string        // must be absent or empty
	Name    string        // name of the member that uses the directory
	Members types.URLsMap // members of the cluster by name, including that member
	Token   string        // see NewToken; members that each restore the same revision share it
	// Generation is the new generation; 0 if none is created. The database may be older than the cluster that it
	// replaces, so only this number shows how often logs were restarted.
	Generation int
}

// A Result describes what was built.
type Result struct {
	restore.Result
	ClusterID, MemberID uint64
	Voters              int      // number of voters in the backed-up cluster at that revision
	Alarms              []string // alarms that were raised in that cluster; the restored cluster has none
}

// Build makes the data directory from the source's data. It is made under another name, DATADIR.restoring, and renamed
// when all of it is on the disk; the remains of an interrupted build are removed first. etcd, or etcd-wrapper, then
// starts on it as on any other; it no longer needs initial-cluster and the like.
//
// A database whose pages contradict each other can make bbolt panic in its own goroutine: a caller that must survive
// that runs Build in a separate process (package child). A data directory that is not empty is refused. Errors are
// those of restore.Database, or name what is wrong with the members.
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
	defer lock.Close() // the file was not written to
	restored, err := s.build(ctx, c, source, options)
	if err != nil {
		return Result{}, errors.Join(err, os.RemoveAll(s.DataDir+unfinished))
	}
	return Result{Result: restored, ClusterID: uint64(c.ID()), MemberID: uint64(c.self.ID), Voters: c.votersBefore, Alarms: c.alarms}, nil
}

// logSize returns the bytes of a new log: one segment, and the next one that etcd allocates in advance.
func logSize() int64 { return 2 * wal.SegmentSizeBytes }

// CheckSpace returns a restore.ErrNoRoom with both numbers if the volume has no room for the directory that Build
// would create.
func (s Seed) CheckSpace(source restore.Source) error {
	return restore.CheckSpace(filepath.Dir(ResolvePath(s.DataDir)), source, restore.Options{ReservedBytes: logSize()})
}

// prepare checks that the location is free, and creates an empty directory with the suffix. The directory is locked
// until the file is closed.
func (s Seed) prepare() (*os.File, error) {
	if err := CheckPath(s.DataDir); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(s.DataDir)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case len(entries) > 0:
		return nil, fmt.Errorf("it is not empty: it contains %s", entries[0].Name())
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
		return restore.Result{}, fmt.Errorf("cannot create the log in %s: %w", member, err)
	}
	if err := s.publish(member); err != nil {
		return restore.Result{}, fmt.Errorf("cannot rename the finished directory to %s: %w", s.DataDir, err)
	}
	return restored, nil
}

// publish makes the directory durable and renames it to its final name.
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

// maxLinks is the maximum number of symbolic links to follow, as in the kernel.
const maxLinks = 40

// ResolvePath returns the actual location of a data directory. It follows a symbolic link, even to a missing
// target. Directories that are renamed from or to that location are next to it, and therefore on the same volume.
func ResolvePath(dataDir string) string {
	place := dataDir
	for range maxLinks {
		place = filepath.Clean(place)
		if parent, err := filepath.EvalSymlinks(filepath.Dir(place)); err == nil {
			place = filepath.Join(parent, filepath.Base(place))
		}
		target, err := os.Readlink(place)
		if err != nil {
			return place
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(place), target)
		}
		place = target
	}
	return dataDir
}

// CheckPath returns why a finished directory cannot be renamed to the path.
func CheckPath(path string) error {
	if isMountPoint(path) {
		return fmt.Errorf("%s is a mount point and cannot be replaced; use a directory below it", path)
	}
	return nil
}

// ErrInUse reports that another process has locked the directory.
var ErrInUse = errors.New("another process uses the data directory")

// Lock locks a directory for this process until the file is closed. Two wrappers with different volumes may use the
// same data directory, and neither may remove what the other builds. Some file systems do not support locks.
func Lock(dir string) (*os.File, error) {
	lock, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if errors.Is(unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
		err = fmt.Errorf("%w: it restores data into %s; stop it, or use a different data-dir", ErrInUse, dir)
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// MountedWithin returns a mount point within a data directory, or "" if there is none. Its content stays with the
// preserved data, and becomes part of the restored data when it is mounted again.
func MountedWithin(dataDir string) string {
	for _, part := range []string{"member", "member/wal", "member/snap"} {
		if at := filepath.Join(dataDir, part); isMountPoint(at) {
			return at
		}
	}
	return ""
}

// NewToken returns a token that no cluster has used. etcd computes its IDs only from the token and the members'
// peer URLs.
func NewToken() string { return "restored-" + rand.Text() }

// A cluster is the restored cluster with its IDs.
type cluster struct {
	*membership.RaftCluster
	self         *membership.Member
	votersBefore int      // number of voters in the backed-up cluster
	alarms       []string // alarms raised in that cluster
	generation   uint64   // number of the new generation; 0 if none is created
	start        uint64   // index of the snapshot at the start of its log; set with the database
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
	c := &cluster{RaftCluster: raftCluster, self: raftCluster.MemberByName(s.Name), generation: uint64(max(0, s.Generation))} //nolint:gosec // not negative
	if c.self == nil {
		return nil, fmt.Errorf("%q is not one of the cluster's members", s.Name)
	}
	return c, nil
}

// confState returns raft's list of voters.
func (c *cluster) confState() *raftpb.ConfState {
	state := &raftpb.ConfState{}
	for _, m := range c.Members() {
		state.Voters = append(state.Voters, uint64(m.ID))
	}
	return state
}

// rewriteMembers changes the members and the index in the database to those of the new cluster. Alarms are removed
// with the members that raised them.
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

// authRevisionDistance is added to the revision of users and roles, which never change that often between two
// backups.
const authRevisionDistance = 1 << 20

// invalidateTokens makes etcd reject all tokens signed earlier: a JWT contains the revision of users and roles, and
// could otherwise remain valid despite a password change made after the restored state.
func (c *cluster) invalidateTokens(tx *bolt.Tx) error {
	users, err := tx.CreateBucketIfNotExists(schema.Auth.Name())
	if err != nil {
		return err
	}
	revision := c.nextStart(decodeNumber(users.Get(schema.AuthRevisionKeyName)), authRevisionDistance)
	return users.Put(schema.AuthRevisionKeyName, binary.BigEndian.AppendUint64(nil, revision))
}

// decodeNumber decodes a number in a database, or returns 0 if there is none.
func decodeNumber(stored []byte) uint64 {
	if len(stored) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(stored)
}

// countVoters counts the voting members in a database. Unreadable entries do not count.
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

// listAlarms returns each raised alarm once. Unreadable entries are ignored.
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

// firstTerm is the term of the first entry in the log. The entry is committed, because every member has the same
// one.
const firstTerm = 1

// logDistance is the distance from the start of the replaced log to that of the restored log. etcd's simple tokens
// contain the index at which they were created, and a request with a token waits until that index is applied, so
// tokens of the previous log wait that long. No cluster appends that many entries between two backups. Members that
// each restore a different backup still start at the same index.
const logDistance = 1 << 40

// commit returns the index of the first entry in the log, after the snapshot.
func (c *cluster) commit() uint64 { return c.start + 1 }

// nextStart returns a number for a new cluster, such as the start of its log. It is above anything that the cluster
// of the database reached, and above those of clusters restored since then, which the database may not know: each
// of them has advanced by less than a step. It is the same for all members that restore the same data. Only data
// adopted from a store with more generations may have advanced further.
func (c *cluster) nextStart(reached, step uint64) uint64 {
	return max(reached/step+1, c.generation) * step
}

// writeLog starts the log with a snapshot of the database and its members. The empty entry after the snapshot shows
// etcd immediately that everything committed is applied.
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

// saveSnapshot makes the snapshot file readable only for its owner, because etcd leaves that to the umask.
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
