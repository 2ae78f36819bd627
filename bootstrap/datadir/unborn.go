package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

// A member is unborn if its log names nobody who has a vote and its database is empty: etcd was killed in the first
// moment of its first start. No write was acknowledged, no vote was given.

// firstSegment is the name of the only segment that a log has before anything is written to it.
const firstSegment = "0000000000000000-0000000000000000.wal"

// unbornPrefix begins the name that an unborn member's directory is set aside under.
const unbornPrefix = "member.unborn-"

// errVoteless is what a log is refused with that was lost, or cut off at its beginning.
var errVoteless = errors.New("it was lost, cut off or damaged, or is of another database")

// settleVoteless deals with a log that names nobody who has a vote. etcd would open it and wait for ever to be elected;
// without any log it would begin a new one, and drop what is written until that is as long as the one before. An unborn
// member's directory is moved out of the way, so that etcd starts afresh. Nothing is deleted. Otherwise the error says
// what was lost.
func (f *Findings) settleVoteless(log zerolog.Logger) (moved bool, err error) {
	if f.wal.unreadable() != nil || !f.voteless() {
		return false, nil
	}
	empty, missing := f.contentsErr == nil && f.contents.empty(), errors.Is(f.contentsErr, fs.ErrNotExist)
	switch {
	case len(f.segments()) == 0 && (empty || missing):
		return false, nil // a first start
	case empty && f.hasLogElsewhere():
		return false, nil // moving the directory would leave the log behind
	case empty:
		return true, setAside(f.member, log)
	case f.contentsErr == nil || missing:
		return false, lostLog.because(f.wal.path, errVoteless)
	default:
		return false, nil // etcd says what is wrong with the database
	}
}

func setAside(m *member, log zerolog.Logger) error {
	aside := filepath.Join(m.root.path, unbornPrefix+time.Now().UTC().Format("20060102T150405.000Z"))
	if err := os.Rename(m.dir.path, aside); err != nil {
		return fmt.Errorf("cannot set a member that was never born aside: %w", err)
	}
	log.Warn().Str("moved_to", aside).Msg("etcd was killed before it had stored anything; it starts afresh")
	return nil
}

// voteless is true if there is no log, or if there is no snapshot and nothing in the log's only segment but its head. The
// voters are in the first entries, so that no more than these is read.
func (m *member) voteless() bool {
	segments := m.segments()
	if len(segments) == 0 {
		return true
	}
	return m.snap.unreadable() == nil && !m.hadSnapshot() && slices.Equal(segments, []string{firstSegment}) &&
		hasOnlyHead(m.segment(firstSegment))
}

// hasOnlyHead is false of a segment that can't be read.
func hasOnlyHead(path string) bool {
	only := true
	err := readSegment(path, func(s *segment) error {
		for record, err := range s.records() {
			if err != nil {
				return orRepaired(err)
			}
			if record.kind == wal.EntryType || record.kind == wal.StateType {
				only = false
				break
			}
		}
		return nil
	})
	return err == nil && only
}
