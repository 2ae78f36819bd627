package datadir

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"google.golang.org/protobuf/encoding/protowire"
)

// castagnoli is the polynomial of the log's checksums, for which processors have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sector is what a disk writes as a whole, in bytes.
const sector = 512

// record is one whose form was checked.
type record struct {
	kind int64 // as wal.EntryType
	crc  uint32
	data []byte
	sum  uint32 // of the log's data up to here, this record's included
}

// check compares the checksum. sum is that of what came before in the segment.
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
	if f.isTorn() {
		err = io.ErrUnexpectedEOF
	}
	return record{}, fmt.Errorf("%w at position %d", err, f.at)
}

// parse reads a record. Of any form that is not the one that etcd writes, etcd's own parser says what it is worth.
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

// parseCanonical reads kind, checksum and, if there is any, data, in this order and without a copy.
func (f frame) parseCanonical() (r record, ok bool) {
	kind, rest, _ := consumeNumber(f.record, kindTag)
	crc, rest, ok := consumeNumber(rest, crcTag)
	if !ok {
		return r, false
	}
	r.kind, r.crc = int64(kind), uint32(crc) //nolint:gosec // as etcd takes them
	if len(rest) == 0 {
		return r, true
	}
	if rest[0] != dataTag {
		return r, false
	}
	data, n := protowire.ConsumeBytes(rest[1:])
	r.data = data
	return r, n == len(rest)-1
}

// consumeNumber reads the number that follows a tag. There is no rest unless ok.
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

// isTorn is true if a sector of the record holds nothing but zeros: it never reached the disk.
func (f frame) isTorn() bool {
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

// entryIndex is that of an entry, which is at its beginning: what it holds may be large. 0 is none.
func entryIndex(entry []byte) uint64 { return varint(entry, 3) }

// varint is the number of a protobuf message's field, 0 if it has none. What comes after the field is not read.
func varint(message []byte, wanted protowire.Number) uint64 {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return 0
		}
		message = message[n:]
		if number == wanted && kind == protowire.VarintType {
			value, _ := protowire.ConsumeVarint(message)
			return value
		}
		n = protowire.ConsumeFieldValue(number, kind, message)
		if n < 0 {
			return 0
		}
		message = message[n:]
	}
	return 0
}
