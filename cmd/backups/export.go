package backups

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/restore/sidecarstore"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/internal/printable"
	"etcd-wrapper/readiness/status/terminal"
)

// ErrExists reports that the output file already exists.
var ErrExists = errors.New("already exists; choose another name")

// ErrIncomplete reports that revisions after those in the result were backed up but cannot be read. A result is valid
// even if it is returned with ErrIncomplete.
var ErrIncomplete = errors.New("incomplete")

// ExportResult is the result of backup export. The -o json flag prints it.
type ExportResult struct {
	File       string    `json:"file"`
	Revision   int64     `json:"revision"` // revision of the snapshot
	Time       time.Time `json:"time,omitzero"`
	Generation int       `json:"generation,omitempty"` // absent for a backup made by the sidecar
	Full       string    `json:"full"`                 // full snapshot on which the export is based
	Rows       int64     `json:"rows"`                 // number of rows applied on top of the full snapshot
	Bytes      int64     `json:"bytes"`                // size of the file
	Gaps
}

// Gaps describes what is missing from a result: a signature, or revisions that cannot be read.
type Gaps struct {
	Unsigned bool     `json:"unsigned,omitempty"` // the backup has no signature even though trusted keys are set (--accept=unsigned)
	Lost     int64    `json:"lost,omitempty"`     // lower bound on the number of backed-up revisions that cannot be read
	Damaged  []string `json:"damaged,omitempty"`  // for each backup that could not be used, the reason
}

// Export writes etcd's state at a revision to a new file that only the user can read, in the format of a stock etcd
// snapshot. Export searches our own backups first and then those made by etcd-backup-restore in the same store.
// Export returns archive.ErrNotKept if the target is in neither, and ErrIncomplete if later revisions were backed up
// but cannot be read.
func Export(ctx context.Context, settings Settings, target archive.Target, file string, meter *Meter) (ExportResult, error) {
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		return ExportResult{}, fmt.Errorf("%s %w", file, ErrExists)
	}
	defer meter.Clear()
	options := restore.Options{Inspect: settings.Inspect, Progress: func(bytes, total int64) { meter.Show("written", bytes, total) }}
	exported, err := exportArchive(ctx, settings.Archive(), target, file, options)
	if !errors.Is(err, archive.ErrNotKept) || !isOlder(ctx, settings.Archive(), target) {
		return exported, err
	}
	theirs, listed := sidecarstore.List(ctx, settings.Store)
	if listed != nil || len(theirs.Chains) == 0 {
		return ExportResult{}, errors.Join(err, listed)
	}
	if settings.Keys.Trusts() && !settings.AcceptUnsigned {
		return ExportResult{}, fmt.Errorf("%w; the backups made by etcd-backup-restore in that store are %w; set --accept=unsigned to use them anyway",
			err, format.ErrUntrusted)
	}
	from := sidecarExport{theirs, target, file, options}
	exported, err = from.export(ctx)
	exported.Unsigned = err == nil && settings.Keys.Trusts()
	return exported, err
}

// isOlder reports whether a target may be older than our own backups. If it is not, Export does not search the backups
// made by etcd-backup-restore.
func isOlder(ctx context.Context, kept *archive.Archive, target archive.Target) bool {
	certificate, err := kept.Cluster(ctx)
	switch {
	case target.Generation != 0:
		return false
	case errors.Is(err, store.ErrNotFound):
		return true
	default:
		return target.Revision != 0 || err == nil && !target.Time.IsZero() && target.Time.Before(certificate.Created)
	}
}

