// Package spool keeps on the volume what waits for a store that is away: segments in the order of their positions, and fulls
// in the making. What it holds survives the end of the process at any instant; what was torn is found and set aside.
package spool

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/internal/durable"
)

// ErrFull says that a segment has no room: the limit is reached, or the volume has not enough left for etcd.
var ErrFull = errors.New("the spool is full")

// Reserve is what the spool leaves free on the volume, in bytes: etcd needs room for its log and its database.
const Reserve = 256 << 20

// Entry is a segment that waits.
type Entry struct {
	Position segment.Position
	Next     segment.Position // where the segment behind it begins
	Size     int64            // bytes
}

// Spool is a directory of segments. Its methods may be called from any goroutine.
type Spool struct {
	dir   string
	limit int64
	free  func(dir string) (int64, error)
	sync  func(dir string) error

	mu      sync.Mutex
	entries []Entry // in order
	bytes   int64
}

const (
	segments = "segments" // the directory of finished segments
	making   = "making"   // and that of whatever is being written
)

// Open makes a spool of the directory, which it creates if need be, and takes up what an earlier process left there. It holds
// at most limit bytes of segments. What cannot be read is set aside; torn, which says why, is for people.
func Open(dir string, limit int64, keys *seal.Keys) (s *Spool, torn []error, err error) {
	s = &Spool{dir: dir, limit: limit, free: free, sync: durable.SyncDirectory}
	if err := os.RemoveAll(filepath.Join(dir, making)); err != nil {
		return nil, nil, fmt.Errorf("cannot clear the spool: %w", err)
	}
	for _, sub := range []string{segments, making} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, nil, fmt.Errorf("cannot make the spool: %w", err)
		}
	}
	torn, err = s.recover(keys)
	return s, torn, err
}

// Entries are the segments that wait, in order.
func (s *Spool) Entries() []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.entries)
}

// First is the oldest segment; false if there is none.
func (s *Spool) First() (Entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.entries) == 0 {
		return Entry{}, false
	}
	return s.entries[0], true
}

// Bytes is how much the segments take.
func (s *Spool) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// Limit is how much they may take, in bytes.
func (s *Spool) Limit() int64 { return s.limit }

// Put adds a segment. ErrFull says that it has no room. If synced is set, it also survives a machine that is switched off;
// otherwise it is written to the disk whenever the kernel likes, which is not at all if it is removed before.
func (s *Spool) Put(object segment.Object, synced bool) error {
	if err := s.room(object.Size()); err != nil {
		return err
	}
	name := object.Position.String()
	file, err := s.Create(name)
	if err != nil {
		return err
	}
	err = fill(file, object.Reader(), synced)
	if err == nil {
		err = os.Rename(file.Name(), s.path(object.Position))
	}
	if err == nil && synced {
		err = s.sync(filepath.Join(s.dir, segments))
	}
	if err != nil { // it is captured again, and may end elsewhere then
		_, _ = os.Remove(file.Name()), os.Remove(s.path(object.Position))
		return fmt.Errorf("cannot spool segment %s: %w", name, err)
	}
	s.add(Entry{Position: object.Position, Next: object.Next(), Size: object.Size()})
	return nil
}

func fill(file *os.File, from io.Reader, synced bool) error {
	_, err := io.Copy(file, from)
	if synced && err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func (s *Spool) add(entry Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = append(s.entries, entry)
	slices.SortFunc(s.entries, func(a, b Entry) int { return cmp.Compare(a.Position.String(), b.Position.String()) })
	s.bytes += entry.Size
}

// room says whether so many bytes fit.
func (s *Spool) room(size int64) error {
	if waiting := s.Bytes(); waiting+size > s.limit {
		return fmt.Errorf("%w: %d bytes wait, %d are the limit", ErrFull, waiting, s.limit)
	}
	return s.Room(size)
}

// Room says whether the volume has so many bytes beside what etcd needs.
func (s *Spool) Room(size int64) error {
	left, err := s.free(s.dir)
	if err != nil {
		return fmt.Errorf("cannot look at the volume of the spool: %w", err)
	}
	if left-size < Reserve {
		return fmt.Errorf("%w: the volume has %d bytes left, of which %d are kept for etcd", ErrFull, left, int64(Reserve))
	}
	return nil
}

// Sync makes all that waits survive a machine that is switched off.
func (s *Spool) Sync() error {
	for _, entry := range s.Entries() {
		file, err := os.Open(s.path(entry.Position))
		if err != nil {
			return err
		}
		if err := errors.Join(file.Sync(), file.Close()); err != nil {
			return fmt.Errorf("cannot make segment %s durable: %w", entry.Position, err)
		}
	}
	return s.sync(filepath.Join(s.dir, segments))
}

// Open reads a segment that waits. The file must be closed.
func (s *Spool) Open(position segment.Position) (*os.File, error) { return os.Open(s.path(position)) }

// Remove drops all segments that begin before the position.
func (s *Spool) Remove(before segment.Position) error {
	return s.drop(func(e Entry) bool { return e.Position.Compare(before) < 0 })
}

// Clear drops all segments.
func (s *Spool) Clear() error { return s.drop(func(Entry) bool { return true }) }

func (s *Spool) drop(chosen func(Entry) bool) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = slices.DeleteFunc(s.entries, func(entry Entry) bool {
		if !chosen(entry) {
			return false
		}
		if failed := os.Remove(s.path(entry.Position)); failed != nil && !errors.Is(failed, os.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("cannot remove segment %s from the spool: %w", entry.Position, failed))
		}
		s.bytes -= entry.Size
		return true
	})
	return err
}

// Create makes a file for what is not finished, such as a full. The next Open removes it; so should whoever made it.
func (s *Spool) Create(name string) (*os.File, error) {
	path := filepath.Join(s.dir, making, name)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot write to the spool: %w", err)
	}
	return file, nil
}

func (s *Spool) path(position segment.Position) string {
	return filepath.Join(s.dir, segments, position.String())
}
