package backups

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"

	bolt "go.etcd.io/bbolt"

	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/restore/sidecarstore"
)

// sidecarExport makes a snapshot of what etcd-backup-restore wrote. The full is fetched into a file beside the snapshot first, since
// what a full really holds is known only then; so twice the room is needed.
type sidecarExport struct {
	kept    *sidecarstore.Archive
	target  sidecarstore.Target
	file    string
	options restore.Options
}

// export tries one full after the other, the best first: one may be damaged, or hold more than its name says.
func (e sidecarExport) export(ctx context.Context) (exported Exported, err error) {
	fulls, err := e.kept.Fulls(e.target)
	if err != nil {
		return Exported{}, err
	}
	var all error
	for _, full := range fulls {
		exported, err = e.from(ctx, full)
		if !errors.Is(err, sidecarstore.ErrNewer) && !errors.Is(err, sidecarstore.ErrDamaged) {
			return exported, err
		}
		all = errors.Join(all, err)
	}
	return Exported{}, fmt.Errorf("no full backup of the sidecar's leads to %s: %w", e.target, all)
}

func (e sidecarExport) from(ctx context.Context, full sidecarstore.Object) (exported Exported, err error) {
	base := e.file + ".full.partial"
	if err := remove(base); err != nil { // of one that was interrupted
		return Exported{}, err
	}
	defer func() { err = errors.Join(err, remove(base)) }()
	fetched, err := restore.Database(ctx, restore.Source{
		Snapshot: func(ctx context.Context) (io.ReadCloser, error) { return e.kept.Snapshot(ctx, full) },
	}, base, e.options)
	if err != nil {
		return Exported{}, err
	}
	db, err := bolt.Open(base, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		return Exported{}, err
	}
	defer db.Close()
	result, err := restore.Export(ctx, e.source(full, db, fetched), e.file, e.options)
	if err == nil && e.target.Revision != 0 && result.Revision != e.target.Revision {
		err = errors.Join(fmt.Errorf("%w: it leads to revision %d and not to %d", sidecarstore.ErrDamaged, result.Revision, e.target.Revision), remove(e.file))
	}
	return Exported{File: e.file, Revision: result.Revision, Full: full.Name, Rows: result.Rows, Bytes: result.Bytes}, err
}

func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// source is the fetched full, and the rows behind it.
func (e sidecarExport) source(full sidecarstore.Object, db *bolt.DB, fetched restore.Result) restore.Source {
	return restore.Source{
		Snapshot:      func(context.Context) (io.ReadCloser, error) { return openSnapshot(db.Path()) },
		DatabaseBytes: fetched.Bytes,
		Rows: func(ctx context.Context, row func(segment.Row) error) (restore.Changes, error) {
			return restore.Changes{}, db.View(func(tx *bolt.Tx) error {
				base := sidecarstore.Base{Revision: fetched.Revision, Row: rowsOf(tx)}
				for next, err := range e.kept.Rows(ctx, full, base, e.target) {
					if err == nil {
						err = row(segment.Row{Key: next.Key, Value: next.Value})
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

// rowsOf finds rows in etcd's bucket of keys.
func rowsOf(tx *bolt.Tx) func(revision []byte) (key, value []byte) {
	rows := tx.Bucket([]byte("key")).Cursor()
	return func(revision []byte) (key, value []byte) {
		if key, value = rows.Seek(revision); bytes.HasPrefix(key, revision) {
			return key, value
		}
		return nil, nil
	}
}

// snapshot reads a database as a stock snapshot: with its SHA-256 at the end.
type snapshot struct {
	file *os.File
	sum  hash.Hash
	end  *bytes.Reader // nil up to the end of the file
}

// Close implements io.Closer.
func (s *snapshot) Close() error { return s.file.Close() }

func openSnapshot(path string) (io.ReadCloser, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &snapshot{file: file, sum: sha256.New()}, nil
}

// Read implements io.Reader.
func (s *snapshot) Read(p []byte) (int, error) {
	if s.end != nil {
		return s.end.Read(p)
	}
	n, err := s.file.Read(p)
	s.sum.Write(p[:n])
	if errors.Is(err, io.EOF) {
		s.end, err = bytes.NewReader(s.sum.Sum(nil)), nil
	}
	return n, err
}
