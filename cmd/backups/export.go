package backups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/restore/sidecarstore"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/internal/printable"
	"etcd-wrapper/readiness/status/terminal"
)

// ErrExists says that a file is there, which is never written over.
var ErrExists = errors.New("exists already; give another name")

// ErrIncomplete says that what was made lacks revisions that were backed up and cannot be read. It comes with the document.
var ErrIncomplete = errors.New("incomplete")

// Exported is what backup export tells, and with -o json its document.
type Exported struct {
	File       string    `json:"file"`
	Revision   int64     `json:"revision"` // that it holds
	Time       time.Time `json:"time,omitzero"`
	Generation int       `json:"generation,omitempty"` // absent if it is from the sidecar's backups
	Full       string    `json:"full"`                 // that it begins with
	Rows       int64     `json:"rows"`                 // that were added to it
	Bytes      int64     `json:"bytes"`                // of the file
	Unsigned   bool      `json:"unsigned,omitempty"`   // it has no signature, though trusted keys are given; --accept-unsigned
	Lost       int64     `json:"lost,omitempty"`       // revisions behind it at least that were backed up, and cannot be read
	Damaged    []string  `json:"damaged,omitempty"`    // what of the store could not be used: sentences
}

// Export writes a stock etcd snapshot of a kept revision to a file that does not exist yet, for the user alone. It looks into our
// backups first, and then into those that etcd-backup-restore has left in the store. archive.ErrNotKept says that neither has it,
// and what there is; ErrIncomplete that it is the latest that can be read, and more was kept.
func Export(ctx context.Context, settings Settings, target archive.Target, file string, meter *Meter) (Exported, error) {
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		return Exported{}, fmt.Errorf("%s %w", file, ErrExists)
	}
	defer meter.Clear()
	options := restore.Options{Inspect: settings.Inspect, Progress: func(p restore.Progress) { meter.Show("written", p.Bytes, p.Of) }}
	exported, err := exportOwn(ctx, settings.Archive(), target, file, options)
	if !errors.Is(err, archive.ErrNotKept) || !before(ctx, settings.Archive(), target) {
		return exported, err
	}
	theirs, listed := sidecarstore.List(ctx, settings.Store)
	if listed != nil || len(theirs.Chains) == 0 {
		return Exported{}, errors.Join(err, listed)
	}
	if settings.Keys.Trusts() && !settings.AcceptUnsigned {
		return Exported{}, fmt.Errorf("%w; etcd-backup-restore has left backups there, which are %w: nobody signed them, and with --accept-unsigned they are read all the same",
			err, seal.ErrUntrusted)
	}
	from := sidecarExport{theirs, sidecarstore.Target{Revision: target.Revision, Time: target.Time}, file, options}
	exported, err = from.export(ctx)
	exported.Unsigned = err == nil && settings.Keys.Trusts()
	return exported, err
}

// before tells whether a target may lie in what etcd-backup-restore wrote, which is what came before our backups: what these should
// have had, and have not, is not to be taken from there.
func before(ctx context.Context, kept *archive.Archive, target archive.Target) bool {
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

func exportOwn(ctx context.Context, kept *archive.Archive, target archive.Target, file string, options restore.Options) (Exported, error) {
	sought, err := find(ctx, kept, target)
	if err != nil {
		return Exported{}, err
	}
	exported := Exported{File: file, Generation: sought.Generation.Number, Damaged: unread(sought)}
	var result restore.Result
	path, err := restore.Best(ctx, kept, sought, func(path archive.Path) (err error) {
		result, err = restore.Export(ctx, restore.From(kept, path, nil), file, options)
		return err
	}, exported.leaveOut)
	if err != nil {
		return Exported{}, err
	}
	exported.Revision, exported.Time, exported.Full = result.Revision, path.Time, path.Full.Name()
	exported.Rows, exported.Bytes, exported.Lost = result.Rows, result.Bytes, lost(sought, path)
	return exported, complete(file, path, exported.Lost, exported.Damaged)
}

// find finds the way to a target. What nobody trusts is not damaged: nothing is made without it.
func find(ctx context.Context, kept *archive.Archive, target archive.Target) (archive.Path, error) {
	path, err := kept.Find(ctx, target)
	if err == nil && errors.Is(path.Beyond, seal.ErrUntrusted) {
		err = fmt.Errorf("revision %d is not the latest in %s: %w; add the key there, or say --to=revision:%d", path.Revision, kept, path.Beyond, path.Revision)
	}
	return path, err
}

// leaveOut notes what could not be used.
func (e *Exported) leaveOut(_, _ archive.Path, why error) error {
	e.Damaged = append(e.Damaged, printable.Line(why.Error()))
	return nil
}

// unread is what is said of what lies behind the latest revision and cannot be read.
func unread(path archive.Path) []string {
	if path.Beyond == nil {
		return nil
	}
	return []string{printable.Line(path.Beyond.Error())}
}

// lost is how many revisions behind the end of a path at least cannot be read, of those that were sought.
func lost(sought, path archive.Path) int64 { return sought.Lost() + sought.Revision - path.Revision }

// complete is an ErrIncomplete if something cannot be read behind the end of a path that was to lead to the latest revision.
func complete(made string, path archive.Path, lost int64, damaged []string) error {
	if lost <= 0 && path.Beyond == nil {
		return nil
	}
	missing := "what"
	if lost > 0 {
		missing = fmt.Sprintf("%d revisions or more that", lost)
	}
	return fmt.Errorf("%s is %w: %s followed revision %d cannot be read (%s); it is there all the same, and with --accept-loss that is no error",
		made, ErrIncomplete, missing, path.Revision, strings.Join(damaged, "; "))
}

// Print prints the document for people, with times in their zone.
func (e Exported) Print(to io.Writer) error {
	_, err := fmt.Fprintf(to, "%s holds revision %d, %s, made of full %s and %s; etcdutl snapshot restore takes it\n%s%s",
		e.File, e.Revision, terminal.Size(e.Bytes), e.Full, count(e.Rows, "row"), unsigned(e.Unsigned), leftOut(e.Damaged, e.Lost))
	return err
}

// unsigned is what people are told of a backup that was read with --accept-unsigned.
func unsigned(is bool) string {
	if !is {
		return ""
	}
	return "nobody signed that full: whoever may write to the store can have made it\n"
}

// leftOut is what people are told of what could not be used.
func leftOut(damaged []string, lost int64) (text string) {
	for _, sentence := range damaged {
		text += "left out: " + sentence + "\n"
	}
	if lost > 0 {
		text += fmt.Sprintf("%d revisions behind it, or more, cannot be read\n", lost)
	}
	return text
}
