package main

import (
	"context"
	"path/filepath"

	"github.com/rs/zerolog"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/writer"
	"etcd-wrapper/cmd/backups"
	"etcd-wrapper/cmd/backups/local"
)

// What backups need on the volume: a place to wait for the store, and one to be restored in, to test them.
const (
	spoolDir  = "backup.spool"
	verifyDir = "backup.verify"
)

// wayFile is among etcd's data: which backups they go with.
const wayFile = "member/backups.json"

// backups returns what makes the backups of the run; nil without a store.
func (c *startCommand) backups(settings backups.Settings, readers writer.Gate, log zerolog.Logger) *backup.Backups {
	if settings.Store == nil {
		return nil
	}
	return backup.New(backup.Options{
		Store: settings.Store, Keys: settings.Keys, Interval: settings.Interval, Schedule: settings.Schedule, Policy: settings.Policy,
		SpoolDir: filepath.Join(c.VolumeDir, spoolDir), SpoolLimit: settings.SpoolLimit, Log: log, Gate: readers,
		WayFile: filepath.Join(c.DataDir(), wayFile),
		Verify:  verifyBackupInChild(c.Backups, filepath.Join(c.VolumeDir, verifyDir)), ScratchDir: filepath.Join(c.VolumeDir, verifyDir),
	})
}

// maker makes full backups for a command on this host; nil if there are no backups.
func maker(kept *backup.Backups) local.Maker {
	if kept == nil {
		return nil
	}
	return asked{kept}
}

type asked struct{ *backup.Backups }

// Make is local.Maker's.
func (a asked) Make(ctx context.Context) (local.Made, error) {
	full, err := a.Now(ctx)
	return local.Made{Name: full.Name, Revision: full.Revision, Time: full.Time, Bytes: full.Bytes}, err
}

// Uploaded is local.Maker's.
func (a asked) Uploaded() (done, total int64) {
	if full := a.Facts().Shipped.FullRunning; full != nil {
		return full.Sent, full.Of
	}
	return 0, 0
}
