package datadir

import (
	"fmt"
	"slices"
	"sync"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"google.golang.org/protobuf/encoding/protowire"
)

// The numbers of fields: of an entry's data (raft's raft.proto), of the request in it that sets the cluster's version
// (etcd's raft_internal.proto), and of the version in that (membership.proto).
const (
	entryData         = 4
	clusterVersionSet = 1300
	setVersion        = 1
)

// longest is more than a record takes, in bytes, which sets a version or tells of a snapshot: both are below a hundred.
const longest = 512

// ClusterVersions are the versions of the cluster that etcd meets when it opens the data, such as 3.6.0: it dies on one
// that is newer than itself. One is in the database, and others may be in the part of the log that etcd replays, which is
// what comes behind the newest snapshot, even if the database has all of that. Entries with long values are stepped over.
// An error says that the database or the log can't be read.
func ClusterVersions(dataDir, walDir string) (met []string, err error) {
	m := survey(dataDir)
	m.wal = list(walDir)
	err = readDatabase(m.database, func(tx *bolt.Tx) error {
		if cluster := tx.Bucket(schema.Cluster.Name()); cluster != nil {
			met = append(met, string(cluster.Get(schema.ClusterClusterVersionKeyName)))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, index := range m.startingPoints() {
		replayed, known, err := m.versionsBehind(index)
		if err != nil {
			return nil, err
		}
		if known {
			return append(met, replayed...), nil
		}
	}
	return met, nil
}

// startingPoints are the indexes that the names of snapshots tell, the newest first, and 0 for the beginning of the log.
func (m *member) startingPoints() (indexes []uint64) {
	for _, name := range slices.Backward(m.snapshots()) {
		var term, index uint64
		if _, err := fmt.Sscanf(name, "%016x-%016x.snap", &term, &index); err == nil {
			indexes = append(indexes, index)
		}
	}
	return append(indexes, 0)
}

// versionsSet is what a segment tells of versions.
type versionsSet struct {
	versions []string
	known    bool // the snapshot is recorded in it
	err      error
}

// versionsBehind are the versions that the log sets behind a snapshot. known is false if the log does not have the
// snapshot: etcd was killed between writing it and noting it there, and takes the one before. Segments are read at the same
// time: this is what a start on a long log waits for.
func (m *member) versionsBehind(snapshot uint64) (versions []string, known bool, err error) {
	segments := m.segmentsFrom(snapshot)
	found := make([]versionsSet, len(segments))
	var reading sync.WaitGroup
	for i, name := range segments {
		reading.Go(func() { found[i] = versionsIn(m.segment(name), snapshot) })
	}
	reading.Wait()
	known = snapshot == 0
	for _, of := range found {
		if of.err != nil {
			return nil, false, of.err
		}
		versions, known = append(versions, of.versions...), known || of.known
	}
	return versions, known, nil
}

func versionsIn(path string, snapshot uint64) (of versionsSet) {
	err := readSegment(path, func(s *segment) error {
		for frame := range s.frames() {
			if len(frame.record) > longest {
				continue
			}
			r, _ := frame.parse() // the record of one that can't be read tells nothing
			of.known = of.known || r.kind == wal.SnapshotType && varint(r.data, 1) == snapshot
			if version := r.versionSet(snapshot); version != "" {
				of.versions = append(of.versions, version)
			}
		}
		return nil
	})
	if err != nil {
		of.err = fmt.Errorf("WAL segment %s: %w", path, err)
	}
	return of
}

// segmentsFrom are the segments that may hold an entry or what comes behind it. A segment's name tells its first.
func (m *member) segmentsFrom(index uint64) []string {
	segments, from := m.segments(), 0
	for i, name := range segments {
		if _, before, ok := parseSegmentName(name); ok && before < index {
			from = i
		}
	}
	return segments[from:]
}

// versionSet is the cluster version that a record sets, if it is an entry behind an index that does.
func (r record) versionSet(behind uint64) string {
	if r.kind != wal.EntryType || varint(r.data, 3) <= behind {
		return ""
	}
	request := message(message(r.data, entryData), clusterVersionSet)
	return string(message(request, setVersion))
}

// message is what a field of a protobuf message holds that is a text or a message itself; nil if it has none. Other
// fields are stepped over by their lengths. An entry that changes the members holds another message, which has no such
// field.
func message(of []byte, wanted protowire.Number) []byte {
	for len(of) > 0 {
		number, kind, n := protowire.ConsumeTag(of)
		if n < 0 {
			return nil
		}
		of = of[n:]
		if number == wanted && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(of)
			return value
		}
		if n = protowire.ConsumeFieldValue(number, kind, of); n < 0 {
			return nil
		}
		of = of[n:]
	}
	return nil
}
