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

// segment is a file of the log, mapped into memory, with a read position. It can be read as frames, which is fast, or
// as records, which verifies checksums.
type segment struct {
	file    *os.File
	content []byte
	at      int64 // offset of the next frame in bytes, or of the damage if damage was found
	torn    bool  // an incomplete frame follows the last frame
}

// frame is a record as stored in a segment. Its form and its checksum are not verified yet.
type frame struct {
	at     int64 // offset in its segment in bytes
	record []byte
	padded []byte // the record with its padding
}

// castagnoli is the polynomial of the log's checksums. Processors have an instruction for it.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// record is a record whose form has been verified.
type record struct {
	kind int64 // as wal.EntryType
	crc  uint32
	data []byte
	sum  uint32 // running checksum up to and including this record
}

// readSegment calls read with the segment at path. read must not retain any of its memory.
func readSegment(path string, read func(s *segment) error) error {
	return recoverPanic(func() error {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close() // the file was only read
		content, err := mapFile(file)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Munmap(content) }()     // content is nil if the file is empty
		_ = unix.Madvise(content, unix.MADV_SEQUENTIAL) // only a hint
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

// frames yields the remaining frames of the segment. It stops at the end of the file, at the zeros that etcd
// preallocates, or at a frame that is longer than the rest of the file.
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

// nextFrame reads one frame. A frame starts with its length: eight bytes, little-endian. If the length is negative,
// its highest byte holds the size of the padding (etcd's server/storage/wal/encoder.go).
func (s *segment) nextFrame() (f frame, whole bool) {
	rest := s.content[s.at:]
	if len(rest) < 8 {
		s.torn = len(rest) > 0
		return frame{}, false
	}
	field := int64(binary.LittleEndian.Uint64(rest)) //nolint:gosec // the sign is a flag
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

// records yields the remaining records of the segment and verifies their checksums. It stops at the first error:
// io.ErrUnexpectedEOF for a record that a crash left incomplete, which etcd repairs.
func (s *segment) records() iter.Seq2[record, error] {
	return func(yield func(record, error) bool) {
		sum := uint32(0) // a segment starts with a checksum record, which continues the checksum of the previous segment
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

// ignoreIncomplete returns nil for the error of an incomplete record, which etcd cuts off.
func ignoreIncomplete(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// check verifies the checksum. sum is the running checksum of the preceding records in the segment.
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

// parse parses a record. It passes records that are not in the form that etcd writes to etcd's own parser.
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

// Field numbers of a record (etcd's server/storage/wal/walpb/record.proto).
const (
	recordType = 1
	recordCRC  = 2
	recordData = 3
)

// parseCanonical parses a record with a type, a checksum and optional data, encoded exactly as etcd encodes them. It
// compares byte for byte, because the protowire helpers skip what they cannot parse. It copies no data, because every
// start with a long log runs it.
func (f frame) parseCanonical() (r record, ok bool) {
	kind, crc, data := varint(f.record, recordType), varint(f.record, recordCRC), message(f.record, recordData)
	var buffer [32]byte // three tags, and three varints of at most ten, five and nine bytes
	head := protowire.AppendVarint(protowire.AppendTag(buffer[:0], recordType, protowire.VarintType), kind)
	head = protowire.AppendVarint(protowire.AppendTag(head, recordCRC, protowire.VarintType), crc)
	if data != nil {
		head = protowire.AppendVarint(protowire.AppendTag(head, recordData, protowire.BytesType), uint64(len(data)))
	}
	ok = bytes.HasPrefix(f.record, head) && len(head)+len(data) == len(f.record)
	return record{kind: int64(kind), crc: uint32(crc), data: data}, ok //nolint:gosec // as etcd takes them
}

// sector is the size in bytes that a disk writes atomically.
const sector = 512

// isIncomplete reports whether a sector of the record contains only zeros, so it never reached the disk.
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

// zeros are compared in one step: the file may have its zeros on the disk.
var zeros [64 << 10]byte

// word is the alignment of frames in bytes. etcd pads frames to a multiple of it.
const word = 8

// validRecord is an intact record after the position where a segment becomes unreadable.
type validRecord struct {
	record

	at      int64 // in bytes
	checked bool  // reports whether the data of a frame is known to be intact
}

// validRecords yields the intact records after the position where s ends. Their positions are unknown, so it accepts
// any frame whose checksum is continued by the next frame. This proves that the data of the next frame is intact; the
// data of the first frame remains unproven. The search continues after further damage.
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

// isSingleFrame reports whether only zeros follow the unreadable frame, as after a power loss. It does not search the
// content of that frame: a value may contain anything, even log records.
func (s *segment) isSingleFrame() bool {
	last := segment{content: s.content, at: s.at}
	_, whole := last.nextFrame()
	return whole && s.nextData(last.at) < 0
}

// chain yields records starting at a position for as long as each continues the checksum of the previous one, and
// returns the position where they end. It yields none unless there are at least two.
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

// isExpected reports whether etcd writes such a record after the head of a segment.
func isExpected(r record) bool {
	return len(r.data) > 0 && (r.kind == wal.EntryType || r.kind == wal.StateType || r.kind == wal.SnapshotType)
}

// nextData returns the position of the first nonzero word at or after at, or -1 if there is none. It skips holes in
// the file, which usually make up most of the segment.
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
		} // without this support, the file system cannot report holes
	}
	return -1
}

// A cut is the place where etcd truncates the log when it starts, and the entries after it that would be lost.
//
// A power loss leaves such a place, too. In that case no entry after it was acknowledged, because the file was not
// flushed. Two facts prove that the file was flushed, and therefore that the disk has lost data:
//
// For any member: wal.Save writes entries, then the hard state, and flushes the file if there was an entry.
// wal.SaveSnapshot flushes it, too. Both hold a lock. So an entry is on the disk if any record follows the hard state
// after the entry. A follower does not acknowledge entries to the leader before that.
//
// For a single member of etcd 3.6: its commit index covers an entry. Its leader counts itself only after its entries
// were flushed (appendEntry in raft 3.6: "The leader needs to self-ack the entries just appended once they have been
// durably persisted"). A leader of etcd 3.5 counts itself immediately (maybeCommit in appendEntry in raft 3.5), and a
// follower of any version may receive entries and their commit index in one message. Both write an entry and the
// commit index that covers it before a single flush.
type cut struct {
	at        int64  // in bytes
	last      uint64 // index of the last entry before the cut
	committed uint64 // highest commit index in the records after the cut
	flushed   bool   // a lost entry was flushed before a later record was written

	lost, ended bool // an entry was lost, and all records written with it have been read
}

// cutIn searches the records after the position where the segment becomes unreadable. written is the history up to
// that position.
func cutIn(s *segment, written *history) cut {
	c := cut{at: s.at, last: written.last}
	for r := range s.validRecords() {
		c.add(r)
	}
	return c
}

// add applies the rules above. For a record that is not proven to be intact it uses only the type and the index.
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

// contains reports whether an entry with that index can have been lost between the cut and another position. Even the
// smallest entry takes more than two words. A record that implies more entries than fit is part of a value that looks
// like a log.
func (c *cut) contains(index uint64, at int64) bool {
	return index > c.last && index-c.last <= uint64(at-c.at)/(2*word)+1 //nolint:gosec // never negative
}

// isLoss reports whether an acknowledged entry would be lost. single means that the cluster has only this member and
// that etcd 3.6 wrote the log.
func (c *cut) isLoss(single bool) bool { return c.flushed || single && c.committed > c.last }

// commitClause returns a clause with the commit index from the records after the cut, or "" if none has one.
func (c *cut) commitClause() string {
	if c.committed == 0 {
		return ""
	}
	return fmt.Sprintf(", where index %d was committed", c.committed)
}
