package member

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// refuseShort is an error if the database was cut off, or if a member that is alone in its cluster has a log that ends
// before its database does. etcd mends a torn log by cutting it off. It would drop what is proposed until the log is as
// long again, and what the log had and the database had not is lost, though it was acknowledged. In a larger cluster a
// member gets the rest from its leader. What can't be read is left to etcd, which says why.
func refuseShort(dataDir string) error {
	applied, alone := uint64(0), false
	err := readDatabase(datadir.ToBackendFileName(dataDir), func(tx *bolt.Tx) error {
		applied, alone = appliedIndex(tx), size(tx, schema.Members.Name()) == 1
		return nil
	})
	if errors.Is(err, errCutOff) {
		return err
	}
	if err != nil || !alone {
		return nil //nolint:nilerr // see above
	}
	last, err := lastIndex(datadir.ToWALDir(dataDir))
	if err != nil || last >= applied {
		return nil //nolint:nilerr // see above
	}
	return fmt.Errorf("the log in %q was cut off or damaged: it ends at index %d, while the database holds what came until %d",
		datadir.ToWALDir(dataDir), last, applied)
}

// lastIndex is that of the log's last entry, or of a snapshot that stands for more. Only the last segment is read, whose
// name tells what the ones before end with.
func lastIndex(dir string) (last uint64, err error) {
	segments, err := named(dir, "*.wal")
	if err != nil || len(segments) == 0 {
		return 0, err
	}
	newest := slices.Max(segments)
	var number, first uint64
	if _, err := fmt.Sscanf(newest, "%016x-%016x.wal", &number, &first); err != nil {
		return 0, err
	}
	last = max(first, 1) - 1
	err = eachFrame(filepath.Join(dir, newest), func(record []byte) {
		last = max(last, indexOf(record))
	})
	return last, err
}

// eachFrame visits the records of a segment without checking them, which etcd does later: that is ten times as fast. A
// record is preceded by its length; of these eight bytes, little-endian, the highest tells how much padding follows, if
// it is negative (etcd's server/storage/wal/encoder.go). A record that is longer than what is left ends the segment.
func eachFrame(segment string, visit func(record []byte)) (err error) {
	defer func() { err = errors.Join(err, recovered(recover())) }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a disk error
	content, unmap, err := mapped(segment)
	if err != nil {
		return err
	}
	defer unmap()
	for len(content) >= 8 {
		field := int64(binary.LittleEndian.Uint64(content)) //nolint:gosec // the sign is a flag
		length, padding := field&(1<<56-1), int64(0)
		if field < 0 {
			padding = field >> 56 & 7
		}
		if field == 0 || 8+length+padding > int64(len(content)) {
			return nil
		}
		visit(content[8 : 8+length])
		content = content[8+length+padding:]
	}
	return nil
}

func mapped(path string) (content []byte, unmap func(), err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close() // nothing was written
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return nil, func() {}, err
	}
	content, err = unix.Mmap(int(file.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	return content, func() { _ = unix.Munmap(content) }, err
}

// indexOf is the index of a record that is an entry or a snapshot, 0 of others. Only the beginning of an entry is read,
// where its index is; what it holds may be large.
func indexOf(record []byte) uint64 {
	kind, data := int64(varint(record, 1)), bytesField(record, 3) //nolint:gosec // etcd has it signed
	switch kind {
	case wal.EntryType:
		return varint(data, 3)
	case wal.SnapshotType:
		return varint(data, 1)
	default:
		return 0
	}
}

// varint is the number of a protobuf message's field, 0 if it has none. What comes after the field is not read.
func varint(message []byte, field protowire.Number) uint64 {
	value, _ := protowire.ConsumeVarint(after(message, field, protowire.VarintType))
	return value
}

func bytesField(message []byte, field protowire.Number) []byte {
	value, _ := protowire.ConsumeBytes(after(message, field, protowire.BytesType))
	return value
}

// after is what follows the tag of a protobuf message's field; nil if it has none.
func after(message []byte, field protowire.Number, kind protowire.Type) []byte {
	for len(message) > 0 {
		number, is, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil
		}
		message = message[n:]
		if number == field && is == kind {
			return message
		}
		n = protowire.ConsumeFieldValue(number, is, message)
		if n < 0 {
			return nil
		}
		message = message[n:]
	}
	return nil
}
