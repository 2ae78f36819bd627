package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/backup/store/locate"
	"etcd-wrapper/cmd/backups"
	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/exitcode"
)

// backupCommand are the commands about backups.
type backupCommand struct {
	List   backupListCommand   `cmd:"" name:"list" help:"Tell what is kept: fulls, what can be gone back to, and when it was last verified."`
	Now    backupNowCommand    `cmd:"" name:"now" help:"Have the wrapper that runs on this host make a full backup, and wait for it."`
	Verify backupVerifyCommand `cmd:"" name:"verify" help:"Restore a backup to see whether that works, and let the result count."`
	Export backupExportCommand `cmd:"" name:"export" help:"Write a stock etcd snapshot of a kept revision, for etcdutl snapshot restore."`
	Get    backupGetCommand    `cmd:"" name:"get" help:"Print a key, or all below a prefix, as they were."`
	Diff   backupDiffCommand   `cmd:"" name:"diff" help:"Tell which keys changed between two moments."`
	Copy   backupCopyCommand   `cmd:"" name:"copy" help:"Copy the store to another place, or keep a copy there."`
	Prune  backupPruneCommand  `cmd:"" name:"prune" help:"Delete what --backup-keep need not keep."`
}

// backupFlags are what commands about a store take. They are start-etcd's, so that its arguments and environment fit.
type backupFlags struct {
	Backups     commandline.Backups `embed:""`
	WrapperPort commandline.Port    `name:"etcd-wrapper-port" aliases:"port" default:"9095" help:"Port of the wrapper on this host, which knows the store if --backup-store is not given; --port will do."`
	output      `embed:""`
}

// Notes implements commandline.Noted.
func (*backupFlags) Notes() string {
	return "Without --backup-store the wrapper that runs on this host is asked how it makes backups. Flags have environment\n" +
		"variables, as those of start-etcd.\n" +
		exitStatuses(exitcode.Clean, "done", exitcode.Usage, exitcode.Usage.String(), exitcode.StoreAway, "the store cannot be used, or no wrapper answers",
			exitcode.BackupFailed, "what is kept is not in order, or it failed; export: it is made, and lacks what cannot be read",
			exitcode.InDoubt, "prune: nothing is deleted while something is in doubt",
			exitcode.NotKept, "what was asked for is not kept; list: nothing is", exitcode.CutShort, "Ctrl-C; nothing is left behind")
}

// run finds the store, does what a command is for and prints what came of it, also beside an error.
func (f *backupFlags) run(s streams, do func(context.Context, backups.Settings) (document, error)) exitcode.Code {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	settings, err := backups.Find(ctx, f.Backups, uint16(f.WrapperPort))
	if err != nil {
		return s.failed(err, exitcode.Usage)
	}
	settings.Inspect = inspectInChild()
	result, err := do(ctx, settings)
	if err != nil && ctx.Err() != nil {
		return s.failed(errInterrupted, exitcode.CutShort)
	}
	return s.conclude(f.output, result, err)
}

// backupListCommand is `backup list`.
type backupListCommand struct {
	backupFlags `embed:""`
}

func (c *backupListCommand) execute(s streams) exitcode.Code {
	return c.run(s, func(ctx context.Context, settings backups.Settings) (document, error) {
		overview, err := backups.Look(ctx, settings, time.Now())
		if err != nil && !errors.Is(err, backups.ErrEmpty) {
			return nil, err
		}
		return overview, err
	})
}

// backupPruneCommand is `backup prune`.
type backupPruneCommand struct {
	backupFlags `embed:""`
	DryRun      bool `name:"dry-run" env:"-" help:"Only tell what would go, and why."`
}

func (c *backupPruneCommand) execute(s streams) exitcode.Code {
	return c.run(s, func(ctx context.Context, settings backups.Settings) (document, error) {
		meter, gone := s.meter(), int64(0)
		pruned, err := backups.Prune(ctx, settings, c.DryRun, func(item retention.Item) {
			gone += item.Bytes
			meter.Show("deleted", gone, 0)
		})
		meter.Clear()
		if err != nil && pruned.Policy == "" {
			return nil, err
		}
		return pruned, err
	})
}

// backupExportCommand is `backup export`.
type backupExportCommand struct {
	backupFlags `embed:""`
	To          commandline.Target `name:"to" env:"-" default:"latest" help:"What to go back to: latest, revision:N, or time:T as in time:2026-11-22T12:00:00Z."`
	Generation  int                `name:"generation" env:"-" help:"Of which generation, if the newest that has it is not meant."`
	acceptance  `embed:""`
	File        string `arg:"" name:"file" help:"The snapshot's name; there must be no such file yet. One that begins with a dash comes behind --."`
}

func (c *backupExportCommand) execute(s streams) exitcode.Code {
	if err := c.To.Check(time.Now()); err != nil {
		return s.failed(fmt.Errorf("--to: %w", err), exitcode.Usage)
	}
	target := archive.Target{Revision: c.To.Revision, Time: c.To.Time, Generation: c.Generation}
	return c.run(s, func(ctx context.Context, settings backups.Settings) (document, error) {
		settings.AcceptUnsigned = c.AcceptUnsigned
		exported, err := backups.Export(ctx, settings, target, c.File, s.meter())
		return c.result(exported, err)
	})
}

// past is a command's that looks at keys as they were.
type past struct {
	AcceptUnsigned bool   `name:"accept-unsigned" env:"-" help:"Read what etcd-backup-restore left in the store, which nobody signed, although --backup-trusted-keys is given."`
	ScratchDir     string `name:"scratch-dir" env:"-" placeholder:"DIR" help:"Where there is room for the database; default is the volume of the wrapper that was asked, else the system's directory for temporary files."`
}

