package writer

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/internal/disk"
)

// ErrSpoolFull is returned if a segment does not fit into the spool because the limit is reached or the remaining
// space is reserved for etcd.
var ErrSpoolFull = errors.New("the spool is full")

// SpoolReserve is the space in bytes that the spool leaves free on the volume for etcd's write-ahead log and
// database.
const SpoolReserve = 256 << 20

// Spooled is a segment in the spool.
type Spooled struct {
	format.Manifest
	Size int64 // bytes

	since  time.Time      // monotonic time of queuing, or of the first change if an earlier process queued the segment
	held   *format.Object // contents of a segment kept in memory; nil if the segment is a file
	stored bool           // already stored; kept so that the next process can continue the chain without the store
}

// Spool queues segments on the volume while the store is unreachable, and holds copies of the database for full
// snapshots. The spool survives a process crash at any time. Damaged files are detected and preserved. A Spool
// belongs to one goroutine, but Create, CheckSpace and Open are safe for concurrent use.
type Spool struct {
	dir     string
	limit   int64
	keys    *format.Keys
	space   func(dir string) (left, size int64, err error)
	sync    func(dir string) error
	entries []Spooled // in order; only the first segment may already be stored
}

const (
	segmentsDir = "segments" // directory of complete segments
	makingDir   = "making"   // directory of incomplete files
)

// OpenSpool opens the spool in a directory, which it creates if necessary, and adopts segments left by an earlier
// process. limit is the maximum size of all queued segments in bytes. Unreadable files are preserved, and torn
// describes them for users.
func OpenSpool(dir string, limit int64, keys *format.Keys) (s *Spool, torn []error, err error) {
	s = &Spool{dir: dir, limit: limit, keys: keys, space: disk.Space, sync: disk.SyncDirectory}
	if err := os.RemoveAll(filepath.Join(dir, makingDir)); err != nil {
		return nil, nil, fmt.Errorf("cannot clear the spool: %w", err)
	}
	for _, sub := range []string{segmentsDir, makingDir} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, nil, fmt.Errorf("cannot create the spool: %w", err)
		}
	}
	torn, err = s.recover()
	return s, torn, err
}

// Entries returns the queued segments in order. The slice is valid until the spool next changes.
func (s *Spool) Entries() []Spooled {
	if len(s.entries) > 0 && s.entries[0].stored {
		return s.entries[1:]
	}
	return s.entries
}

// Bytes returns the total size of the queued segments.
func (s *Spool) Bytes() (sum int64) {
	for _, entry := range s.Entries() {
		sum += entry.Size
	}
	return sum
}

// Put adds a segment, or returns ErrSpoolFull if there is no room. A segment survives a power failure only if synced
// is set. Without a sync, a segment that is soon uploaded is often removed before it has been written to disk.
func (s *Spool) Put(object format.Object, synced bool) error {
	if err := s.checkLimit(object.Size()); err != nil {
		return err
	}
	name := object.Position.String()
	file, err := s.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, object.Reader())
	if err == nil && synced {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), s.path(object.Position))
	}
	if err == nil && synced {
		err = s.sync(filepath.Join(s.dir, segmentsDir))
	}
	if err != nil { // the rows are captured again, perhaps in a segment with another end, so remove this one
		_, _ = os.Remove(file.Name()), os.Remove(s.path(object.Position))
		return fmt.Errorf("cannot spool segment %s: %w", name, err)
	}
	s.add(Spooled{Manifest: object.Manifest, Size: object.Size()})
	return nil
}

// keepInMemory adds a segment that does not fit on the volume. No segment may be queued after a segment in memory.
func (s *Spool) keepInMemory(object format.Object) {
	s.add(Spooled{Manifest: object.Manifest, Size: object.Size(), held: &object})
}

// hasInMemory reports whether a segment is kept in memory.
func (s *Spool) hasInMemory() bool {
	return len(s.entries) > 0 && s.entries[len(s.entries)-1].held != nil
}

