package spool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"etcd-wrapper/internal/preserved"
)

// Newest sets aside all but the newest of the segments that follow one another. The error is for people: nil if all do.
func (s *Spool) Newest() (left, err error) {
	all := s.Entries()
	first := len(all) - 1
	for first > 0 && all[first-1].Next == all[first].Position {
		first--
	}
	if first <= 0 {
		return nil, nil
	}
	where, err := s.SetAside(func(e Entry) bool { return e.Position.Compare(all[first].Position) < 0 })
	return fmt.Errorf("%d segments that waited in the spool up to %s: segment %s does not follow them; they are in %s",
		first, all[first-1].Next, all[first].Position, where), err
}

// SetAside moves the chosen segments out of the spool to a directory beside it, whose name it returns: they are not of the chain
// that what comes next is of, and may be all that there is of what was acknowledged. That directory is a spool as well.
func (s *Spool) SetAside(chosen func(Entry) bool) (where string, err error) {
	var names []string
	for _, entry := range s.Entries() {
		if chosen(entry) {
			names = append(names, entry.Position.String())
		}
	}
	if where, err = s.move(names); err == nil {
		s.leave(chosen)
	}
	return where, err
}

// leave forgets segments whose files are gone from the spool.
func (s *Spool) leave(chosen func(Entry) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = slices.DeleteFunc(s.entries, func(entry Entry) bool {
		if chosen(entry) {
			s.bytes -= entry.Size
			return true
		}
		return false
	})
}

// move gives files a place beside the spool. It may be repeated.
func (s *Spool) move(names []string) (where string, err error) {
	if len(names) == 0 {
		return "", nil
	}
	where = preserved.Name(s.dir, time.Now())
	to := filepath.Join(where, segments)
	err = os.MkdirAll(to, 0o700)
	for _, name := range names {
		if err == nil {
			err = os.Rename(filepath.Join(s.dir, segments, name), filepath.Join(to, name))
		}
	}
	if err == nil {
		err = errors.Join(s.sync(to), s.sync(where), s.sync(filepath.Dir(s.dir)))
	}
	if err != nil {
		return "", fmt.Errorf("cannot set aside what waited for the store: %w", err)
	}
	return where, nil
}
