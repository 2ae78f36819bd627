package seed

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// NewToken returns a token that no cluster has had. etcd computes IDs from it and the members' peer URLs alone.
func NewToken() string { return "restored-" + rand.Text() }

// A cluster is the restored one, with IDs.
type cluster struct {
	*membership.RaftCluster
	self         *membership.Member
	votersBefore int      // voters of the cluster that was backed up
	alarms       []string // that were raised in it
	generation   uint64   // the new generation; 0 if none is created
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
		return nil, fmt.Errorf("%q is none of its members", s.Name)
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

// rewriteMembers changes the members and the index in the database to those of the new cluster. Alarms are removed with the
// members that raised them.
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

// authRevisionDistance is added to the revision of users and roles, which never change that often between two backups.
const authRevisionDistance = 1 << 20

// invalidateTokens makes etcd reject all tokens that were signed before: a JWT has the revision of users and roles, and
// could otherwise outlive a change of password that was made after the restored state.
func (c *cluster) invalidateTokens(tx *bolt.Tx) error {
	users, err := tx.CreateBucketIfNotExists(schema.Auth.Name())
	if err != nil {
		return err
	}
	revision := c.nextStart(decodeNumber(users.Get(schema.AuthRevisionKeyName)), authRevisionDistance)
	return users.Put(schema.AuthRevisionKeyName, binary.BigEndian.AppendUint64(nil, revision))
}

// decodeNumber decodes a number in a database; 0 if there is none.
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

// listAlarms returns the alarms that were raised, once each. Unreadable entries do not count.
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

// firstTerm is the term of the first entry in the log. It is committed, as every member has the same one.
const firstTerm = 1

// logDistance is the distance of a restored log's start from the log that it replaces. etcd's simple tokens have the index
// at which they were made, and a request with one waits until that is applied: tokens of the previous log would wait
// for that long. No cluster appends that many entries between two backups, and members that restore different ones,
// each on its own, still start at the same index.
const logDistance = 1 << 40

// commit returns the index of the first entry in the log, after the snapshot.
func (c *cluster) commit() uint64 { return c.start + 1 }

// nextStart returns a number for a new cluster, such as the start of its log, above anything that the cluster of the
// database has reached, and the ones that were restored since, of which the database may know nothing: each has
// advanced less than a step. It is the same for all members that restore the same. Only data that were adopted from a
// store with more generations may have advanced further.
func (c *cluster) nextStart(reached, step uint64) uint64 {
	return max(reached/step+1, c.generation) * step
}

// writeLog starts the log with a snapshot of the database and its members. The empty entry after it shows etcd
// immediately that it has applied what is committed.
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

// saveSnapshot makes the file readable for its owner only, which etcd leaves to the umask.
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
