package datadir

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
)

// refuseShort is an error if the database was cut off, or if the disk proves that the log was: etcd mends a damaged log
// by cutting it off, and serves without what was acknowledged behind the damage. What can't be read is left to etcd, which
// says why.
func refuseShort(m *member) error {
	var found contents
	err := readDatabase(m.database, func(tx *bolt.Tx) (err error) {
		found, err = readContents(tx)
		return err
	})
	if errors.Is(err, errCutOff) {
		return fmt.Errorf("%s: %w", m.database, err)
	}
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	tail, err := readTail(m)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	return found.refuseTail(m, tail)
}

// readTail is the history of the last segment, up to where it can't be read on. The segment's name tells what the ones
// before end with; damage there makes etcd give up.
func readTail(m *member) (*history, error) {
	if err := m.wal.unreadable(); err != nil || len(m.segments()) == 0 {
		return nil, fmt.Errorf("there is no log: %w", err)
	}
	newest := m.newestSegment()
	_, before, ok := parseSegmentName(filepath.Base(newest))
	if !ok {
		return nil, fmt.Errorf("%s is not a WAL segment", newest)
	}
	tail := &history{last: before}
	err := readSegment(newest, func(s *segment) error {
		_ = tail.takeTail(context.Background(), s) // what comes before is what counts
		return nil
	})
	return tail, err
}

// newestSegment is the path of the last segment.
func (m *member) newestSegment() string {
	segments := m.segments()
	return m.segment(segments[len(segments)-1])
}

// refuseTail is an error if the log's tail proves that etcd would drop what was acknowledged, or ends before the database. In
// the second case a member that is alone would drop what is proposed until the log is as long again. Another one may have
// acknowledged to a leader what it does not have any more, and help to elect one that does not have it either.
func (c contents) refuseTail(m *member, tail *history) error {
	switch {
	case tail.breach.proven(c.single36()):
		return fmt.Errorf("the log is damaged in %s at position %d, behind index %d, and etcd would drop what was "+
			"acknowledged behind it%s; the database holds what came until index %d; %s", m.newestSegment(), tail.breach.at,
			tail.breach.last, tail.breach.commitment(), c.applied, c.wayOut(m, tail))
	case tail.last < c.applied:
		return fmt.Errorf("the log in %q was cut off or damaged: it ends at index %d, while the database holds what came "+
			"until index %d; %s", m.wal.path, tail.last, c.applied, c.wayOut(m, tail))
	}
	return nil
}

// wayOut is what somebody may do who finds a log that was cut off or damaged. What can be had of a member that is alone is
// in its database, or, if the log holds more before the damage, in both.
func (c contents) wayOut(m *member, tail *history) string {
	switch {
	case c.members > 1:
		return "replace this member: etcdctl member remove, etcdctl member add, and start it without data"
	case c.applied < tail.last:
		return fmt.Sprintf("restore a backup, or give up what is behind index %d: truncate --size=%d %s",
			tail.last, tail.breach.at, m.newestSegment())
	}
	return fmt.Sprintf("restore a backup, or go on with what the database holds: etcd-wrapper etcdutl snapshot restore %s "+
		"--skip-hash-check --data-dir NEW, with --name, --initial-cluster and --initial-advertise-peer-urls as configured, "+
		"and put NEW in the place of %s", m.database, m.root.path)
}
