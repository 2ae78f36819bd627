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
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// segment is a file of the log, mapped into memory, with a read position. It is read as frames, which is fast, or as
// records whose checksums are compared.
type segment struct {
	file    *os.File
	content []byte
	at      int64 // where the next frame begins, in bytes; after damage was found, where that begins
	torn    bool  // after the last frame: something is left that is no whole frame
}

// frame is a record as it is stored in a segment. Neither its form nor its checksum has been checked.
type frame struct {
	at     int64 // where it begins in its segment, in bytes
	record []byte
	padded []byte // the record and what fills it up
}

// castagnoli is the polynomial of the log's checksums, for which processors have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// record is a record whose form has been checked.
type record struct {
	kind int64 // as wal.EntryType
	crc  uint32
	data []byte
	sum  uint32 // of the log's data up to here, this record's included
}

// readSegment calls read with the segment at path. read must keep nothing of it.
func readSegment(path string, read func(s *segment) error) error {
	return recoverPanic(func() error {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close() // nothing was written
		content, err := mapFile(file)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Munmap(content) }()     // nil, if the file is empty
		_ = unix.Madvise(content, unix.MADV_SEQUENTIAL) // a hint
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

// frames yields the rest of the segment. It ends at the end of the file, at the zeros that etcd allocates in advance,
// or at a frame that is longer than the rest.
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

// next reads one frame. A record follows its length, eight bytes, little-endian; if that is negative, the highest
// byte has the size of the padding (etcd's server/storage/wal/encoder.go).
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

// records yields the rest of the segment as records with correct checksums. An error ends it: io.ErrUnexpectedEOF for
// a record that a crash has left in part, which etcd repairs.
func (s *segment) records() iter.Seq2[record, error] {
	return func(yield func(record, error) bool) {
		sum := uint32(0) // a segment begins with a record that says what the one before ended with
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

// ignoreIncomplete returns nil instead of the error of a record that etcd cuts off.
func ignoreIncomplete(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// check compares the checksum. sum is the checksum of the records before in the segment.
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

// parse parses a record. etcd's own parser judges any form but the one that etcd writes.
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

// The tags of a record's fields (etcd's server/storage/wal/walpb/record.proto).
const (
	kindTag = 1<<3 | byte(protowire.VarintType)
	crcTag  = 2<<3 | byte(protowire.VarintType)
	dataTag = 3<<3 | byte(protowire.BytesType)
)

// parseCanonical parses type, checksum and data, if there are any, in this order and without a copy. It is on the path of every
// start with a long log.
func (f frame) parseCanonical() (r record, ok bool) {
	kind, rest, _ := consumeNumber(f.record, kindTag)
	crc, rest, ok := consumeNumber(rest, crcTag)
	r.kind, r.crc = int64(kind), uint32(crc) //nolint:gosec // as etcd takes them
	if !ok || len(rest) == 0 {
		return r, ok
	}
	if rest[0] != dataTag {
		return r, false
	}
	data, n := protowire.ConsumeBytes(rest[1:])
	r.data = data
	return r, n == len(rest)-1
}

// consumeNumber returns the number after a tag, and the rest of the message if ok.
func consumeNumber(message []byte, tag byte) (value uint64, rest []byte, ok bool) {
	if len(message) == 0 || message[0] != tag {
		return 0, nil, false
	}
	value, n := protowire.ConsumeVarint(message[1:])
	if n < 0 {
		return 0, nil, false
	}
	return value, message[1+n:], true
}

// sector is the size in bytes that a disk writes atomically.
const sector = 512

// isIncomplete reports whether a sector of the record holds nothing but zeros: it never reached the disk.
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
