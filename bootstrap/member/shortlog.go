package member

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
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
	err = eachRecord(filepath.Join(dir, newest), func(record *walpb.Record) bool {
		switch record.Type {
		case wal.EntryType:
			last = wal.MustUnmarshalEntry(record.Data).Index
		case wal.SnapshotType:
			last = max(last, snapshotIndex(record.Data))
		}
		return true
	})
	return last, err
}

func snapshotIndex(data []byte) uint64 {
	var snapshot walpb.Snapshot
	if err := snapshot.Unmarshal(data); err != nil {
		return 0
	}
	return snapshot.Index
}
