package datadir

import (
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"google.golang.org/protobuf/encoding/protowire"
)

// refuseShort is an error if the database was cut off, or if a member that is alone in its cluster has a log that ends
// before its database does. etcd mends a torn log by cutting it off. It would drop what is proposed until the log is as
// long again, and what the log had and the database had not is lost, though it was acknowledged. In a larger cluster a
// member gets the rest from its leader. What can't be read is left to etcd, which says why.
func refuseShort(m *member) error {
	var found contents
	err := readDatabase(m.database, func(tx *bolt.Tx) (err error) {
		found, err = readContents(tx)
		return err
	})
	if errors.Is(err, errCutOff) {
		return cutOff.because(m.database, err)
	}
	if err != nil || found.members != 1 {
		return nil //nolint:nilerr // see above
	}
	last, err := lastIndex(m)
	if err != nil || last >= found.applied {
		return nil //nolint:nilerr // see above
	}
	return shortLog.because(m.wal.path, last, found.applied)
}

// lastIndex is that of the log's last entry, or of a snapshot that stands for more. Only the last segment is read, whose
// name tells what the ones before end with, and its records are not checked, which etcd does later: that is ten times as
// fast.
func lastIndex(m *member) (last uint64, err error) {
	segments := m.segments()
	if err := m.wal.unreadable(); err != nil || len(segments) == 0 {
		return 0, err
	}
	newest := segments[len(segments)-1]
	_, last, ok := parseSegmentName(newest)
	if !ok {
		return 0, fmt.Errorf("%s is not a WAL segment", m.segment(newest))
	}
	err = readSegment(m.segment(newest), func(s *segment) error {
		for frame := range s.frames() {
			last = max(last, frame.index())
		}
		return nil
	})
	return last, err
}

// index is that of a record that is an entry or a snapshot, 0 of others. Only the beginning of an entry is read, where its
// index is; what it holds may be large.
func (f frame) index() uint64 {
	r, _ := f.parse() // the record of one that can't be read is none of the two
	switch r.kind {
	case wal.EntryType:
		return varint(r.data, 3)
	case wal.SnapshotType:
		return varint(r.data, 1)
	default:
		return 0
	}
}

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
