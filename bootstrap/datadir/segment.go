package datadir

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"os"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// A segment is a WAL file that is mapped into memory, with a read position. The method frames is faster than records,
// because it does not verify checksums.
type segment struct {
	file    *os.File
	content []byte
	at      int64 // offset of the next frame or of the damage, in bytes
	torn    bool  // whether the last frame is followed by an incomplete one
}

// A frame is a stored record whose format and checksum have not been verified.
type frame struct {
	at     int64 // offset in the segment in bytes
	record []byte
	padded []byte // record including its padding
}

// castagnoli is the polynomial of the log's checksums, which has hardware support.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A record is a parsed WAL record.
type record struct {
	kind int64 // record type, for example wal.EntryType
	crc  uint32
	data []byte
	sum  uint32 // running checksum including this record
}

// readSegment maps the segment at path into memory and calls read. The mapping is valid only during the call.
func readSegment(path string, read func(s *segment) error) error {
	return recoverPanic(func() error {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close() // opened read-only, so a close error is harmless
		content, err := mapFile(file)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Munmap(content) }()     // content is nil if the file is empty
		_ = unix.Madvise(content, unix.MADV_SEQUENTIAL) // only a hint, so an error is harmless
		return read(&segment{file: file, content: content})
	})
}

func mapFile(file *os.File) ([]byte, error) {
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return nil, err
	}
	return unix.Mmap(int(file.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
}

// frames yields the remaining frames of the segment. Iteration ends at the end of the file, at preallocated zeros, or
// at a frame that is longer than the rest of the file.
func (s *segment) frames() iter.Seq[frame] {
	return func(yield func(frame) bool) {
		for {
			f, whole := s.nextFrame()
			if !whole || !yield(f) {
				return
			}
		}
	}
}

// nextFrame reads the next frame. whole is false if there is none or if the frame is incomplete. A frame starts with
// its length in eight little-endian bytes. If the length is negative, its highest byte contains the size of the
// padding. See server/storage/wal/encoder.go in etcd.
func (s *segment) nextFrame() (f frame, whole bool) {
	rest := s.content[s.at:]
	if len(rest) < 8 {
		s.torn = len(rest) > 0
		return frame{}, false
	}
	field := int64(binary.LittleEndian.Uint64(rest)) //nolint:gosec // the sign bit means that there is padding
	length, padding := field&(1<<56-1), int64(0)
	if field < 0 {
		padding = field >> 56 & 7
	}
	if field == 0 || 8+length+padding > int64(len(rest)) {
		s.torn = field != 0
		return frame{}, false
	}
	f = frame{at: s.at, record: rest[8 : 8+length], padded: rest[8 : 8+length+padding]}
	s.at += 8 + length + padding
	return f, true
}

// records yields the remaining records of the segment and verifies their checksums. Iteration ends at the first
// error, which is io.ErrUnexpectedEOF if a crash left the record incomplete. etcd repairs a log that ends with an
// incomplete record by truncating it.
func (s *segment) records() iter.Seq2[record, error] {
	return func(yield func(record, error) bool) {
		sum := uint32(0) // the first record of a segment sets the running checksum
		for f := range s.frames() {
			r, err := f.check(sum)
			if err != nil {
				s.at = f.at
			}
			if !yield(r, err) || err != nil {
				return
			}
			sum = r.sum
		}
		if s.torn {
			yield(record{}, io.ErrUnexpectedEOF)
		}
	}
}

// ignoreIncomplete returns nil if err is about an incomplete record, which etcd truncates.
func ignoreIncomplete(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// check verifies the checksum of a frame against the running checksum of the preceding records.
func (f frame) check(sum uint32) (record, error) {
	r, err := f.parse()
	switch {
	case err != nil:
	case r.kind == wal.CrcType:
		r.sum = r.crc
	default:
		r.sum = crc32.Update(sum, castagnoli, r.data)
		err = (&walpb.Record{Crc: r.crc}).Validate(r.sum)
	}
	if err == nil {
		return r, nil
	}
	if f.isIncomplete() {
		err = io.ErrUnexpectedEOF
	}
	return record{}, fmt.Errorf("%w at position %d", err, f.at)
}

// parse parses a record. If a record is not encoded exactly as etcd encodes it, parse uses etcd's parser.
func (f frame) parse() (record, error) {
	if r, ok := f.parseCanonical(); ok {
		return r, nil
	}
	var other walpb.Record
	if err := other.Unmarshal(f.record); err != nil {
		return record{}, err
	}
	return record{kind: other.Type, crc: other.Crc, data: other.Data}, nil
}

// Field numbers of a record, from server/storage/wal/walpb/record.proto in etcd.
const (
	recordType = 1
	recordCRC  = 2
	recordData = 3
)

// parseCanonical parses a record and reports whether its type, checksum and optional data are encoded exactly as etcd
// encodes them. The encoding is compared byte for byte, because the protowire helpers skip invalid fields. For speed,
// no data is copied: every start parses all log records that etcd replays.
func (f frame) parseCanonical() (r record, ok bool) {
	kind, crc, data := varint(f.record, recordType), varint(f.record, recordCRC), message(f.record, recordData)
	var buffer [32]byte // three tags, and three varints of at most ten, five and nine bytes
	head := protowire.AppendVarint(protowire.AppendTag(buffer[:0], recordType, protowire.VarintType), kind)
	head = protowire.AppendVarint(protowire.AppendTag(head, recordCRC, protowire.VarintType), crc)
	if data != nil {
		head = protowire.AppendVarint(protowire.AppendTag(head, recordData, protowire.BytesType), uint64(len(data)))
	}
	ok = bytes.HasPrefix(f.record, head) && len(head)+len(data) == len(f.record)
	return record{kind: int64(kind), crc: uint32(crc), data: data}, ok //nolint:gosec // etcd converts the values in the same way
}

// sector is the number of bytes that a disk writes atomically.
const sector = 512

// isIncomplete reports whether a sector of the record contains only zeros, which means that the sector never reached
// the disk.
func (f frame) isIncomplete() bool {
	rest, room := f.padded, sector-(f.at+8)%sector
	for len(rest) > 0 {
		chunk := rest[:min(room, int64(len(rest)))]
		if len(bytes.TrimLeft(chunk, "\x00")) == 0 {
			return true
		}
		rest, room = rest[len(chunk):], sector
	}
	return false
}

// zeros is a block of zeros to compare file content with.
var zeros [64 << 10]byte

// word is the frame alignment in bytes.
const word = 8

// A validRecord is a record that was found after the position where a segment becomes unreadable.
type validRecord struct {
	record

	at      int64 // offset in bytes
	checked bool  // whether the checksum proves that the data is intact
}

// validRecords searches for records after the position where the segment becomes unreadable. The positions of records
// are unknown after the damage, so validRecords accepts any frame whose checksum the next frame continues. A matching
// checksum proves that the data of the second frame is intact, but proves nothing about the first frame. The search
// continues past any further damage.
func (s *segment) validRecords() iter.Seq[validRecord] {
	return func(yield func(validRecord) bool) {
		if s.isSingleFrame() {
			return
		}
		for at := s.nextData(s.at); at >= 0; at = s.nextData(at) {
			chain, more := s.chain(at, yield)
			if !more {
				return
			}
			at = max(chain, at+word)
		}
	}
}

// isSingleFrame reports whether the unreadable frame is followed only by zeros, as after a power failure. The content
// of that frame is not searched, because a value may contain anything, including log records.
func (s *segment) isSingleFrame() bool {
	last := segment{content: s.content, at: s.at}
	_, whole := last.nextFrame()
	return whole && s.nextData(last.at) < 0
}

// chain yields the records starting at a position for as long as each record continues the checksum of the previous
// one. end is the offset after the last record, and more is false if yield returned false. A single record is not a
// chain: it is not yielded, and end is the given position.
func (s *segment) chain(at int64, yield func(validRecord) bool) (end int64, more bool) {
	rest := segment{content: s.content, at: at}
	f, whole := rest.nextFrame()
	before, ok := f.parseCanonical()
	if !whole || !ok || !isExpected(before) {
		return at, true
	}
	end, before.sum = at, before.crc
	for f := range rest.frames() {
		r, err := f.check(before.sum)
		if err != nil || !isExpected(r) {
			break
		}
		if end == at && !yield(validRecord{record: before, at: at}) || !yield(validRecord{record: r, at: f.at, checked: true}) {
			return end, false
		}
		before, end = r, rest.at
	}
	return end, true
}

// isExpected reports whether etcd writes records of this type after the head of a segment.
func isExpected(r record) bool {
	return len(r.data) > 0 && (r.kind == wal.EntryType || r.kind == wal.StateType || r.kind == wal.SnapshotType)
}

// nextData returns the position of the first nonzero word at or after the given position, or -1 if there is none.
// Holes in the file, which usually make up most of the segment, are skipped.
func (s *segment) nextData(at int64) int64 {
	for size := int64(len(s.content)); at < size; {
		piece := s.content[at:min(at+int64(len(zeros)), size)]
		if !bytes.Equal(piece, zeros[:len(piece)]) {
			skipped := len(piece) - len(bytes.TrimLeft(piece, "\x00"))
			return at + int64(skipped-skipped%word)
		}
		at += int64(len(piece))
		switch data, err := unix.Seek(int(s.file.Fd()), at, unix.SEEK_DATA); err {
		case nil:
			at = max(at, data-data%word)
		case unix.ENXIO:
			return -1
		} // after any other error, such as for a file system without SEEK_DATA, continue with the next piece
	}
	return -1
}

// A cut is the position at which etcd truncates the log at startup, together with the entries that would be lost.
//
// A power failure can also damage the end of the log, but the entries lost in a power failure were never synced and
// therefore never acknowledged. There are two ways to prove that a lost entry was synced, which means that the disk
// has lost data:
//
// First, for any member, another record follows the hard state after the entry. wal.Save writes entries, then the
// hard state, and then syncs the file if there were entries. wal.SaveSnapshot also syncs the file. wal.Save and
// wal.SaveSnapshot hold a lock, so any later record proves that the entry was synced. A follower acknowledges
// entries to the leader only after that sync.
//
// Second, for a single member running etcd 3.6, the commit index covers the entry. A leader running etcd 3.6 counts
// its own vote for an entry only after syncing the entry (appendEntry in raft 3.6: "The leader needs to self-ack the
// entries just appended once they have been durably persisted"). The commit index is not sufficient for a leader
// running etcd 3.5, which counts its own vote immediately (maybeCommit in appendEntry in raft 3.5), or for a
// follower, which may receive an entry and its commit index in one message. Either may write an entry together with
// the commit index that covers the entry, and sync only afterwards.
type cut struct {
	at        int64  // offset in bytes
	last      uint64 // index of the last entry before the cut
	committed uint64 // highest commit index in the records after the cut
	flushed   bool   // a later record proves that a lost entry was synced

	// lost is set at the first lost entry, and ended at the hard state after that entry. Any record after that hard
	// state was written after the entry was synced.
	lost, ended bool
}

// cutIn searches for records after the position where the segment becomes unreadable. The history covers everything
// before the unreadable part.
func cutIn(s *segment, written *history) cut {
	c := cut{at: s.at, last: written.last}
	for r := range s.validRecords() {
		c.add(r)
	}
	return c
}

// add updates the cut with a record after the damage, according to the rules in the comment on cut. If the data of
// the record may be damaged, add uses only the type and index.
func (c *cut) add(r validRecord) {
	c.flushed = c.flushed || c.ended || c.lost && r.kind == wal.SnapshotType
	switch r.kind {
	case wal.EntryType:
		c.lost = c.lost || c.contains(entryIndex(r.data), r.at)
	case wal.StateType:
		var state raftpb.HardState
		if r.checked && state.Unmarshal(r.data) == nil && c.contains(state.Commit, r.at) {
			c.committed, c.lost = max(c.committed, state.Commit), true
		}
		c.ended = c.lost
	}
}

// contains reports whether there is enough room between the cut and a position for all entries up to an index. Even
// the smallest entry is longer than two words. If a record implies more entries than there is room for, it is not a
// real record but part of a value that happens to look like WAL data.
func (c *cut) contains(index uint64, at int64) bool {
	return index > c.last && index-c.last <= uint64(at-c.at)/(2*word)+1 //nolint:gosec // at is never before the cut
}

// isLoss reports whether an acknowledged entry would be lost. single means that the cluster has one member and that
// etcd 3.6 wrote its log.
func (c *cut) isLoss(single bool) bool { return c.flushed || single && c.committed > c.last }

// commitClause describes the highest commit index after the cut, or returns "" if there is none.
func (c *cut) commitClause() string {
	if c.committed == 0 {
		return ""
	}
	return fmt.Sprintf(" (committed index: %d)", c.committed)
}
