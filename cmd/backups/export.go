package backups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/rebuild"
	"etcd-wrapper/bootstrap/backup/sidecarstore"
	"etcd-wrapper/exitcode/printable"
	"etcd-wrapper/readiness/status/terminal"
)

// ErrExists says that a file is there, which is never written over.
var ErrExists = errors.New("exists already; give another name")

// Exported is what backup export tells, and with -o json its document.
type Exported struct {
	File       string    `json:"file"`
	Revision   int64     `json:"revision"` // that it holds
	Time       time.Time `json:"time,omitzero"`
	Generation int       `json:"generation,omitempty"` // absent if it is from the sidecar's backups
	Full       string    `json:"full"`                 // that it begins with
	Rows       int64     `json:"rows"`                 // that were added to it
	Bytes      int64     `json:"bytes"`                // of the file
	Lost       int64     `json:"lost,omitempty"`       // revisions of the latest that are kept, and cannot be read
	Damaged    []string  `json:"damaged,omitempty"`    // what of the store could not be used: sentences
}

// Export writes a stock etcd snapshot of a kept revision to a file that does not exist yet, for the user alone. It looks into our
// backups first, and then into those that etcd-backup-restore has left in the store. archive.ErrNotKept says that neither has it,
// and what there is.
func Export(ctx context.Context, settings Settings, target archive.Target, file string, meter *Meter) (Exported, error) {
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		return Exported{}, fmt.Errorf("%s %w", file, ErrExists)
	}
	defer meter.Clear()
	options := rebuild.Options{Inspect: settings.Inspect, Progress: func(p rebuild.Progress) { meter.Show("written", p.Bytes, p.Of) }}
	exported, err := exportOwn(ctx, settings.Archive(), target, file, options)
	if !errors.Is(err, archive.ErrNotKept) || target.Generation != 0 {
		return exported, err
	}
	theirs, listed := sidecarstore.List(ctx, settings.Store)
	if listed != nil || len(theirs.Chains) == 0 {
		return Exported{}, errors.Join(err, listed)
	}
	from := sidecarExport{theirs, sidecarstore.Target{Revision: target.Revision, Time: target.Time}, file, options}
	return from.export(ctx)
}

func exportOwn(ctx context.Context, kept *archive.Archive, target archive.Target, file string, options rebuild.Options) (Exported, error) {
	path, err := kept.Find(ctx, target)
	if err != nil {
		return Exported{}, err
	}
	exported := Exported{File: file, Generation: path.Generation.Number, Damaged: unread(path)}
	var result rebuild.Result
	sought := path.Revision
	path, err = rebuild.Best(ctx, kept, path, func(path archive.Path) (err error) {
		result, err = rebuild.Export(ctx, rebuild.From(kept, path, nil), file, options)
		return err
	}, func(_, _ archive.Path, why error) {
		exported.Damaged = append(exported.Damaged, printable.Line(why.Error()))
	})
	exported.Revision, exported.Time, exported.Full = result.Revision, path.Time, path.Full.Name()
	exported.Rows, exported.Bytes, exported.Lost = result.Rows, result.Bytes, sought-path.Revision
	return exported, err
}

// unread is what is said of a damaged end of what is kept.
func unread(path archive.Path) []string {
	if path.Beyond == nil {
		return nil
	}
	return []string{printable.Line(path.Beyond.Error())}
}

// Print prints the document for people, with times in their zone.
func (e Exported) Print(to io.Writer) error {
	_, err := fmt.Fprintf(to, "%s holds revision %d, %s, made of full %s and %d rows; etcdutl snapshot restore takes it\n%s",
		e.File, e.Revision, terminal.Size(e.Bytes), e.Full, e.Rows, leftOut(e.Damaged, e.Lost))
	return err
}

// leftOut is what people are told of what could not be used.
func leftOut(damaged []string, lost int64) (text string) {
	for _, sentence := range damaged {
		text += "left out: " + sentence + "\n"
	}
	if lost > 0 {
		text += fmt.Sprintf("%d revisions behind it cannot be read\n", lost)
	}
	return text
}
