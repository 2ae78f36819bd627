package backups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/writer/capture"
	"etcd-wrapper/readiness/status/terminal"
	"etcd-wrapper/recovery/seed"
)

// RestoreResult is the result of restore. The -o json flag prints it.
type RestoreResult struct {
	DataDir   string `json:"data_dir"`
	Revision  int64  `json:"revision"`   // restored revision
	GoesOn    int64  `json:"goes_on"`    // revision from which the cluster continues
	ClusterID string `json:"cluster_id"` // hexadecimal
	Bytes     int64  `json:"bytes"`      // size of the database
	From      string `json:"from"`       // the store or file, as shown to users
	Gaps
}

// Print prints the result as text.
func (r RestoreResult) Print(to io.Writer) error {
	_, err := fmt.Fprintf(to, "%s contains revision %d from %s (%s) and continues at revision %d as the new cluster %s. Existing stores reject a new cluster: "+
		"start it with a different --backup-store or without one. To restore a cluster from its own store, use start-etcd --restore-to instead.\n%s",
		r.DataDir, r.Revision, r.From, terminal.Size(r.Bytes), r.GoesOn, r.ClusterID, r.Gaps)
	return err
}

// Restore builds a data directory at a target from our own backups or from those made by etcd-backup-restore in the
// same store. Restore returns archive.ErrNotKept if the target is in neither, and ErrIncomplete if later revisions
// were backed up but cannot be read.
func Restore(ctx context.Context, settings Settings, target archive.Target, plan seed.Seed, meter *Meter) (RestoreResult, error) {
	defer meter.Clear()
	kept := settings.Archive()
	sought, err := find(ctx, kept, target)
	if errors.Is(err, archive.ErrNotKept) && isOlder(ctx, kept, target) {
		return restoreExported(ctx, settings, target, plan, meter)
	}
	if err != nil {
		return RestoreResult{}, err
	}
	above, err := highestRevision(ctx, kept, sought)
	if err != nil {
		return RestoreResult{}, err
	}
	options := restore.Options{Above: above, Inspect: settings.Inspect}
	var restored RestoreResult
	var gaps Gaps
	_, err = gaps.build(ctx, kept, sought, plan.DataDir, func(path archive.Path) (err error) {
		restored, err = build(ctx, plan, restore.NewSource(kept, path), path.Revision, options, kept.String(), meter)
		return err
	})
	restored.Gaps = gaps
	return restored, err
}

// highestRevision returns an upper bound on the revisions that etcd has ever assigned. If the newest full snapshot is
// damaged, highestRevision derives the bound from object names.
func highestRevision(ctx context.Context, kept *archive.Archive, path archive.Path) (int64, error) {
	reserved, err := kept.Reserved(ctx)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return 0, err
	}
	generations, err := kept.Generations(ctx)
	if err != nil {
		return 0, err
	}
	newest := path.Generation.Number
	for _, generation := range generations {
		newest = max(newest, generation.Number)
	}
	head, err := kept.Head(ctx, newest)
	switch {
	case errors.Is(err, format.ErrDamaged):
		reported, err := kept.LastNamed(ctx)
		return archive.SafeRevision(reserved.Revision, max(reported, path.Revision)), err
	case err != nil && !errors.Is(err, format.ErrUntrusted):
		return 0, err
	}
	// If no backup can be trusted, the head is empty: object names may be forged and must not raise the bound.
	return archive.SafeRevision(reserved.Revision, max(head.Revision(), path.Revision)), nil
}

// restoreExported exports the sidecar's backups to a stock snapshot and restores the snapshot, because these backups
// cannot be restored directly. The snapshot is written to a directory with a random name, because any fixed name next
// to the data directory could belong to the user.
func restoreExported(ctx context.Context, settings Settings, target archive.Target, plan seed.Seed, meter *Meter) (restored RestoreResult, err error) {
	parent := filepath.Dir(plan.DataDir)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return RestoreResult{}, err
	}
	temporary, err := os.MkdirTemp(parent, filepath.Base(plan.DataDir)+".snapshot-")
	if err != nil {
		return RestoreResult{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	file := filepath.Join(temporary, "snapshot")
	exported, err := Export(ctx, settings, target, file, meter)
	if err != nil {
		return RestoreResult{}, err
	}
	restored, err = RestoreSnapshot(ctx, file, plan, settings.Inspect, meter)
	restored.From, restored.Unsigned = settings.Store.String(), exported.Unsigned
	return restored, err
}

// RestoreSnapshot restores a data directory from a stock etcd snapshot.
func RestoreSnapshot(ctx context.Context, file string, plan seed.Seed, inspect Inspect, meter *Meter) (RestoreResult, error) {
	defer meter.Clear()
	if err := checkDigest(ctx, file); err != nil {
		return RestoreResult{}, fmt.Errorf("cannot restore %s: %w", file, err)
	}
	database, err := capture.OpenClosed(file, capture.Identity{})
	if err != nil {
		return RestoreResult{}, err
	}
	revision, size := database.Revision(), database.Size()
	if err := database.Close(); err != nil {
		return RestoreResult{}, err
	}
	source := restore.Source{
		Snapshot: func(context.Context) (io.ReadCloser, error) { return os.Open(file) }, DatabaseBytes: size,
	}
	return build(ctx, plan, source, revision, restore.Options{Above: archive.SafeRevision(0, revision), Inspect: inspect}, file, meter)
}

func build(ctx context.Context, plan seed.Seed, source restore.Source, revision int64, options restore.Options, from string, meter *Meter) (RestoreResult, error) {
	options.Progress = func(bytes, total int64) { meter.Show("written", bytes, total) }
	built, err := plan.Build(ctx, source, options)
	if err != nil {
		return RestoreResult{}, err
	}
	return RestoreResult{
		DataDir: plan.DataDir, Revision: revision, GoesOn: built.Revision, ClusterID: fmt.Sprintf("%x", built.ClusterID), Bytes: built.Bytes, From: from,
	}, nil
}
