package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
)

// recover takes up the segments that lie there, and sets aside what is none.
func (s *Spool) recover(keys *seal.Keys) (torn []error, err error) {
	names, err := os.ReadDir(filepath.Join(s.dir, segments))
	if err != nil {
		return nil, fmt.Errorf("cannot read the spool: %w", err)
	}
	var useless []string
	for _, name := range names {
		manifest, size, err := examine(filepath.Join(s.dir, segments, name.Name()), keys)
		if err == nil && manifest.Position.String() != name.Name() {
			err = fmt.Errorf("its name is not its position, %s", manifest.Position)
		}
		if err != nil {
			useless = append(useless, name.Name())
			torn = append(torn, fmt.Errorf("segment %s that waited in the spool: %w", name.Name(), err))
			continue
		}
		s.add(Entry{Position: manifest.Position, Next: manifest.Next(), Size: size})
	}
	_, err = s.move(useless)
	return torn, err
}

// Last is what the newest segment in a directory's spool says of itself. It reads no more than that; false if it cannot be read, or there
// is none.
func Last(dir string, keys *seal.Keys) (last segment.Manifest, known bool) {
	names, err := os.ReadDir(filepath.Join(dir, segments)) // in order
	if err != nil || len(names) == 0 {
		return last, false
	}
	last, err = manifest(filepath.Join(dir, segments, names[len(names)-1].Name()), keys)
	return last, err == nil
}

// examine reads all of a segment and compares it with its digests.
func examine(path string, keys *seal.Keys) (segment.Manifest, int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return segment.Manifest{}, 0, err
	}
	defer file.Close()
	reader := segment.NewReader(file, keys)
	manifest, err := reader.Next()
	if err != nil {
		return segment.Manifest{}, 0, err
	}
	if _, err := reader.Next(); !errors.Is(err, io.EOF) {
		return segment.Manifest{}, 0, fmt.Errorf("it does not end where it should: %w", err)
	}
	information, err := file.Stat()
	if err != nil {
		return segment.Manifest{}, 0, err
	}
	return manifest, information.Size(), nil
}

// Examine reads all of a segment that waits, and says what is wrong with it: disks decay, also while the store is away.
func (s *Spool) Examine(position segment.Position, keys *seal.Keys) error {
	manifest, _, err := examine(s.path(position), keys)
	if err == nil && manifest.Position != position {
		err = fmt.Errorf("it is segment %s", manifest.Position)
	}
	return err
}

// Manifest reads that of a segment that waits.
func (s *Spool) Manifest(position segment.Position, keys *seal.Keys) (segment.Manifest, error) {
	return manifest(s.path(position), keys)
}

func manifest(path string, keys *seal.Keys) (segment.Manifest, error) {
	file, err := os.Open(path)
	if err != nil {
		return segment.Manifest{}, err
	}
	defer file.Close()
	return segment.NewReader(file, keys).Next()
}

func free(dir string) (int64, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return 0, err
	}
	return int64(disk.Bavail) * int64(disk.Bsize), nil //nolint:gosec,unconvert // far from overflowing; the types differ by system
}
