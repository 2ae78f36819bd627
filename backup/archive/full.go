package archive

import (
	"context"
	"fmt"
	"io"
	"time"

	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/store"
)

// Full is the manifest of a snapshot of the whole database.
type Full struct {
	seal.Heading
	Cluster    string           `json:"cluster"`           // etcd's cluster id, hexadecimal
	Generation int              `json:"generation"`        //
	Revision   int64            `json:"revision"`          // read in the transaction that the database comes from
	Next       segment.Position `json:"next"`              // where the segment behind it begins
	Behind     *Link            `json:"behind,omitempty"`  // where the generation went on when this one began a chain; nil if it began none, or the first of all
	Session    string           `json:"session,omitempty"` // of the process that wrote it: random, hexadecimal
	Compacted  int64            `json:"compacted"`         // etcd's scheduled compaction in that transaction; 0 before the first one
	Time       time.Time        `json:"time"`              // of that transaction, cut to the second
	Chain      segment.Digest   `json:"chain"`             // the chain's digest at Revision: that of the segments before, or segment.Seed
	Last       segment.Digest   `json:"last,omitzero"`     // over the rows of the last revision with rows; zero if unknown
	Data       segment.Body     `json:"data"`              // the object beside the manifest
	Database   segment.Body     `json:"database"`          // the database alone, without the digest that follows it in a snapshot
	Hash       *Hash            `json:"hash,omitempty"`    // etcd's own, if it was asked
	Buckets    []string         `json:"buckets,omitempty"` // names of the small buckets inside
	Term       uint64           `json:"term"`              // raft's
	Applied    uint64           `json:"applied,omitzero"`  // raft's index that its writer had applied once the transaction was open; 0 if unknown
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

// Since is from when on its revision was certainly the present, or past: Time is cut to the second.
func (f Full) Since() time.Time { return f.Time.Add(time.Second) }

// BeginsChain tells whether no segment before it leads to it.
func (f Full) BeginsChain() bool {
	return f.Chain == segment.Seed(f.Cluster, f.Generation, f.Revision)
}

// Start is what the segment behind it goes on from.
func (f Full) Start() segment.Start {
	return segment.Start{Cluster: f.Cluster, Generation: f.Generation, Position: f.Next, Before: f.Chain, Last: f.Last, Applied: f.Applied}
}

const fullKind = "full"

// PutFull is PutData and Commit.
func (a *Archive) PutFull(ctx context.Context, full Full, database io.Reader) (Full, error) {
	full, err := a.PutData(ctx, full, database)
	if err != nil {
		return Full{}, err
	}
	return full, a.Commit(ctx, full)
}

// PutData stores a full's data, sealed on the way, and returns what Commit makes a full of it with. It reads the database alone;
// Heading, Data, Database, Encrypted and, if it is zero, Next are filled in. After an error the data have to be put under another
// name, at a later Time, since what is encrypted twice is not the same.
func (a *Archive) PutData(ctx context.Context, full Full, database io.Reader) (Full, error) {
	full = a.completed(full)
	var err error
	full.Data, err = a.putFilled(ctx, DataName(full.Generation, full.Name()), func(w io.Writer) (err error) {
		full.Database, err = a.SealSnapshot(w, database)
		return err
	})
	return full, err
}

// PutSealedData is PutData for what SealSnapshot wrote; Database must be what it returned. It may be repeated with the same
// content.
func (a *Archive) PutSealedData(ctx context.Context, full Full, data io.Reader) (Full, error) {
	full = a.completed(full)
	digest, err := store.PutOnce(ctx, a.store, DataName(full.Generation, full.Name()), data)
	full.Data = segment.Body{Bytes: digest.Size, SHA256: digest.SHA256}
	return full, err
}

// completed fills in what doesn't depend on the content.
func (a *Archive) completed(full Full) Full {
	full.Heading, full.Encrypted = heading(fullKind), a.keys.Encrypts()
	full.Time = full.Time.UTC().Truncate(time.Second)
	if full.Next.IsZero() {
		full.Next = segment.After(full.Revision)
	}
	return full
}

// Commit makes a full of data that is there. It may be repeated until it succeeds, within half a day: what has no manifest may be
// deleted a day after it was put.
func (a *Archive) Commit(ctx context.Context, full Full) error {
	if err := full.check(); err != nil {
		return err
	}
	return a.state(ctx, ManifestName(full.Generation, full.Name()), full)
}

// Full returns a full's manifest by its name.
func (a *Archive) Full(ctx context.Context, generation int, name string) (Full, error) {
	var full Full
	object := ManifestName(generation, name)
	if err := a.statement(ctx, object, fullKind, &full); err != nil {
		return Full{}, err
	}
	if full.Generation != generation || full.Name() != name {
		return Full{}, a.damaged(object)
	}
	if err := full.check(); err != nil {
		return Full{}, a.named(object, seal.Damaged(err))
	}
	return full, nil
}

// check finds what contradicts itself.
func (f Full) check() error {
	switch {
	case f.Cluster == "" || f.Generation <= 0 || f.Revision <= 0:
		return fmt.Errorf("the full of revision %d doesn't say what it is of", f.Revision)
	case !f.Next.Valid() || f.Next.Revision > f.Revision+1:
		return fmt.Errorf("the full of revision %d goes on at %s", f.Revision, f.Next)
	case f.Data.Bytes <= 0 || f.Database.Bytes <= 0:
		return fmt.Errorf("the full of revision %d has %d bytes of a database of %d", f.Revision, f.Data.Bytes, f.Database.Bytes)
	}
	return nil
}
