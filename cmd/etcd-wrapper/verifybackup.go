package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/verification"
	"etcd-wrapper/cmd/backups"
	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/exitcode"
)

// verifyBackupCommand is the process of its own in which a backup is restored to see whether that works: it leaves the machine to
// etcd, and a panic in it is an answer.
type verifyBackupCommand struct {
	Backups    commandline.Backups `embed:""`
	Generation int                 `name:"generation" env:"-" required:"" help:"Of the full."`
	Full       string              `name:"full" env:"-" required:"" help:"The full's name."`
	Revision   int64               `name:"revision" env:"-" required:"" help:"What to go back to."`
	Scratch    string              `name:"scratch" env:"-" required:"" help:"A directory that is emptied first and removed in the end."`
}

func (c *verifyBackupCommand) execute(s streams) exitcode.Code {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	settings, err := backups.Read(c.Backups)
	if err != nil {
		return s.failed(err, exitcode.Usage)
	}
	job := verification.Job{Generation: c.Generation, Full: c.Full, Revision: c.Revision}
	return exitcode.Code(verification.RunChild(ctx, settings.Archive(), job, c.Scratch, s.out))
}

// restorer restores what lies at the end of a path, and says what that showed.
type restorer func(context.Context, archive.Path) (archive.Verdict, error)

// verifyBackupInChild runs that process with the flags for a store. scratch is a directory that nobody else uses.
func verifyBackupInChild(flags commandline.Backups, scratch string) restorer {
	executable, err := os.Executable()
	if err != nil {
		return func(context.Context, archive.Path) (archive.Verdict, error) { return archive.Verdict{}, err }
	}
	return verification.InChild(executable, func(job verification.Job) []string {
		return append([]string{
			"verify-backup", "--generation", strconv.Itoa(job.Generation), "--full", job.Full, "--revision", strconv.FormatInt(job.Revision, 10),
			"--scratch", scratch,
		}, flags.Reading()...)
	})
}

// backupVerifyCommand is `backup verify`.
type backupVerifyCommand struct {
	backupFlags `embed:""`
	To          *commandline.Target `name:"to" env:"-" placeholder:"TARGET" help:"What to restore: latest, revision:N, or time:T; default is the newest full alone."`
	Generation  int                 `name:"generation" env:"-" help:"Of which generation, with --to, if the newest that has it is not meant."`
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
		verified, err := backups.Verify(ctx, settings, c.target(), restore)
		if verified.Full == "" {
			return nil, err
		}
		return verified, err
	})
}

func (c *backupVerifyCommand) target() *archive.Target {
	if c.To == nil {
		return nil
	}
	return &archive.Target{Revision: c.To.Revision, Time: c.To.Time, Generation: c.Generation}
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
