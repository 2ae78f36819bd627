package writer

import (
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

// ErrSpoolFull says that a segment has no room: the limit is reached, or the volume has not enough left for etcd.
var ErrSpoolFull = errors.New("the spool is full")

// SpoolReserve is what the spool leaves free on the volume, in bytes: etcd needs room for its log and its database.
const SpoolReserve = 256 << 20

// Spooled is a segment in the spool.
type Spooled struct {
	format.Manifest
	Size int64 // bytes

	since  time.Time      // when its first change was seen, by the monotonic clock; zero if an earlier process did
	held   *format.Object // itself, if it waits in memory; nil if it has a file
	stored bool           // the store has it; should that be away at the next start, it says where to go on
}

// Spool keeps on the volume what waits for a store that is away: segments in the order of their positions, and fulls in the
// making. What it holds survives the end of the process at any instant; what was torn is found and moved out of the way. One
// goroutine owns it; Create, Room and Open may be called from any.
type Spool struct {
	dir     string
	limit   int64
	keys    *format.Keys
	space   func(dir string) (left, size int64, err error)
	sync    func(dir string) error
	entries []Spooled // in order; at most the first is stored
}

const (
	segmentsDir = "segments" // the directory of finished segments
	makingDir   = "making"   // and that of whatever is being written
)

// OpenSpool makes a spool of the directory, which it creates if need be, and takes up what an earlier process left there. It holds
// at most limit bytes of segments that wait. What cannot be read is preserved; torn, which says why, is for people.
func OpenSpool(dir string, limit int64, keys *format.Keys) (s *Spool, torn []error, err error) {
	s = &Spool{dir: dir, limit: limit, keys: keys, space: disk.Space, sync: disk.SyncDirectory}
	if err := os.RemoveAll(filepath.Join(dir, makingDir)); err != nil {
		return nil, nil, fmt.Errorf("cannot clear the spool: %w", err)
	}
	for _, sub := range []string{segmentsDir, makingDir} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, nil, fmt.Errorf("cannot make the spool: %w", err)
		}
	}
	torn, err = s.recover()
	return s, torn, err
}

// Entries are the segments that wait, in order, until one is added or dropped.
func (s *Spool) Entries() []Spooled {
	if len(s.entries) > 0 && s.entries[0].stored {
		return s.entries[1:]
	}
	return s.entries
}

// Bytes is how much of them waits.
func (s *Spool) Bytes() (sum int64) {
	for _, entry := range s.Entries() {
		sum += entry.Size
	}
	return sum
}

// Put adds a segment. ErrSpoolFull says that it has no room. If synced is set, it also survives a machine that is switched off;
// otherwise it is written to the disk whenever the kernel likes, which is not at all if it is removed before.
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
	if err != nil { // it is captured again, and may end elsewhere then
		_, _ = os.Remove(file.Name()), os.Remove(s.path(object.Position))
		return fmt.Errorf("cannot spool segment %s: %w", name, err)
	}
	s.add(Spooled{Manifest: object.Manifest, Size: object.Size()})
	return nil
}

// hold adds a segment that the volume does not take. It waits in memory, and nothing behind it.
func (s *Spool) holdInMemory(object format.Object) {
	s.add(Spooled{Manifest: object.Manifest, Size: object.Size(), held: &object})
}

// holds tells whether a segment waits in memory.
func (s *Spool) holdsInMemory() bool {
	return len(s.entries) > 0 && s.entries[len(s.entries)-1].held != nil
}

func (s *Spool) add(entry Spooled) {
	s.entries = append(s.entries, entry)
	slices.SortFunc(s.entries, func(a, b Spooled) int { return a.Position.Compare(b.Position) })
}

// room says whether so many bytes fit.
func (s *Spool) checkLimit(size int64) error {
	if waiting := s.Bytes(); waiting+size > s.limit {
		return fmt.Errorf("%w: %d bytes wait, %d are the limit", ErrSpoolFull, waiting, s.limit)
	}
	return s.Room(size)
}

// Room says whether the volume has so many bytes beside what etcd needs.
func (s *Spool) Room(size int64) error {
	left, _, err := s.space(s.dir)
	if err != nil {
		return err
	}
	if left-size < SpoolReserve {
		return fmt.Errorf("%w: the volume has %d MiB left, and %d MiB are kept for etcd: enlarge it, or remove what etcd does not need from it", ErrSpoolFull, left>>20, int64(SpoolReserve)>>20)
	}
	return nil
}

// Sync makes all that waits survive a machine that is switched off.
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
			return fmt.Errorf("cannot make segment %s durable: %w", entry.Position, err)
		}
	}
	return s.sync(filepath.Join(s.dir, segmentsDir))
}

// Open reads a segment that waits. It compares all of it with its digests before: disks decay, also while the store is away.
func (s *Spool) Open(entry Spooled) (io.ReadCloser, error) {
	if entry.held != nil {
		return io.NopCloser(entry.held.Reader()), nil
	}
	file, _, err := s.open(entry.Position.String())
	return file, err
}

// Stored drops all segments that begin before the position, and notes that the one there waits no longer.
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

// Rewind drops all segments that begin before the position. The others wait, also one that was stored.
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

// Create makes a file for what is not finished, such as a full. The next OpenSpool removes it; so should whoever made it.
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

// recover takes up the segments that lie there, and preserves what is none.
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
			_ = file.Close() // it was only read
		}
		if err != nil {
			useless = append(useless, name.Name())
			torn = append(torn, fmt.Errorf("segment %s that waited in the spool: %w", name.Name(), err))
		}
	}
	_, err = s.move(useless)
	return torn, err
}

// LastSpooled is what the newest segment in a directory's spool says of itself. It reads no more than that; false if it cannot be read, or there
// is none.
func LastSpooled(dir string, keys *format.Keys) (last format.Manifest, known bool) {
	names, err := os.ReadDir(filepath.Join(dir, segmentsDir)) // in order
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

// open reads all of a segment, compares it with its digests and its name, and goes back to its beginning.
func (s *Spool) open(name string) (file *os.File, entry Spooled, err error) {
	if file, err = os.Open(filepath.Join(s.dir, segmentsDir, name)); err != nil {
		return nil, entry, err
	}
	reader := format.NewSegmentReader(file, s.keys)
	if entry.Manifest, err = reader.Next(); err == nil {
		if _, err = reader.Next(); errors.Is(err, io.EOF) {
			entry.Size, err = file.Seek(0, io.SeekEnd)
		} else {
			err = fmt.Errorf("it does not end where it should: %w", err)
		}
	}
	if err == nil && entry.Position.String() != name {
		err = fmt.Errorf("its name is not its position, %s", entry.Position)
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, entry, errors.Join(err, file.Close())
	}
	return file, entry, nil
}

// Newest preserves all but the newest of the segments that follow one another. The error is for people: nil if all do.
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
	return fmt.Errorf("%d segments that waited in the spool up to %s: segment %s does not follow them; they are in %s", first, upTo, next, where), err
}

// Preserve moves the chosen segments out of the spool to a directory beside it, whose name it returns: they are not of the chain
// that what comes next is of, and may be all that there is of what was acknowledged. That directory is a spool as well.
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

// move gives files a place beside the spool. It may be repeated.
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
		return "", fmt.Errorf("cannot preserve what waited for the store: %w", err)
	}
	return where, nil
}
