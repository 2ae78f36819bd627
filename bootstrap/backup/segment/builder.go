package segment

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"etcd-wrapper/bootstrap/backup/seal"
)

// Start is what a segment goes on from: a full, or the segment before it.
type Start struct {
	Cluster    string
	Generation int
	Position   Position
	Before     Digest // the chain's digest there
	Last       Digest // over the rows of the last revision with rows before; zero if unknown
}

// Source says where a segment's records come from.
type Source struct {
	Compacted int64  // etcd's scheduled compaction, read in the transaction that the rows come from; 0 if there was none
	Term      uint64 // raft's
	Member    string // etcd's member id, hexadecimal
}

// Object is a whole segment as it is stored.
type Object struct {
	Manifest
	Line []byte // the signed line, with its newline
	Data []byte // what follows it
}

// Size is its length in bytes.
func (o Object) Size() int64 { return int64(len(o.Line) + len(o.Data)) }

// Reader reads it from its beginning.
func (o Object) Reader() io.Reader {
	return io.MultiReader(bytes.NewReader(o.Line), bytes.NewReader(o.Data))
}

// Builder makes a segment in memory, compressed on the way. Rows come in order, markers behind the rows of their revision,
// buckets last. After an error it is good for nothing more. One goroutine owns it.
type Builder struct {
	keys     *seal.Keys
	manifest Manifest
	chain    *Chain

	data    bytes.Buffer
	sealed  io.WriteCloser
	records uint64
	marked  int64 // revision of the last marker
	scratch []byte
}

// NewBuilder begins a segment.
func NewBuilder(keys *seal.Keys, start Start) (*Builder, error) {
	if !start.Position.Valid() {
		return nil, fmt.Errorf("no segment can begin at %s: take a full", start.Position)
	}
	b := &Builder{keys: keys, chain: Continue(start.Before, start.Position)}
	b.manifest = Manifest{
		Heading: seal.Heading{Format: seal.Format, Kind: Kind},
		Cluster: start.Cluster, Generation: start.Generation, Position: start.Position, End: start.Position.Revision - 1,
		Before: start.Before, After: start.Before, Last: start.Last, Encrypted: keys.Encrypts(),
	}
	sealed, err := keys.Seal(&b.data)
	b.sealed = sealed
	return b, err
}

// RawBytes is the size of the records so far, before compression.
func (b *Builder) RawBytes() int64 { return b.manifest.RawBytes }

// Rows is how many rows were added.
func (b *Builder) Rows() int64 { return b.manifest.Rows }

// End is the revision of the last row, or the one before the segment's first.
func (b *Builder) End() int64 { return b.chain.Revision() }

// Row adds a row. It may be changed afterwards.
func (b *Builder) Row(row Row) error {
	if len(row.Value) > MaxRecord {
		return fmt.Errorf("a row of %d bytes is larger than %d", len(row.Value), MaxRecord)
	}
	if err := b.chain.Add(row); err != nil {
		return err
	}
	if b.chain.Revision() <= b.marked || len(b.manifest.Buckets) > 0 {
		return errOrder
	}
	b.manifest.Rows++
	return b.add(typeRow, bytesOf(row.Key), bytesOf(row.Value))
}

// Marker adds a marker, behind all rows up to its revision. It may lie behind the last row's: etcd has revisions without rows.
func (b *Builder) Marker(marker Marker) error {
	if marker.Revision < b.chain.Revision() || marker.Revision < b.marked || marker.Time.UnixMilli() < 0 {
		return fmt.Errorf("a marker of revision %d comes too late", marker.Revision)
	}
	at := time.UnixMilli(marker.Time.UnixMilli()).UTC()
	if b.manifest.From.IsZero() {
		b.manifest.From = at
	}
	b.marked, b.manifest.To = marker.Revision, at
	return b.add(typeMarker, number(marker.Revision), number(at.UnixMilli()))
}

// CompactionHash adds what etcd found when it compacted, at any time after that.
func (b *Builder) CompactionHash(hash CompactionHash) error {
	return b.add(typeHash, number(hash.Revision), number(hash.Compacted), number(int64(hash.Hash)))
}

// Bucket adds the content of a small bucket as of the segment's end.
func (b *Builder) Bucket(bucket *Bucket) error {
	if err := bucket.check(); err != nil {
		return err
	}
	if bucket.Size() > MaxRecord {
		return fmt.Errorf("bucket %s of %d bytes is larger than %d", bucket.Name, bucket.Size(), MaxRecord)
	}
	b.manifest.Buckets = append(b.manifest.Buckets, bucket.Name)
	return b.add(typeBucket, bytesOf([]byte(bucket.Name)), number(int64(bucket.count)), bytesOf(bucket.entries))
}

// Finish ends the segment.
func (b *Builder) Finish(from Source) (Object, error) {
	if err := b.add(typeEnd, number(int64(b.records))); err != nil {
		return Object{}, err
	}
	if err := b.sealed.Close(); err != nil {
		return Object{}, err
	}
	m := b.manifest
	m.Compacted, m.Term, m.Member = from.Compacted, from.Term, from.Member
	if m.Rows > 0 {
		m.End = b.chain.Revision()
		m.After, m.Last = b.chain.End()
	}
	m.Body = Body{Bytes: int64(b.data.Len()), SHA256: sha256.Sum256(b.data.Bytes())}
	if err := m.check(); err != nil {
		return Object{}, err
	}
	line, err := b.keys.Sign(m)
	return Object{Manifest: m, Line: line, Data: b.data.Bytes()}, err
}

// field is a part of a record.
type field struct {
	number int64
	bytes  []byte // so many of them; none behind a number
}

func number(n int64) field   { return field{number: n} }
func bytesOf(b []byte) field { return field{number: int64(len(b)), bytes: b} }

var errNegative = errors.New("a number is negative")

func (b *Builder) add(kind byte, fields ...field) error {
	b.scratch = append(b.scratch[:0], kind)
	for _, field := range fields {
		if field.number < 0 {
			return errNegative
		}
		b.scratch = binary.AppendUvarint(b.scratch, uint64(field.number))
		b.scratch = append(b.scratch, field.bytes...)
	}
	b.records++
	b.manifest.RawBytes += int64(len(b.scratch))
	_, err := b.sealed.Write(b.scratch)
	return err
}