func (s *Spool) add(entry Spooled) {
	s.entries = append(s.entries, entry)
	slices.SortFunc(s.entries, func(a, b Spooled) int { return a.Position.Compare(b.Position) })
}

// checkLimit returns an error if size bytes do not fit into the spool.
func (s *Spool) checkLimit(size int64) error {
	if waiting := s.Bytes(); waiting+size > s.limit {
		return fmt.Errorf("%w: %d bytes queued, limit %d", ErrSpoolFull, waiting, s.limit)
	}
	return s.CheckSpace(size)
}

// CheckSpace returns an error if the volume does not have size bytes in addition to the space reserved for etcd.
func (s *Spool) CheckSpace(size int64) error {
	left, _, err := s.space(s.dir)
	if err != nil {
		return err
	}
	if left-size < SpoolReserve {
		return fmt.Errorf("%w: the volume has only %d MiB free, and %d MiB are reserved for etcd; enlarge the volume or delete files that etcd does not need", ErrSpoolFull, left>>20, int64(SpoolReserve)>>20)
	}
	return nil
}

// Sync makes all segments survive a power failure.
func (s *Spool) Sync() error {
	for _, entry := range s.entries {
		if entry.held != nil {
			continue
		}
		file, err := os.Open(s.path(entry.Position))
		if err != nil {
			return err
		}
		if err := errors.Join(file.Sync(), file.Close()); err != nil {
			return fmt.Errorf("cannot sync segment %s: %w", entry.Position, err)
		}
	}
	return s.sync(filepath.Join(s.dir, segmentsDir))
}

// Open opens a segment after verifying its digests.
func (s *Spool) Open(entry Spooled) (io.ReadCloser, error) {
	if entry.held != nil {
		return io.NopCloser(entry.held.Reader()), nil
	}
	file, _, err := s.open(entry.Position.String())
	return file, err
}

// Stored drops all segments before position and marks the segment at position as stored.
func (s *Spool) Stored(position format.Position) error {
	err := s.drop(func(e Spooled) bool {
		order := e.Position.Compare(position)
		return order < 0 || order == 0 && e.held != nil
	})
	if len(s.entries) > 0 && s.entries[0].Position == position {
		s.entries[0].stored = true
	}
	return err
}

// Rewind drops all segments before position and queues the rest, including a segment marked as stored.
func (s *Spool) Rewind(position format.Position) error {
	err := s.drop(func(e Spooled) bool { return e.Position.Compare(position) < 0 })
	if len(s.entries) > 0 {
		s.entries[0].stored = false
	}
	return err
}

// Clear drops all segments.
func (s *Spool) Clear() error { return s.drop(func(Spooled) bool { return true }) }

func (s *Spool) drop(chosen func(Spooled) bool) (err error) {
	s.entries = slices.DeleteFunc(s.entries, func(entry Spooled) bool {
		if !chosen(entry) {
			return false
		}
		if failed := os.Remove(s.path(entry.Position)); failed != nil && !errors.Is(failed, os.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("cannot remove segment %s from the spool: %w", entry.Position, failed))
		}
		return true
	})
	return err
}

// Create creates a temporary file, for example for a full snapshot. The caller should remove the file; otherwise, the
// next OpenSpool removes it.
func (s *Spool) Create(name string) (*os.File, error) {
	path := filepath.Join(s.dir, makingDir, name)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot write to the spool: %w", err)
	}
	return file, nil
}

func (s *Spool) path(position format.Position) string {
	return filepath.Join(s.dir, segmentsDir, position.String())
}

