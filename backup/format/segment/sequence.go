package segment

import (
	"fmt"
	"slices"
	"time"

	"etcd-wrapper/backup/format/seal"
)

// Bounds of what a segment has of a kind: etcd has a dozen buckets, and doesn't compact twice within milliseconds.
const (
	maxBuckets = 64
	maxHashes  = 4096
)

// sequence is the order that records come in, and what a manifest says of them. Builder and Reader both go through it, so
// nothing is written that cannot be read.
type sequence struct {
	chain   *Chain
	start   Manifest
	rows    int64
	marked  int64 // revision of the last marker
	from    time.Time
	to      time.Time
	hashes  int
	buckets []string
}

func newSequence(start Manifest) *sequence {
	return &sequence{chain: Continue(start.Before, start.Position), start: start}
}

func (s *sequence) row(row Row) error {
	if len(row.Value) > maxRecord {
		return fmt.Errorf("a row of %d bytes is larger than %d", len(row.Value), maxRecord)
	}
	if err := s.chain.Add(row); err != nil {
		return err
	}
	if s.chain.Revision() <= s.marked || len(s.buckets) > 0 {
		return errOrder
	}
	s.rows++
	return nil
}

func (s *sequence) marker(marker Marker) error {
	if marker.Revision < s.chain.Revision() || marker.Revision < s.marked || len(s.buckets) > 0 {
		return fmt.Errorf("a marker of revision %d is out of order", marker.Revision)
	}
	if s.from.IsZero() {
		s.from = marker.Time
	}
	s.marked, s.to = marker.Revision, marker.Time
	return nil
}

func (s *sequence) hash(hash CompactionHash) error {
	if s.hashes++; s.hashes > maxHashes || len(s.buckets) > 0 || hash.Compacted > hash.Revision {
		return fmt.Errorf("a compaction's hash of revision %d is out of order", hash.Revision)
	}
	return nil
}

func (s *sequence) bucket(bucket *Bucket) error {
	if len(bucket.entries) > maxRecord || len(s.buckets) == maxBuckets || slices.Contains(s.buckets, bucket.Name) {
		return fmt.Errorf("bucket %.40q is one too many or too large", bucket.Name)
	}
	if err := bucket.check(); err != nil {
		return err
	}
	s.buckets = append(s.buckets, bucket.Name)
	return nil
}

// manifest is what the one of the segment says of its records.
func (s *sequence) manifest() Manifest {
	m := s.start
	m.Rows, m.Buckets, m.From, m.To = s.rows, s.buckets, s.from, s.to
	m.End, m.After = m.Position.Revision-1, m.Before
	if s.rows > 0 {
		m.End = s.chain.Revision()
		m.After, m.Last = s.chain.End()
	}
	return m
}

// agrees compares what was read with what was promised.
func (s *sequence) agrees(promised Manifest) error {
	read := s.manifest()
	same := read.End == promised.End && read.Rows == promised.Rows && read.After == promised.After &&
		read.Last == promised.Last && slices.Equal(read.Buckets, promised.Buckets) &&
		read.From.Equal(promised.From) && read.To.Equal(promised.To)
	if !same {
		return fmt.Errorf("%w: its records are not those of its manifest", seal.ErrDamaged)
	}
	return nil
}
