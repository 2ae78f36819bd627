package segment

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
)

// Digest is a SHA-256. In JSON it is lower-case hexadecimal.
type Digest [sha256.Size]byte

// String is hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText is String, for JSON.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText undoes MarshalText.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) != 2*len(d) {
		return errors.New("not a digest of 64 hexadecimal digits")
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// Seed is the digest that a chain begins with, at the full of that revision.
func Seed(cluster string, generation int, revision int64) Digest {
	return sha256.Sum256(fmt.Appendf(nil, "etcd-wrapper chain\n%s\n%d\n%d\n", cluster, generation, revision))
}

// Chain computes the digest over all rows since a full. It doesn't depend on how they were cut into segments:
//
//	C(r) = SHA-256(C(before r) || r as 8 bytes, big endian || SHA-256(rows of r))
//
// where each row is the length of its key, the key, the length of its value and the value, lengths as uvarints. Revisions
// without rows don't count. One goroutine owns it.
type Chain struct {
	digest   Digest // over all revisions before the present one
	last     Digest // over the rows of the revision before the present one
	revision int64  // the present one, or the one before the first
	open     bool   // rows of the present revision were added
	rows     hash.Hash
	key      []byte // of the row before
	scratch  []byte
}

// Continue returns a chain whose digest is before, at the position.
func Continue(before Digest, position Position) *Chain {
	return &Chain{digest: before, revision: position.Revision - 1, rows: sha256.New()}
}

var errOrder = errors.New("rows are out of order")

// Add adds the next row. An error says that it cannot be the next one; then nothing was added.
func (c *Chain) Add(row Row) error {
	revision, err := row.Revision()
	if err != nil {
		return err
	}
	if revision < c.revision || revision == c.revision && !c.open || bytes.Compare(row.Key, c.key) <= 0 {
		return errOrder
	}
	if c.open && revision > c.revision {
		c.close()
	}
	c.revision, c.open, c.key = revision, true, append(c.key[:0], row.Key...)
	c.scratch = binary.AppendUvarint(c.scratch[:0], uint64(len(row.Key)))
	c.scratch = append(c.scratch, row.Key...)
	c.scratch = binary.AppendUvarint(c.scratch, uint64(len(row.Value)))
	c.rows.Write(c.scratch)
	c.rows.Write(row.Value)
	return nil
}

// close ends the present revision.
func (c *Chain) close() {
	c.rows.Sum(c.last[:0])
	c.rows.Reset()
	next := sha256.New()
	next.Write(c.digest[:])
	next.Write(binary.BigEndian.AppendUint64(nil, uint64(c.revision)))
	next.Write(c.last[:])
	next.Sum(c.digest[:0])
	c.open = false
}

// Revision is that of the last row, or of the one before the first.
func (c *Chain) Revision() int64 { return c.revision }

// End returns the digest over all rows so far, and that of the last revision's alone, which is zero if there was no row. The
// last revision is then complete: no row of it may follow.
func (c *Chain) End() (digest, last Digest) {
	if c.open {
		c.close()
	}
	return c.digest, c.last
}
