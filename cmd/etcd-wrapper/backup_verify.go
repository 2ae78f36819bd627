package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/cmd/backups"
	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/exitcode"
)

// backupVerifyCommand is `backup verify`.
type backupVerifyCommand struct {
	backupFlags `embed:""`
	To          *commandline.Target `name:"to" env:"-" placeholder:"TARGET" help:"What to restore: latest, revision:N, or time:T; default is the newest full alone."`
	Generation  int                 `name:"generation" env:"-" help:"Of which generation, if the newest, or with --to the newest that has it, is not meant."`
	ScratchDir  string              `name:"scratch-dir" env:"-" placeholder:"DIR" help:"Where there is room for the database; default is the volume of the wrapper that was asked, else the system's directory for temporary files."`
}

func (c *backupVerifyCommand) execute(s streams) exitcode.Code {
	if c.To != nil {
		if err := c.To.Check(time.Now()); err != nil {
			return s.failed(fmt.Errorf("--to: %w", err), exitcode.Usage)
		}
	}
	return c.run(s, func(ctx context.Context, settings backups.Settings) (document, error) {
		restore := verifyBackupInChild(settings.Flags, c.scratch(settings))
		verified, err := backups.Verify(ctx, settings, c.choice(), restore)
		if verified.Full == "" {
			return nil, err
		}
		return verified, err
	})
}

func (c *backupVerifyCommand) choice() backups.Choice {
	chosen := backups.Choice{Target: archive.Target{Generation: c.Generation}, Full: c.To == nil}
	if c.To != nil {
		chosen.Revision, chosen.Time = c.To.Revision, c.To.Time
	}
	return chosen
}

// scratch is a directory that no other process uses.
func (c *backupVerifyCommand) scratch(settings backups.Settings) string {
	dir := c.ScratchDir
	if dir == "" {
		dir = settings.VolumeDir
	}
	if dir == "" {
		dir = os.TempDir()
	}
	return filepath.Join(dir, verifyDir+"-"+strconv.Itoa(os.Getpid()))
}
