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

// Options configures a Writer. All fields are required unless documented otherwise.
type Options struct {
	// Archive is the archive in --backup-store. Segments are encrypted and signed with its keys.
	Archive *archive.Archive
	Etcd    Etcd
	// Interval is the maximum time between a change and the start of its upload (--backup-interval). The first change
	// after a quiet period is captured immediately.
	Interval time.Duration
	// Schedule returns the time of the first full snapshot due after the given time, or the zero time if none is
	// scheduled. cluster is the cluster ID of the backups.
	Schedule func(cluster string, after time.Time) time.Time
	// SpoolDir is the directory of the spool, which is created if necessary and must not be used by anything else.
	// SpoolLimit is the maximum size of all queued segments in bytes.
	SpoolDir   string
	SpoolLimit int64
	// DataDir is etcd's data directory. A file in DataDir records which cluster the data belongs to.
	DataDir string
	// Owner is the owner (NAMESPACE/NAME) recorded when a store is initialized.
	Owner string
	// Reconciled is set if etcd is closed and its data matched the chain while it was running. If another member has
	// extended the chain since then, Flush uploads nothing and returns ErrRowsOnly.
	Reconciled bool
	// SegmentsOnly is set for a closed etcd whose member was not the writer, so that Flush uploads only changes that
	// the writer may have missed and never starts a chain. Flush returns ErrNoChain if there is no chain to extend,
	// and ErrRowsOnly if the chain already contains all rows of the member.
	SegmentsOnly bool
	// Release makes Flush upload a final object which declares that no more writes follow, so that a restore need not
	// wait to see whether this cluster is active. Release is set for a closed etcd that was the only member of its
	// cluster.
	Release bool
	// Session is a random hexadecimal ID of this process.
	Session string
	// Previous is a Writer whose Run has returned. New copies the known state of the store from Previous, which saves
	// requests. Previous may be nil.
	Previous *Writer
	// Gate is held while a full snapshot's read transaction is open.
	Gate Gate
	// Ack delays etcd's replies until the store has the changes that they depend on (--backup-ack=stored). While Ack
	// is set, changes are captured as soon as the previous segment is stored. Ack is nil if replies are not delayed
	// or etcd is closed.
	Ack *ack.Gate
	// Superseded is called when another generation has superseded this one, and must cause etcd to be closed. The
	// reason is worded for users. Superseded must not block and may be nil.
	Superseded func(reason error)
	Log        zerolog.Logger
	// Now returns the current wall-clock time.
	Now func() time.Time
}

var (
	// ErrNotWriter is returned if another member of the cluster is the writer. The caller can send the request to the
	// writer instead.
	ErrNotWriter = errors.New("another member is writing the backups")
	// ErrNoChain is returned if a full snapshot is needed but this member must not make one because it is not the
	// writer.
	ErrNoChain = errors.New("no chain of backups to extend: only the member that writes the backups may start one")
	// ErrRowsOnly is returned if the store has all revisions of a closed member, but may be missing the latest leases
	// and users of the member.
	ErrRowsOnly = errors.New("the store has all revisions of this member, but the member that writes the backups must still upload the latest lease and user changes")
)

// Etcd provides access to a running etcd. Its methods are safe for concurrent use. All methods except Members and
// Hash return immediately. Use Server to get an implementation.
type Etcd interface {
	// Backend returns the current database. etcd replaces its database when it receives a snapshot from the leader.
	Backend() backend.Backend
	// Revision returns the current revision. All rows up to this revision are in the database.
	Revision() int64
	// AppliedIndex returns an index that increases with every possible change to the database.
	AppliedIndex() uint64
	// Identity returns the identity of this member. A member that has lost leadership may report that it is the
	// leader for up to one election timeout.
	Identity() capture.Identity
	// Members returns the number of members, or 0 if it is unknown. Members blocks while etcd writes a membership
	// change, which a defragmentation may delay.
	Members() int
	// Hashes returns the hashes recorded by the most recent compactions.
	Hashes() []format.Hash
	// Hash returns etcd's hash of all rows up to a revision. etcd holds a lock while it reads the whole database, so
	// Hash is called only for small databases.
	Hash(revision int64) (format.Hash, error)
}

// Gate prevents the database from being defragmented while a snapshot of it is open, because a defragmentation would
// block etcd until the snapshot is closed.
type Gate interface {
	// Acquire waits until no other operation holds the gate or ctx is done. what names the operation for users, for
	// example "a full snapshot". The caller must call end to release the gate.
	Acquire(ctx context.Context, what string) (end func(), err error)
}

// Server adapts an etcd server to Etcd.
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

// hashOf converts a hash from etcd. Before the first compaction, etcd reports compact revision -1; hashOf returns 0.
func hashOf(hash mvcc.KeyValueHash) format.Hash {
	return format.Hash{Revision: hash.Revision, Compacted: max(0, hash.CompactRevision), Hash: hash.Hash}
}