// recover adopts the segments on the volume and preserves invalid files.
func (s *Spool) recover() (torn []error, err error) {
	names, err := os.ReadDir(filepath.Join(s.dir, segmentsDir))
	if err != nil {
		return nil, fmt.Errorf("cannot read the spool: %w", err)
	}
	var useless []string
	for _, name := range names {
		file, entry, err := s.open(name.Name())
		if err == nil {
			s.add(entry)
			_ = file.Close() // the file was only read, so a close error is harmless
		}
		if err != nil {
			useless = append(useless, name.Name())
			torn = append(torn, fmt.Errorf("segment %s in the spool: %w", name.Name(), err))
		}
	}
	_, err = s.move(useless)
	return torn, err
}

// LastSpooled returns the manifest of the newest segment in a spool directory without reading any other segment.
// known is false if there is no segment or the segment cannot be read.
func LastSpooled(dir string, keys *format.Keys) (last format.Manifest, known bool) {
	names, err := os.ReadDir(filepath.Join(dir, segmentsDir)) // sorted by name
	if err != nil || len(names) == 0 {
		return last, false
	}
	file, err := os.Open(filepath.Join(dir, segmentsDir, names[len(names)-1].Name()))
	if err != nil {
		return last, false
	}
	defer file.Close()
	last, err = format.NewSegmentReader(file, keys).Next()
	return last, err == nil
}

// open verifies the digests and the name of a segment. The returned file is positioned at its start.
func (s *Spool) open(name string) (file *os.File, entry Spooled, err error) {
	if file, err = os.Open(filepath.Join(s.dir, segmentsDir, name)); err != nil {
		return nil, entry, err
	}
	reader := format.NewSegmentReader(file, s.keys)
	if entry.Manifest, err = reader.Next(); err == nil {
		if _, err = reader.Next(); errors.Is(err, io.EOF) {
			entry.Size, err = file.Seek(0, io.SeekEnd)
		} else {
			err = fmt.Errorf("the file must contain exactly one complete segment: %w", cmp.Or(err, errors.New("found a second one")))
		}
	}
	if err == nil && entry.Position.String() != name {
		err = fmt.Errorf("the file name does not match position %s", entry.Position)
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, entry, errors.Join(err, file.Close())
	}
	return file, entry, nil
}

// Newest keeps the newest segments that are contiguous, and preserves all earlier ones. left describes the preserved
// segments for users and is nil if there are none.
func (s *Spool) Newest() (left, err error) {
	all := s.Entries()
	first := len(all) - 1
	for first > 0 && all[first-1].Next() == all[first].Position {
		first--
	}
	if first <= 0 {
		return nil, nil
	}
	upTo, next := all[first-1].Next(), all[first].Position
	where, err := s.Preserve(func(e Spooled) bool { return e.Position.Compare(next) < 0 })
	return fmt.Errorf("gap in the spool from %s to %s; preserved all earlier segments (%d) in %s", upTo, next, first, where), err
}

// Preserve moves the chosen segments to a new spool directory next to this one and returns its path. The segments may
// be the only copy of acknowledged writes.
func (s *Spool) Preserve(chosen func(Spooled) bool) (where string, err error) {
	var names []string
	for _, entry := range s.entries {
		if chosen(entry) {
			names = append(names, entry.Position.String())
		}
	}
	if where, err = s.move(names); err == nil {
		s.entries = slices.DeleteFunc(s.entries, chosen)
	}
	return where, err
}

// move moves files from the spool to a new directory next to it.
func (s *Spool) move(names []string) (where string, err error) {
	if len(names) == 0 {
		return "", nil
	}
	where = disk.PreservedName(s.dir, time.Now())
	to := filepath.Join(where, segmentsDir)
	err = os.MkdirAll(to, 0o700)
	for _, name := range names {
		if err == nil {
			err = os.Rename(filepath.Join(s.dir, segmentsDir, name), filepath.Join(to, name))
		}
	}
	if err == nil {
		err = errors.Join(s.sync(to), s.sync(where), s.sync(filepath.Dir(s.dir)))
	}
	if err != nil {
		return "", fmt.Errorf("cannot preserve the spool: %w", err)
	}
	return where, nil
}