func exportArchive(ctx context.Context, kept *archive.Archive, target archive.Target, file string, options restore.Options) (ExportResult, error) {
	sought, err := find(ctx, kept, target)
	if err != nil {
		return ExportResult{}, err
	}
	var gaps Gaps
	var result restore.Result
	path, err := gaps.build(ctx, kept, sought, file, func(path archive.Path) (err error) {
		result, err = restore.Export(ctx, restore.NewSource(kept, path), file, options)
		return err
	})
	if err != nil && !errors.Is(err, ErrIncomplete) {
		return ExportResult{}, err
	}
	return ExportResult{
		File: file, Revision: result.Revision, Time: path.Time, Generation: sought.Generation.Number, Full: path.Full.Name(),
		Rows: result.Rows, Bytes: result.Bytes, Gaps: gaps,
	}, err
}

// find returns the path to a target. If later backups are damaged, the path may end at an earlier revision, but if they
// have no trusted signature, find returns an error.
func find(ctx context.Context, kept *archive.Archive, target archive.Target) (archive.Path, error) {
	path, err := kept.Find(ctx, target)
	if err == nil && errors.Is(path.PastEnd, format.ErrUntrusted) {
		err = fmt.Errorf("revision %d is not the latest revision in %s: %w; add the missing key to that file, or set --to=revision:%d", path.Revision, kept, path.PastEnd, path.Revision)
	}
	return path, err
}

// skip records why a backup could not be used.
func (g *Gaps) skip(_, _ archive.Path, why error) error {
	g.Damaged = append(g.Damaged, printable.Line(why.Error()))
	return nil
}

// build calls use with the path to a target and returns that path. If the path is damaged, build falls back to the
// best usable one. build also returns ErrIncomplete if revisions after the end of the used path cannot be read.
func (g *Gaps) build(ctx context.Context, kept *archive.Archive, sought archive.Path, made string, use func(archive.Path) error) (archive.Path, error) {
	if sought.PastEnd != nil {
		_ = g.skip(sought, sought, sought.PastEnd) // skip always returns nil
	}
	path, err := restore.Best(ctx, kept, sought, use, g.skip)
	if err != nil {
		return path, err
	}
	g.Lost = sought.Lost() + sought.Revision - path.Revision
	if g.Lost <= 0 && path.PastEnd == nil {
		return path, nil
	}
	missing := "revisions"
	if g.Lost > 0 {
		missing = fmt.Sprintf("at least %d revisions", g.Lost)
	}
	return path, fmt.Errorf("%s is %w: %s after revision %d cannot be read (%s); set --accept=loss to accept the loss",
		made, ErrIncomplete, missing, path.Revision, strings.Join(g.Damaged, "; "))
}

// String describes the gaps, one per line.
func (g Gaps) String() (text string) {
	if g.Unsigned {
		text = "the full snapshot is not signed: anyone with write access to the store could have created it\n"
	}
	for _, sentence := range g.Damaged {
		text += "skipped: " + sentence + "\n"
	}
	if g.Lost > 0 {
		text += fmt.Sprintf("at least %d later revisions cannot be read\n", g.Lost)
	}
	return text
}

// Print prints the result as text.
func (e ExportResult) Print(to io.Writer) error {
	_, err := fmt.Fprintf(to, "%s contains revision %d (%s), built from full snapshot %s and %s; restore it with \"etcdutl snapshot restore\"\n%s",
		e.File, e.Revision, terminal.Size(e.Bytes), e.Full, count(e.Rows, "row"), e.Gaps)
	return err
}

// A sidecarExport builds a snapshot from the backups made by etcd-backup-restore. The full snapshot is first
// downloaded to a file next to the output, because the object's name may not match its content. An export therefore
// needs twice the disk space.
type sidecarExport struct {
	kept    *sidecarstore.Archive
	target  archive.Target
	file    string
	options restore.Options
}

// export tries the full snapshots in order of preference, because any of them may be damaged or may contain revisions
// beyond the one in its name.
func (e sidecarExport) export(ctx context.Context) (exported ExportResult, err error) {
	fulls, err := e.kept.FullSnapshots(e.target)
	if err != nil {
		return ExportResult{}, err
	}
	var all error
	for _, full := range fulls {
		exported, err = e.from(ctx, full)
		if !errors.Is(err, sidecarstore.ErrNewer) && !errors.Is(err, restore.ErrDamaged) {
			return exported, err
		}
		all = errors.Join(all, err)
	}
	return ExportResult{}, fmt.Errorf("cannot restore %s from any full snapshot made by etcd-backup-restore: %w", e.target, all)
}

