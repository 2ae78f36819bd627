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

// NewToken makes a token that no cluster ever had. Ids are computed from it and the members' peer URLs alone.
func NewToken() string { return "restored-" + rand.Text() }

// cluster is the restored one, with ids.
type cluster struct {
	*membership.RaftCluster
	self       *membership.Member
	former     int      // voters of the cluster that was backed up
	alarms     []string // that were raised in it
	generation uint64   // that begins with it; 0 if none does
	begins     uint64   // index of the snapshot that its log begins with; set with the database
}

// found gives the cluster and its members ids.
func (s Seed) found() (*cluster, error) {
	if s.Token == "" {
		return nil, errors.New("the cluster has no token")
	}
	founded, err := membership.NewClusterFromURLsMap(zap.NewNop(), s.Token, s.Members)
	if err != nil {
		return nil, err
	}
	c := &cluster{RaftCluster: founded, self: founded.MemberByName(s.Name), generation: uint64(max(0, s.Generation))} //nolint:gosec // not negative
	if c.self == nil {
		return nil, fmt.Errorf("%q is none of its members", s.Name)
	}
	return c, nil
}

// confState is who votes, for raft.
func (c *cluster) confState() *raftpb.ConfState {
	state := &raftpb.ConfState{}
	for _, m := range c.Members() {
		state.Voters = append(state.Voters, uint64(m.ID))
	}
	return state
}

// settle has the database belong to the new cluster: to its members and to its log. Alarms go with the members that
// raised them.
func (c *cluster) settle(tx *bolt.Tx) error {
	c.former, c.alarms = voters(tx), alarms(tx)
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
	return cmp.Or(c.ageTokens(tx), c.settleMeta(tx.Bucket(schema.Meta.Name())))
}

// revisionsApart is how far the revision of users and roles is raised, which nobody changes so often between two backups.
const revisionsApart = 1 << 20

// ageTokens has etcd find all tokens old that were signed before: a jwt has the revision of users and roles at which it was made, and
// could else outlive a change of password that was made since the restore.
func (c *cluster) ageTokens(tx *bolt.Tx) error {
	users, err := tx.CreateBucketIfNotExists(schema.Auth.Name())
	if err != nil {
		return err
	}
	was := number(users.Get(schema.AuthRevisionKeyName))
	return users.Put(schema.AuthRevisionKeyName, binary.BigEndian.AppendUint64(nil, c.above(was, revisionsApart)))
}

// number is what a database has as one; 0 if it has none.
func number(kept []byte) uint64 {
	if len(kept) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(kept)
}

// voters counts those of the database's members. What cannot be read is none.
func voters(tx *bolt.Tx) (count int) {
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

// alarms returns the alarms that were raised, once each. What cannot be read is none.
func alarms(tx *bolt.Tx) (raised []string) {
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

func (c *cluster) settleMeta(meta *bolt.Bucket) error {
	c.begins = c.above(number(meta.Get(schema.MetaConsistentIndexKeyName)), apart)
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

// firstTerm is the term of the entry that the log begins with. It is committed, as every member has the same one.
const firstTerm = 1

// apart is how far a restored log begins above the one that it replaces. etcd's simple tokens carry the index at which they were made, and a
// request with one waits until that is applied: those of the former log would wait for as long. No cluster appends so many entries between
// two backups, and members that restore different ones of them, each for itself, still begin at the same index.
const apart = 1 << 40

// commit is the index of the entry that the log begins with, behind the snapshot.
func (c *cluster) commit() uint64 { return c.begins + 1 }

// above is a number of a new cluster's, such as where its log begins, that is above what the cluster of the database has come to, and those
// that were restored since, which the database may know nothing of: each has come less than a step further. It is the same for all who
// restore the same. Only data that were adopted from a store with more generations may have come further.
func (c *cluster) above(was, step uint64) uint64 {
	return max(was/step+1, c.generation) * step
}

// writeLog begins the log with a snapshot that stands for the database and its members. The empty entry behind it has etcd know at once
// that it has applied what is committed.
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
	if err := log.SaveSnapshot(walpb.Snapshot{Index: c.begins, Term: firstTerm, ConfState: state}); err != nil {
		return err
	}
	if err := c.saveSnapshot(filepath.Join(member, "snap"), *state); err != nil {
		return err
	}
	first := raftpb.Entry{Type: raftpb.EntryNormal, Term: firstTerm, Index: c.commit()}
	return log.Save(raftpb.HardState{Term: firstTerm, Vote: state.Voters[0], Commit: first.Index}, []raftpb.Entry{first})
}

// saveSnapshot keeps the file for its owner: etcd leaves that to the umask.
func (c *cluster) saveSnapshot(dir string, state raftpb.ConfState) error {
	err := snap.New(zap.NewNop(), dir).SaveSnap(raftpb.Snapshot{
		Data:     etcdserver.GetMembershipInfoInV2Format(zap.NewNop(), c.RaftCluster),
		Metadata: raftpb.SnapshotMetadata{Index: c.begins, Term: firstTerm, ConfState: state},
	})
	if err != nil {
		return err
	}
	return os.Chmod(filepath.Join(dir, fmt.Sprintf("%016x-%016x.snap", firstTerm, c.begins)), 0o600)
}
