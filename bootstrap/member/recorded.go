package member

import (
	"fmt"
	"path/filepath"
	"slices"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3/raftpb"

	"etcd-wrapper/bootstrap/dataversion"
)

// Numbers of protobuf fields: of an entry's type and data (raft.proto), of the request in its data that sets the
// cluster's version (raft_internal.proto), and of the version in that (membership.proto).
const (
	entryType, entryData          = 1, 4
	clusterVersionSet, setVersion = 1300, 1
)

// recordedVersion is the highest cluster version that etcd meets when it opens the data: it dies on one that is higher
// than its own. One is in the database, and others may be in the part of the log that etcd replays, even if the database
// has all of that: what comes behind the newest snapshot.
func recordedVersion(dataDir, walDir string) (recorded dataversion.Version, err error) {
	err = readDatabase(datadir.ToBackendFileName(dataDir), func(tx *bolt.Tx) error {
		if cluster := tx.Bucket(schema.Cluster.Name()); cluster != nil {
			recorded = dataversion.Parse(string(cluster.Get(schema.ClusterClusterVersionKeyName)))
		}
		return nil
	})
	if err != nil {
		return recorded, err
	}
	snapshots, err := snapshotIndexes(datadir.ToSnapDir(dataDir))
	for _, snapshot := range snapshots {
		replayed, known, err := replayedVersion(walDir, snapshot)
		if err != nil {
			return recorded, err
		}
		if known {
			return higher(recorded, replayed), nil
		}
	}
	return recorded, err
}

// snapshotIndexes are those that the names of snapshots tell, the newest first, and 0 for the beginning of the log.
func snapshotIndexes(snapDir string) (indexes []uint64, err error) {
	names, err := named(snapDir, "*.snap")
	slices.Sort(names)
	for _, name := range slices.Backward(names) {
		var term, index uint64
		if _, err := fmt.Sscanf(name, "%016x-%016x.snap", &term, &index); err == nil {
			indexes = append(indexes, index)
		}
	}
	return append(indexes, 0), err
}

// replayedVersion is the highest that the log sets behind a snapshot. known is false if the log does not have the
// snapshot: etcd was killed between writing it and noting it there, and takes the one before.
func replayedVersion(walDir string, snapshot uint64) (highest dataversion.Version, known bool, err error) {
	segments, err := segmentsFrom(walDir, snapshot)
	for _, segment := range segments {
		err = eachFrame(filepath.Join(walDir, segment), func(record []byte) {
			known = known || isSnapshot(record, snapshot)
			highest = higher(highest, versionSetBy(record, snapshot))
		})
		if err != nil {
			break
		}
	}
	return highest, known || snapshot == 0, err
}

// segmentsFrom are the log's files that may hold an entry or what comes behind it, in order. A file's name tells its
// first entry.
func segmentsFrom(walDir string, index uint64) ([]string, error) {
	segments, err := named(walDir, "*.wal")
	slices.Sort(segments)
	from := 0
	for i, segment := range segments {
		var number, first uint64
		if _, err := fmt.Sscanf(segment, "%016x-%016x.wal", &number, &first); err == nil && first <= index {
			from = i
		}
	}
	return segments[from:], err
}

func isSnapshot(record []byte, index uint64) bool {
	return varint(record, 1) == uint64(wal.SnapshotType) && indexOf(record) == index
}

// versionSetBy is the cluster version that a record sets, if it is an entry behind an index that does.
func versionSetBy(record []byte, index uint64) dataversion.Version {
	if indexOf(record) <= index {
		return dataversion.Version{}
	}
	entry := bytesField(record, 3)
	if raftpb.EntryType(varint(entry, entryType)) != raftpb.EntryNormal { //nolint:gosec // an enum
		return dataversion.Version{}
	}
	request := bytesField(bytesField(entry, entryData), clusterVersionSet)
	return dataversion.Parse(string(bytesField(request, setVersion)))
}

func higher(a, b dataversion.Version) dataversion.Version {
	if a.Less(b) {
		return b
	}
	return a
}
