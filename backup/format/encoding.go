package format

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"
)

// maxRecord limits a row and a bucket, in bytes. etcd's default limit of a request is 1.5 MiB.
const maxRecord = 256 << 20

// maxName limits the name of a bucket, in bytes.
const maxName = 1 << 10

// The first byte of each record.
const (
	typeRow    = 'R'
	typeMarker = 'M'
	typeBucket = 'B'
	typeHash   = 'H'
	typeEnd    = 'Z'
)

// appendNumbers starts a record with its type and numbers, which must not be negative.
func appendNumbers(b []byte, kind byte, numbers ...int64) []byte {
	b = append(b, kind)
	for _, n := range numbers {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
}

// appendBytes appends bytes that are preceded by their length.
func appendBytes(b, content []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(content))), content...)
}

func (r *Row) addTo(s *sequence) error {
	if len(r.Value) > maxRecord {
		return fmt.Errorf("a row of %d bytes is larger than %d", len(r.Value), maxRecord)
	}
	if err := s.chain.Add(*r); err != nil {
		return err
	}
	if s.chain.Revision() <= s.marked || len(s.buckets) > 0 {
		return errOrder
	}
	s.rows++
	return nil
}

func (r *Row) encode(b []byte) (fields, value []byte) {
	b = appendBytes(append(b, typeRow), r.Key)
	return binary.AppendUvarint(b, uint64(len(r.Value))), r.Value
}

func (r *Row) decode(from *SegmentReader) (err error) {
	if r.Key, err = from.bytes(r.Key, tombstoneKey); err != nil {
		return err
	}
	r.Value, err = from.bytes(r.Value, maxRecord)
	return err
}

// addTo requires that the marker follows all rows up to its revision. It may be above the last row's: etcd has
// revisions without rows.
func (m *Marker) addTo(s *sequence) error {
	switch {
	case m.Time.UnixMilli() <= 0:
		return fmt.Errorf("a marker cannot have the time %s", m.Time)
	case m.Revision < s.chain.Revision() || m.Revision < s.marked || len(s.buckets) > 0:
		return fmt.Errorf("a marker of revision %d is out of order", m.Revision)
	}
	s.marked, s.to = m.Revision, time.UnixMilli(m.Time.UnixMilli()).UTC()
	if s.from.IsZero() {
		s.from = s.to
	}
	return nil
}

func (m *Marker) encode(b []byte) (fields, value []byte) {
	return appendNumbers(b, typeMarker, m.Revision, m.Time.UnixMilli()), nil
}

func (m *Marker) decode(from *SegmentReader) error {
	var milliseconds int64
	err := from.numbers(&m.Revision, &milliseconds)
	m.Time = time.UnixMilli(milliseconds).UTC()
	return err
}

// addTo accepts a hash that comes late.
func (h *Hash) addTo(s *sequence) error {
	if s.hashes++; s.hashes > maxHashes || len(s.buckets) > 0 || h.Compacted < 0 || h.Compacted > h.Revision {
		return fmt.Errorf("a compaction's hash of revision %d is out of order", h.Revision)
	}
	return nil
}

func (h *Hash) encode(b []byte) (fields, value []byte) {
	return appendNumbers(b, typeHash, h.Revision, h.Compacted, int64(h.Hash)), nil
}

func (h *Hash) decode(from *SegmentReader) error {
	var hash int64
	err := from.numbers(&h.Revision, &h.Compacted, &hash)
	if err == nil && hash > math.MaxUint32 {
		return fmt.Errorf("%w: a hash has more than 32 bits", ErrDamaged)
	}
	h.Hash = uint32(hash)
	return err
}

func (b *Bucket) addTo(s *sequence) error {
	if len(b.entries) > maxRecord || len(s.buckets) == maxBuckets || slices.Contains(s.buckets, b.Name) {
		return fmt.Errorf("bucket %.40q is one too many or too large", b.Name)
	}
	if err := b.check(); err != nil {
		return err
	}
	s.buckets = append(s.buckets, b.Name)
	return nil
}

func (b *Bucket) encode(to []byte) (fields, value []byte) {
	to = appendBytes(append(to, typeBucket), []byte(b.Name))
	to = binary.AppendUvarint(to, b.count)
	return binary.AppendUvarint(to, uint64(len(b.entries))), b.entries
}

func (b *Bucket) decode(from *SegmentReader) error {
	name, err := from.bytes(nil, maxName)
	if err != nil {
		return err
	}
	count, err := from.number()
	if err != nil {
		return err
	}
	b.Name, b.count = string(name), uint64(count)
	b.entries, err = from.bytes(nil, maxRecord)
	return err
}
