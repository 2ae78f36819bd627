package archive

import (
	"context"
	"io"
	"time"

	"etcd-wrapper/bootstrap/backup/seal"
	"etcd-wrapper/bootstrap/backup/segment"
)

// Full is the manifest of a snapshot of the whole database.
type Full struct {
	seal.Heading
	Cluster    string           `json:"cluster"`           // etcd's cluster id, hexadecimal
	Generation int              `json:"generation"`        //
	Revision   int64            `json:"revision"`          // read in the transaction that the database comes from
	Next       segment.Position `json:"next"`              // where the segment behind it begins
	Compacted  int64            `json:"compacted"`         // etcd's scheduled compaction in that transaction; 0 before the first one
	Time       time.Time        `json:"time"`              // of that transaction, to the second
	Chain      segment.Digest   `json:"chain"`             // the chain's digest at Revision: that of the segments before, or segment.Seed
	Last       segment.Digest   `json:"last,omitzero"`     // over the rows of the last revision with rows; zero if unknown
	Data       segment.Body     `json:"data"`              // the object beside the manifest
	Database   segment.Body     `json:"database"`          // the database alone, without the digest that follows it in a snapshot
	Hash       *Hash            `json:"hash,omitempty"`    // etcd's own, if it was asked
	Buckets    []string         `json:"buckets,omitempty"` // names of the small buckets inside
	Term       uint64           `json:"term"`              // raft's
	Member     string           `json:"member"`            // who wrote it: etcd's member id, hexadecimal
	Reason     string           `json:"reason"`            // why it was made: a clause
	Encrypted  bool             `json:"encrypted,omitzero"`
}

// Hash is what etcd's HashKV answered.
type Hash struct {
	Revision  int64  `json:"revision"`
	Compacted int64  `json:"compact"`
	Hash      uint32 `json:"hash"`
}

// Name names the full within its generation.
func (f Full) Name() string { return FullName(f.Revision, f.Time) }

// BeginsChain tells whether no segment before it leads to it.
func (f Full) BeginsChain() bool {
	return f.Chain == segment.Seed(f.Cluster, f.Generation, f.Revision)
}

// Start is what the segment behind it goes on from.
func (f Full) Start() segment.Start {
	return segment.Start{Cluster: f.Cluster, Generation: f.Generation, Position: f.Next, Before: f.Chain, Last: f.Last}
}

// SealSnapshot writes what a full's data object holds: a stock snapshot, compressed and encrypted. It reads the database alone,
// and returns what goes into Full.Database. It is for those who cannot keep a copy of the database until it is uploaded.
func (a *Archive) SealSnapshot(w io.Writer, database io.Reader) (segment.Body, error) {
	return segment.Body{}, errUnfinished
}

// PutFull stores a full: its data, sealed on the way, then its manifest. It reads the database alone; Heading, Data, Database,
// Encrypted and, if it is zero, Next are filled in. After an error the full has to be put under another name, at a later Time.
func (a *Archive) PutFull(ctx context.Context, full Full, database io.Reader) (Full, error) {
	return Full{}, errUnfinished
}

// PutSealedFull is PutFull for what SealSnapshot wrote; Database must be what it returned. It may be repeated with the same
// content.
func (a *Archive) PutSealedFull(ctx context.Context, full Full, data io.Reader) (Full, error) {
	return Full{}, errUnfinished
}

// Full returns a full's manifest by its name.
func (a *Archive) Full(ctx context.Context, generation int, name string) (Full, error) {
	return Full{}, errUnfinished
}

// OpenFull reads a full's data as a stock snapshot: the database, and 32 bytes that are its SHA-256. io.EOF says that all of it
// was as the manifest says; what was read before another error counts for nothing.
func (a *Archive) OpenFull(ctx context.Context, full Full) (io.ReadCloser, error) {
	return nil, errUnfinished
}
