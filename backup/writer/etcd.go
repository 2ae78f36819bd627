package writer

import (
	"context"

	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/writer/capture"
)

// Etcd is the running etcd as far as backups need it. Methods may be called from any goroutine and return
// immediately, except for Members and Hash. Server returns an implementation.
type Etcd interface {
	// Backend returns the current database. etcd replaces it when it receives a snapshot from the leader.
	Backend() backend.Backend
	// Revision returns the current revision. All rows up to it are in the database.
	Revision() int64
	// AppliedIndex increases with everything that may have changed the database.
	AppliedIndex() uint64
	// Identity returns what this member knows of itself. It may report leadership for up to an election timeout after
	// losing it.
	Identity() capture.Identity
	// Members returns the number of members; 0 if it is not known. It blocks while etcd writes a membership change,
	// which a defragmentation may delay.
	Members() int
	// Hashes returns the hashes of the last few compactions.
	Hashes() []format.Hash
	// Hash returns etcd's hash of the rows up to a revision. It reads the whole database under a lock of etcd, so it
	// is called for small databases only.
	Hash(revision int64) (format.Hash, error)
}

// Gate serializes snapshots of the database with its defragmentation, which would otherwise block etcd until the
// snapshot is closed.
type Gate interface {
	// Begin waits until no other operation holds the gate, or until ctx ends. The operation is named for users, such
	// as "a full backup". The caller must call end.
	Begin(ctx context.Context, what string) (end func(), err error)
}

// Server adapts etcd's server.
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

func (r running) Hashes() (found []format.Hash) {
	for _, hash := range r.KV().HashStorage().Hashes() {
		found = append(found, hashOf(hash))
	}
	return found
}

func (r running) Hash(revision int64) (format.Hash, error) {
	hash, _, err := r.KV().HashStorage().HashByRev(revision)
	if err != nil {
		return format.Hash{}, err
	}
	return hashOf(hash), nil
}

// hashOf converts a hash. Before its first compaction etcd reports revision -1, which becomes 0.
func hashOf(hash mvcc.KeyValueHash) format.Hash {
	return format.Hash{Revision: hash.Revision, Compacted: max(0, hash.CompactRevision), Hash: hash.Hash}
}
