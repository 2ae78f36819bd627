package writer

import (
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/mvcc"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/segment"
)

// Server is etcd's server as backups see it.
func Server(server *etcdserver.EtcdServer) Etcd { return running{server} }

type running struct{ *etcdserver.EtcdServer }

func (r running) Revision() int64   { return r.KV().Rev() }
func (r running) IsLeader() bool    { return r.Leader() == r.EtcdServer.MemberID() }
func (r running) MemberID() string  { return r.EtcdServer.MemberID().String() }
func (r running) ClusterID() string { return r.Cluster().ID().String() }

func (r running) Hashes() (found []segment.CompactionHash) {
	for _, hash := range r.KV().HashStorage().Hashes() {
		told := hashOf(hash)
		found = append(found, segment.CompactionHash{Revision: told.Revision, Compacted: told.Compacted, Hash: told.Hash})
	}
	return found
}

func (r running) Hash(revision int64) (archive.Hash, error) {
	hash, _, err := r.KV().HashStorage().HashByRev(revision)
	if err != nil {
		return archive.Hash{}, err
	}
	return hashOf(hash), nil
}

// hashOf says 0 where etcd says -1: before its first compaction.
func hashOf(hash mvcc.KeyValueHash) archive.Hash {
	return archive.Hash{Revision: hash.Revision, Compacted: max(0, hash.CompactRevision), Hash: hash.Hash}
}
