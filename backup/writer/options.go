package writer

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/writer/ack"
	"etcd-wrapper/backup/writer/capture"
)

// Options configure a Writer. All fields are required unless documented otherwise.
type Options struct {
	// Archive is the archive in --backup-store. Its keys seal and sign the segments.
	Archive *archive.Archive
	Etcd    Etcd
	// Interval is --backup-interval: a change is captured and its upload started at most this long after it. The
	// first change after a quiet period is captured immediately.
	Interval time.Duration
	// Schedule returns when the next full snapshot is due after a given time; the zero time means never. The cluster
	// is etcd's ID.
	Schedule func(cluster string, after time.Time) time.Time
	// SpoolDir is a directory on the volume that only the spool uses; it is created. SpoolLimit is the maximum number
	// of bytes of queued segments.
	SpoolDir   string
	SpoolLimit int64
	// DataDir is etcd's data directory. A file in it records which cluster the data belongs to.
	DataDir string
	// Owner is the cluster for which a new store is initialized, NAMESPACE/NAME.
	Owner string
	// Reconciled is set if etcd is closed and its data was verified against the chain while it ran. If another member
	// has extended the chain since, there is nothing to upload and Flush returns ErrRowsOnly.
	Reconciled bool
	// SegmentsOnly is set for a closed etcd that did not write the backups. Its member uploads only what the writer may
	// have missed and never starts a chain: Flush returns ErrNoChain if there is no chain to extend, and ErrRowsOnly if
	// the chain already has its rows.
	SegmentsOnly bool
	// Release makes Flush end with an object which declares that no more writes follow. A restore then does not wait to
	// see whether this cluster is active. It is set for a closed etcd that was the only member of its cluster.
	Release bool
	// Session identifies this process: random, hexadecimal.
	Session string
	// Previous is a Writer whose Run has returned. New adopts its state of the store, which saves requests. It may be
	// nil.
	Previous *Writer
	// Gate is held during the read transaction of a full snapshot.
	Gate Gate
	// Ack holds etcd's replies back until the store has what they depend on (--backup-ack=stored). Changes are then
	// captured as soon as the segment before is stored. It is nil otherwise, and if etcd is closed.
	Ack *ack.Gate
	// Superseded is called once the generation has ended and another one continues it, with the reason, a sentence:
	// etcd must be closed. It must not block. It may be nil.
	Superseded func(reason error)
	Log        zerolog.Logger
	// Now returns the time of the wall clock.
	Now func() time.Time
}

var (
	// ErrNotWriter reports that another member of the cluster writes the backups. Ask that member instead.
	ErrNotWriter = errors.New("another member is writing the backups")
	// ErrNoChain reports that a full snapshot is needed, which only the member that writes the backups may make.
	ErrNoChain = errors.New("no chain of backups to extend: only the member that writes the backups may start one")
	// ErrRowsOnly reports that the store has every revision of a closed member. The member cannot determine whether
	// its leases and users are stored.
	ErrRowsOnly = errors.New("the store has all revisions of this member, but the member that writes the backups must still upload the latest lease and user changes")
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
	// Acquire waits until no other operation holds the gate, or until ctx is done. The operation is named for
	// users, such as "a full snapshot". The caller must call end.
	Acquire(ctx context.Context, what string) (end func(), err error)
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
