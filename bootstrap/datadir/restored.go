package datadir

import (
	"errors"
	"io/fs"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

// refuseLostRestore is an error if the database is missing or unused, and the log goes on from one that was restored.
// etcd would fill a new database from the log, with nothing of what the backup held.
func refuseLostRestore(m *member) error {
	segments := m.segments()
	if len(segments) == 0 || segments[0] != firstSegment || !unused(m.database) || !goesOn(m.segment(firstSegment)) {
		return nil
	}
	return lostRestore.because(m.wal.path, m.database)
}

// unused says that there is no database, or one that etcd would fill from the first entry on. One that can't be read is
// another's concern.
func unused(database string) bool {
	if file, err := statDatabase(database); err != nil || file == nil || file.Size() == 0 {
		return err == nil
	}
	var found contents
	err := readDatabase(database, func(tx *bolt.Tx) (err error) {
		found, err = readContents(tx)
		return err
	})
	return errors.Is(err, fs.ErrNotExist) || err == nil && found.applied == 0 && found.keyless
}

// goesOn says whether a log begins as a restore writes it: with the first members and, before anything else, a snapshot
// that stands for the database. A member that was never restored takes none before it has elected a leader, for which it
// writes an entry.
func goesOn(firstSegment string) (restored bool) {
	err := readSegment(firstSegment, func(s *segment) error {
		for record, err := range s.records() {
			if err != nil {
				return orRepaired(err)
			}
			if record.kind == wal.EntryType && varint(record.data, 1) == 0 { // a normal entry
				break
			}
			if record.kind == wal.SnapshotType && varint(record.data, 1) > 0 {
				restored = true
				break
			}
		}
		return nil
	})
	return err == nil && restored
}
