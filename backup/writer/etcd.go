package writer

import (
	"context"

	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/writer/capture"
)

// Etcd is what backups need to know of the running etcd. Its methods may be called from any goroutine, and answer at once, but for
// Members and Hash. Server makes one.
type Etcd interface {
	// Backend is the database. It is asked each time, since etcd replaces it when it takes over a leader's snapshot.
	Backend() backend.Backend
	// Revision is the current one: all of its rows, and those of the ones before, are in the database.
	Revision() int64
	// AppliedIndex grows with everything that may have changed the database.
	AppliedIndex() uint64
	// Identity is what this member knows of itself. It may believe for an election's time that it leads.
	Identity() capture.Identity
	// Members is how many the cluster has; 0 if that is not known. It waits while etcd writes a change of them down, which a
	// defragmentation may delay.
	Members() int
	// Hashes are those that etcd found when it compacted, the last few of them.
	Hashes() []format.CompactionHash
	// Hash is etcd's own of the rows up to a revision. It reads the whole database under a lock of etcd's, so it is asked only
	// where that is small.
	Hash(revision int64) (archive.Hash, error)
}

// Gate keeps apart what must not happen to the database at once: a snapshot of it and its defragmentation, which otherwise
// freeze etcd until the snapshot is closed.
type Gate interface {
	// Begin waits until nobody else is inside, or for the end of ctx. What is for people: a noun such as "a full backup".
	// The caller must call end.
	Begin(ctx context.Context, what string) (end func(), err error)
}

// Server is etcd's server as backups see it.
func Server(server *etcdserver.EtcdServer) Etcd { return running{server} }

type running struct{ *etcdserver.EtcdServer }

func (r running) Revision() int64 { return r.KV().Rev() }

func (r running) Identity() capture.Identity {
	return capture.Identity{
		MemberID: r.MemberID().String(), ClusterID: r.Cluster().ID().String(), Leader: r.Leader() == r.MemberID(),
		Term: r.Term(),
	}
}

func (r running) Members() int { return len(r.Cluster().Members()) }

func (r running) Hashes() (found []format.CompactionHash) {
	for _, hash := range r.KV().HashStorage().Hashes() {
		found = append(found, format.CompactionHash(hashOf(hash)))
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
