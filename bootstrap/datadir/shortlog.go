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
		return cutOff.because(m.database, err)
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
		return lostTail.because(m.newestSegment(), tail.breach.at, tail.breach.last, tail.breach.commitment(), c.applied)
	case tail.last < c.applied:
		return shortLog.because(m.wal.path, tail.last, c.applied)
	}
	return nil
}
