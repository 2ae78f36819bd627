package member

import (
	"fmt"
	"path/filepath"
	"slices"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/raft/v3/raftpb"

	"etcd-wrapper/bootstrap/dataversion"
)

// Numbers of protobuf fields: of an entry's type and data (raft.proto), of the request in its data that sets the
// cluster's version (raft_internal.proto), and of the version in that (membership.proto).
const (
	entryType, entryData          = 1, 4
	clusterVersionSet, setVersion = 1300, 1
)

// recordedVersion is the highest cluster version that the data name: etcd dies on one that is higher than its own. It is
// in the database, or in what the log has beyond that, when etcd was killed or the database comes from elsewhere.
func recordedVersion(dataDir, walDir string) (recorded dataversion.Version, err error) {
	applied := uint64(0)
	err = readDatabase(datadir.ToBackendFileName(dataDir), func(tx *bolt.Tx) error {
		applied = appliedIndex(tx)
		if cluster := tx.Bucket(schema.Cluster.Name()); cluster != nil {
			recorded = dataversion.Parse(string(cluster.Get(schema.ClusterClusterVersionKeyName)))
		}
		return nil
	})
	if err != nil {
		return recorded, err
	}
	segments, err := segmentsBeyond(walDir, applied)
	for _, segment := range segments {
		err = eachFrame(filepath.Join(walDir, segment), func(record []byte) {
			if v := versionSetBy(record, applied); recorded.Less(v) {
				recorded = v
			}
		})
		if err != nil {
			break
		}
	}
	return recorded, err
}

// segmentsBeyond are the log's files that may hold entries behind an index, in order. A file's name tells its first.
func segmentsBeyond(walDir string, index uint64) ([]string, error) {
	segments, err := named(walDir, "*.wal")
	slices.Sort(segments)
	from := 0
	for i, segment := range segments {
		var number, first uint64
		if _, err := fmt.Sscanf(segment, "%016x-%016x.wal", &number, &first); err == nil && first <= index+1 {
			from = i
		}
	}
	return segments[from:], err
}

// versionSetBy is the cluster version that a record sets, if it is an entry behind an index that does.
func versionSetBy(record []byte, index uint64) dataversion.Version {
	entry := bytesField(record, 3)
	if indexOf(record) <= index || raftpb.EntryType(varint(entry, entryType)) != raftpb.EntryNormal { //nolint:gosec // an enum
		return dataversion.Version{}
	}
	request := bytesField(bytesField(entry, entryData), clusterVersionSet)
	return dataversion.Parse(string(bytesField(request, setVersion)))
}
