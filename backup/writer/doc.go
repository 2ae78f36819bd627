// Package writer keeps a running etcd's backups going: it captures what changes, lets it wait on the volume while the store is
// away, stores it, makes fulls by schedule and whenever a chain can't go on, and merges small segments into larger ones.
//
// Nothing in it touches serving. One goroutine, Run's, owns everything that is known of the chain and never waits for the
// store: whatever does runs in goroutines of its own, one upload at a time, and tells the owner how it went.
package writer

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/server/v3/storage/backend"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
)

// Etcd is what backups need to know of the running etcd. Its methods answer at once, from any goroutine; Server makes one.
type Etcd interface {
	// Backend is the database. It is asked each time, since etcd replaces it when it takes over a leader's snapshot.
	Backend() backend.Backend
	// Revision is the current one: all of its rows, and those of the ones before, are in the database.
	Revision() int64
	// AppliedIndex grows with everything that may have changed the database.
	AppliedIndex() uint64
	// IsLeader tells whether this member believes that it leads its cluster; it may be wrong for an election's time.
	IsLeader() bool
	// Term is raft's.
	Term() uint64
	// MemberID and ClusterID are etcd's ids, hexadecimal.
	MemberID() string
	ClusterID() string
	// Hashes are those that etcd found when it compacted, the last few of them.
	Hashes() []segment.CompactionHash
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

// Options configure a Shipper. All fields are required unless they say otherwise.
type Options struct {
	// Open returns the archive of --backup-store; it is asked again after an error.
	Open func(ctx context.Context) (*archive.Archive, error)
	// Keys are what segments are sealed and signed with, the archive's as well.
	Keys *seal.Keys
	Etcd Etcd
	// Interval is --backup-interval: at most so long after a change a segment with it is on its way. The first one after a
	// quiet time goes at once.
	Interval time.Duration
	// Schedule returns when, after a time, the next full is due; the zero time means never. The cluster is etcd's cluster id.
	Schedule func(cluster string, after time.Time) time.Time
	// SpoolDir is a directory of its own on the volume, which is created, and SpoolLimit how many bytes of segments may wait
	// there.
	SpoolDir   string
	SpoolLimit int64
	// WayFile is where it is remembered which backups etcd's data go with. It lies among these, so that it is moved, copied, put back
	// and removed with them.
	WayFile string
	// Reconciled says that Etcd was closed, and that its data were seen to be those of the chain while it ran: where other members have
	// gone on since, there is nothing to bring, and Flush says ErrRowsOnly.
	Reconciled bool
	// SegmentsOnly has a member bring what others have left, but begin nothing: where there is no chain that it can go on with, no
	// full is made, and Flush fails; where the chain has its rows, Flush says ErrRowsOnly. It is for an etcd that is closed and did not
	// write the backups.
	SegmentsOnly bool
	// Former has ended, and what it knew of the store is gone on with, which saves the requests to find that out; nil if there is none.
	Former *Shipper
	// Gate is passed around the read transaction of a full; nil means that there is nobody to keep apart from.
	Gate Gate
	Log  zerolog.Logger
	// Now is the wall clock; nil means time.Now.
	Now func() time.Time
}

var (
	// ErrNotWriter says that another member of the cluster writes the backups: ask there.
	ErrNotWriter = errors.New("another member writes the backups")
	// ErrNoChain says that only a full would help, which is another member's to make.
	ErrNoChain = errors.New("there is no chain of backups to go on with, and to begin one is for the member that writes them")
	// ErrRowsOnly says that the store has every revision of a member that is closed, and that this member cannot tell more.
	ErrRowsOnly = errors.New("the store has every revision that this member has; the last change of leases or users is for the member that writes the backups to bring")
	// ErrEnded says that Run has ended.
	ErrEnded = errors.New("backups have ended")
)