func targetOf(asked commandline.Target) archive.Target {
	return archive.Target{Revision: asked.Revision, Time: asked.Time}
}

// backupGetCommand is `backup get`.
type backupGetCommand struct {
	backupFlags `embed:""`
	past        `embed:""`
	At          commandline.Target `name:"at" env:"-" default:"latest" help:"When: latest, revision:N, or time:T as in time:2026-11-22T12:00:00Z, time:\"2026-11-22 12:00\" or time:-15m."`
	Generation  int                `name:"generation" env:"-" help:"Of which generation, if the newest that has it is not meant."`
	Prefix      bool               `name:"prefix" env:"-" help:"All keys that begin with KEY."`
	Script      bool               `name:"script" env:"-" help:"Print commands of a shell that put the keys back, without their leases."`
	Key         string             `arg:"" name:"key" help:"The key. One that begins with a dash comes behind --."`
}

func (c *backupGetCommand) execute(s streams) exitcode.Code {
	if err := c.At.Check(time.Now()); err != nil {
		return s.failed(fmt.Errorf("--at: %w", err), exitcode.Usage)
	}
	form := backups.Form(c.Output)
	switch {
	case c.Script:
		form = backups.AsScript
	case form == backups.AsText && s.shown:
		form = backups.AsShown
	}
	return c.run(s, func(ctx context.Context, settings backups.Settings) (document, error) {
		settings.AcceptUnsigned = c.AcceptUnsigned
		target := targetOf(c.At)
		target.Generation = c.Generation
		selected := backups.Selection{Key: c.Key, Prefix: c.Prefix}
		return nil, backups.Get(ctx, settings, target, selected, form, scratch(c.ScratchDir, settings), s.out, s.meter())
	})
}

// backupDiffCommand is `backup diff`.
type backupDiffCommand struct {
	backupFlags `embed:""`
	past        `embed:""`
	From        commandline.Target `name:"from" env:"-" required:"" help:"Since when: revision:N, or time:T as in time:2026-11-22T12:00:00Z, time:\"2026-11-22 12:00\" or time:-15m."`
	To          commandline.Target `name:"to" env:"-" default:"latest" help:"Until when, in the same words, or latest."`
	Prefix      string             `name:"prefix" env:"-" help:"Only keys that begin so."`
}

func (c *backupDiffCommand) execute(s streams) exitcode.Code {
	for flag, target := range map[string]commandline.Target{"--from": c.From, "--to": c.To} {
		if err := target.Check(time.Now()); err != nil {
			return s.failed(fmt.Errorf("%s: %w", flag, err), exitcode.Usage)
		}
	}
	return c.run(s, func(ctx context.Context, settings backups.Settings) (document, error) {
		settings.AcceptUnsigned = c.AcceptUnsigned
		between := backups.Between{From: targetOf(c.From), To: targetOf(c.To)}
		return nil, backups.Diff(ctx, settings, between, c.Prefix, backups.Form(c.Output), scratch(c.ScratchDir, settings), s.out, s.meter())
	})
}

// backupCopyCommand is `backup copy`.
type backupCopyCommand struct {
	backupFlags `embed:""`
	ToStore     string        `name:"to-store" env:"-" required:"" placeholder:"URL" help:"The other place, as --backup-store names one."`
	Follow      time.Duration `name:"follow" env:"-" help:"Go on until SIGTERM or Ctrl-C, and look for what is new after each such pause; 0 copies once."`
}

func (c *backupCopyCommand) execute(s streams) exitcode.Code {
	to, err := locate.Open(c.ToStore)
	if err != nil {
		return s.failed(fmt.Errorf("--to-store: %w", err), exitcode.Usage)
	}
	return c.run(s, func(ctx context.Context, settings backups.Settings) (document, error) {
		copied, err := backups.Copy(ctx, settings, to, c.Follow, s.meter())
		if err != nil {
			return nil, err
		}
		return copied, nil
	})
}

// acceptance is the consent to make something of backups that cannot all be read.
type acceptance struct {
	AcceptLoss     bool `name:"accept-loss" env:"-" help:"Where what was backed up last cannot be read, what can be read will do: exit with 0 and not with 70."`
	AcceptUnsigned bool `name:"accept-unsigned" env:"-" help:"Read what etcd-backup-restore left in the store, which nobody signed, although --backup-trusted-keys is given."`
}

// result is a document if something was made, and the error, unless it is one that was agreed to.
func (a acceptance) result(made document, err error) (document, error) {
	switch {
	case err == nil:
		return made, nil
	case !errors.Is(err, backups.ErrIncomplete):
		return nil, err
	case a.AcceptLoss:
		return made, nil
	default:
		return made, err
	}
}

// backupNowCommand is `backup now`, for which the port would do.
type backupNowCommand struct {
	backupFlags `embed:""`
}

func (c *backupNowCommand) execute(s streams) exitcode.Code {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	meter := s.meter()
	made, err := backups.NewClient(uint16(c.WrapperPort)).Now(ctx, func(done, total int64) { meter.Show("uploaded", done, total) })
	meter.Clear()
	if err != nil {
		return s.failed(err, backupStatus(err))
	}
	return s.conclude(c.output, made, nil)
}

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
		dir := scratch(c.ScratchDir, settings)
		restore := s.meter().Following(filepath.Join(dir, "db"), verifyBackupInChild(settings.Flags, dir))
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
func scratch(dir string, settings backups.Settings) string {
	dir = cmp.Or(dir, settings.VolumeDir, os.TempDir())
	return filepath.Join(dir, verifyDir+"-"+strconv.Itoa(os.Getpid()))
}