func (e sidecarExport) from(ctx context.Context, full sidecarstore.Object) (exported ExportResult, err error) {
	base := e.file + ".full.partial"
	if err := remove(base); err != nil { // an interrupted export may have left the file behind
		return ExportResult{}, err
	}
	defer func() { err = errors.Join(err, remove(base)) }()
	fetched, err := restore.Export(ctx, restore.Source{
		Snapshot: func(ctx context.Context) (io.ReadCloser, error) { return e.kept.Snapshot(ctx, full) },
	}, base, e.options)
	if err != nil {
		return ExportResult{}, err
	}
	db, err := bolt.Open(base, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		return ExportResult{}, err
	}
	defer db.Close()
	result, err := restore.Export(ctx, e.source(full, db, fetched), e.file, e.options)
	if err == nil && e.target.Revision != 0 && result.Revision != e.target.Revision {
		err = errors.Join(fmt.Errorf("%w: restoring it yields revision %d instead of %d", restore.ErrDamaged, result.Revision, e.target.Revision), remove(e.file))
	}
	return ExportResult{File: e.file, Revision: result.Revision, Full: full.Name, Rows: result.Rows, Bytes: result.Bytes}, err
}

func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// source returns the downloaded full snapshot and the rows that follow it.
func (e sidecarExport) source(full sidecarstore.Object, db *bolt.DB, fetched restore.Result) restore.Source {
	return restore.Source{
		Snapshot:      func(context.Context) (io.ReadCloser, error) { return os.Open(db.Path()) },
		DatabaseBytes: fetched.Bytes,
		Rows: func(ctx context.Context, row func(format.Row) error) (archive.Reading, error) {
			return archive.Reading{}, db.View(func(tx *bolt.Tx) error {
				base := sidecarstore.Base{Revision: fetched.Revision, Row: rowsOf(tx)}
				for next, err := range e.kept.Rows(ctx, full, base, e.target) {
					if err == nil {
						err = row(next)
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

// rowsOf returns a function that looks up the row of a revision in etcd's key bucket.
func rowsOf(tx *bolt.Tx) func(revision []byte) (key, value []byte) {
	rows := tx.Bucket([]byte("key")).Cursor()
	return func(revision []byte) (key, value []byte) {
		if key, value = rows.Seek(revision); bytes.HasPrefix(key, revision) {
			return key, value
		}
		return nil, nil
	}
}

// checkDigest verifies the SHA-256 digest at the end of a stock snapshot. checkDigest must run before the snapshot is
// opened as a database: if a file is truncated, reading a missing page through the memory map kills the process.
func checkDigest(ctx context.Context, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	size, err := io.Copy(io.Discard, restore.NewDigestReader(ctx, file))
	if errors.Is(err, restore.ErrDigest) || err == nil && size == 0 {
		return fmt.Errorf("%w: the SHA-256 hash at the end of the snapshot is missing or wrong; %s", restore.ErrDamaged, repairHint(path))
	}
	return err
}

// sector is a unit of which the size of every etcd database is a multiple. Like etcdutl, repairHint assumes that a file
// of such a size has no digest.
const sector = 512

// repairHint guesses where a file without a digest comes from and suggests what to do next.
func repairHint(path string) string {
	if info, err := os.Stat(path); err != nil || info.Size() == 0 || info.Size()%sector != 0 {
		return "the file may be truncated"
	}
	return fmt.Sprintf("if the file is a complete copy of member/snap/db, restore it with \"etcd-wrapper etcdutl snapshot restore %s --skip-hash-check --data-dir=DIR\"", path)
}
