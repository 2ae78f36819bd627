package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/backup/store/locate"
	"etcd-wrapper/cmd/backups"
	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/exitcode"
)

// backupCommand groups the backup commands.
type backupCommand struct {
	List   backupListCommand   `cmd:"" name:"list" help:"List the backups: full snapshots, restore points and the latest restore test."`
	Now    backupNowCommand    `cmd:"" name:"now" help:"Make the wrapper on this host take a full snapshot, and wait until it is uploaded."`
	Verify backupVerifyCommand `cmd:"" name:"verify" help:"Test a backup by restoring it, and record the result."`
	Export backupExportCommand `cmd:"" name:"export" help:"Export a revision as a stock etcd snapshot for etcdutl snapshot restore."`
	Get    backupGetCommand    `cmd:"" name:"get" help:"Print a key, or all keys with a prefix, as of a revision or time."`
	Diff   backupDiffCommand   `cmd:"" name:"diff" help:"List the keys that changed between two revisions or times."`
	Copy   backupCopyCommand   `cmd:"" name:"copy" help:"Copy the store to another location, once or continuously."`
	Prune  backupPruneCommand  `cmd:"" name:"prune" help:"Delete backups that --backup-keep no longer requires."`
}

// storeCommand holds the flags that are common to all commands that access a store. The flags are named like those of
// start-etcd, so they can be set by the environment variables of a pod.
type storeCommand struct {
	commandline.StoreFlags `embed:""`
	WrapperPort            commandline.Port `name:"etcd-wrapper-port" aliases:"port" default:"9095" help:"Without --backup-store: use the store of the wrapper on this port of this host. Alias: --port."`
	output                 `embed:""`
}

// run opens the store, calls do, and prints the result and the error. own holds the flags that are specific to some
// commands.
func (f *storeCommand) run(s streams, own commandline.Backups, do func(context.Context, backups.Settings) (document, error)) exitcode.Code {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	own.StoreFlags = f.StoreFlags
	settings, err := backups.Find(ctx, own, uint16(f.WrapperPort))
	if err != nil {
		return s.failed(err, exitcode.Usage)
	}
	settings.Inspect = inspectInChild()
	result, err := do(ctx, settings)
	if err != nil && ctx.Err() != nil {
		return s.failed(errInterrupted, exitcode.CutShort)
	}
	return s.finish(f.output, result, err)
}

// backupListCommand implements `backup list`.
type backupListCommand struct {
	storeCommand `embed:""`
	Verbose      bool `name:"verbose" env:"-" short:"v" help:"Show the object names of full snapshots."`
}

func (c *backupListCommand) execute(s streams) exitcode.Code {
	return c.run(s, commandline.Backups{}, func(ctx context.Context, settings backups.Settings) (document, error) {
		overview, err := backups.List(ctx, settings, time.Now())
		if err != nil && !errors.Is(err, backups.ErrEmpty) {
			return nil, err
		}
		if c.Verbose {
			overview = overview.WithNames()
		}
		return overview, err
	})
}

// backupPruneCommand implements `backup prune`.
type backupPruneCommand struct {
	storeCommand          `embed:""`
	commandline.KeepFlags `embed:""`
	DryRun                bool `name:"dry-run" env:"-" help:"Show what would be deleted and why, without deleting anything."`
}

func (c *backupPruneCommand) execute(s streams) exitcode.Code {
	return c.run(s, commandline.Backups{KeepFlags: c.KeepFlags}, func(ctx context.Context, settings backups.Settings) (document, error) {
		meter, deleted := s.meter(), int64(0)
		pruned, err := backups.Prune(ctx, settings, c.DryRun, func(item retention.Item) {
			deleted += item.Bytes
			meter.Show("deleted", deleted, 0)
		})
		meter.Clear()
		if err != nil && pruned.Policy == "" {
			return nil, err
		}
		return pruned, err
	})
}

// backupExportCommand implements `backup export`.
type backupExportCommand struct {
	storeCommand `embed:""`
	To           commandline.Target     `name:"to" env:"-" default:"latest" help:"State to export: latest, revision:N, time:2026-11-22T12:00:00Z or time:-15m."`
	Generation   commandline.Generation `name:"generation" env:"-" help:"Generation to use. Defaults to the newest one that contains the requested state."`
	acceptFlags  `embed:""`
	File         string `arg:"" name:"file" help:"File to create. It must not exist. Put -- before a name that starts with a dash."`
}

func (c *backupExportCommand) execute(s streams) exitcode.Code {
	if c.File == "-" {
		return s.failed(errors.New("<file>: cannot write a snapshot to standard output; use ./- for a file named -"), exitcode.Usage)
	}
	if err := checkDirectory("<file>", filepath.Dir(c.File)); err != nil {
		return s.failed(err, exitcode.Usage)
	}
	return c.run(s, commandline.Backups{}, func(ctx context.Context, settings backups.Settings) (document, error) {
		settings.AcceptUnsigned = c.accepts("unsigned")
		exported, err := backups.Export(ctx, settings, targetIn(c.Generation, &c.To), c.File, s.meter())
		return c.result(exported, err)
	})
}

// checkDirectory returns an error if a directory does not exist. Creating it could hide a typo in its path.
func checkDirectory(flag, dir string) error {
	switch info, err := os.Stat(dir); {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s: the directory %s does not exist; create it, or correct the path", flag, dir)
	case err != nil:
		return fmt.Errorf("%s: %w", flag, err)
	case !info.IsDir():
		return fmt.Errorf("%s: %s is not a directory", flag, dir)
	}
	return nil
}

// runInScratch is like run, but also passes a temporary directory to do, in which the command can rebuild a database.
func (f *storeCommand) runInScratch(s streams, own commandline.Backups, do func(context.Context, backups.Settings, string) (document, error)) exitcode.Code {
	return f.run(s, own, func(ctx context.Context, settings backups.Settings) (document, error) {
		dir := cmp.Or(os.Getenv("TMPDIR"), settings.VolumeDir, os.TempDir())
		if err := checkDirectory("TMPDIR", dir); err != nil {
			return nil, &exitcode.FinalError{Status: exitcode.Usage, Err: err}
		}
		return do(ctx, settings, filepath.Join(dir, verifyDir+"-"+strconv.Itoa(os.Getpid())))
	})
}

// backupGetCommand implements `backup get`.
type backupGetCommand struct {
	storeCommand `embed:""`
	Accept       []string               `name:"accept" env:"-" enum:"unsigned" help:"unsigned: read backups made by etcd-backup-restore, which are never signed, even if --backup-trusted-keys is set."`
	At           commandline.Target     `name:"at" env:"-" default:"latest" help:"State to read: latest, revision:N, time:2026-11-22T12:00:00Z, time:\"2026-11-22 12:00\" or time:-15m."`
	Generation   commandline.Generation `name:"generation" env:"-" help:"Generation to use. Defaults to the newest one that contains the requested state."`
	Prefix       bool                   `name:"prefix" env:"-" help:"Print all keys that start with KEY."`
	Script       bool                   `name:"script" env:"-" help:"Print shell commands that write the keys again, without their leases."`
	Key          string                 `arg:"" name:"key" help:"Key to read. Put -- before a key that starts with a dash."`
}

func (c *backupGetCommand) execute(s streams) exitcode.Code {
	form := backups.Form(c.Output)
	switch {
	case c.Script:
		form = backups.AsScript
	case form == backups.AsText && s.shown:
		form = backups.AsShown
	}
	return c.runInScratch(s, commandline.Backups{}, func(ctx context.Context, settings backups.Settings, scratch string) (document, error) {
		settings.AcceptUnsigned = len(c.Accept) > 0
		return nil, backups.Get(ctx, settings, targetIn(c.Generation, &c.At), backups.Selection{Key: c.Key, Prefix: c.Prefix}, form, scratch, s.out, s.meter())
	})
}

// backupDiffCommand implements `backup diff`.
type backupDiffCommand struct {
	storeCommand `embed:""`
	Accept       []string           `name:"accept" env:"-" enum:"unsigned" help:"unsigned: read backups made by etcd-backup-restore, which are never signed, even if --backup-trusted-keys is set."`
	From         commandline.Target `name:"from" env:"-" required:"" help:"State to compare from: revision:N, time:2026-11-22T12:00:00Z, time:\"2026-11-22 12:00\" or time:-15m."`
	To           commandline.Target `name:"to" env:"-" default:"latest" help:"State to compare to: latest, or a state in the same format as --from."`
	Prefix       string             `name:"prefix" env:"-" help:"List only the keys with this prefix."`
}

func (c *backupDiffCommand) execute(s streams) exitcode.Code {
	return c.runInScratch(s, commandline.Backups{}, func(ctx context.Context, settings backups.Settings, scratch string) (document, error) {
		settings.AcceptUnsigned = len(c.Accept) > 0
		between := backups.Range{From: archive.Target(c.From), To: archive.Target(c.To)}
		return nil, backups.Diff(ctx, settings, between, c.Prefix, backups.Form(c.Output), scratch, s.out, s.meter())
	})
}

// backupCopyCommand implements `backup copy`.
type backupCopyCommand struct {
	storeCommand `embed:""`
	ToStore      string        `name:"to-store" env:"-" required:"" placeholder:"URL" help:"URL of the copy, in the same format as --backup-store."`
	Follow       time.Duration `name:"follow" env:"-" help:"Keep copying new objects at this interval until SIGTERM or Ctrl-C. 0 copies once."`
}

func (c *backupCopyCommand) execute(s streams) exitcode.Code {
	if c.Follow < 0 {
		return s.failed(fmt.Errorf("--follow must not be negative: %s", c.Follow), exitcode.Usage)
	}
	to, err := locate.Open(c.ToStore)
	if err != nil {
		return s.failed(errors.New("--to-store"+strings.TrimPrefix(err.Error(), "--backup-store")), exitcode.Usage)
	}
	return c.run(s, commandline.Backups{}, func(ctx context.Context, settings backups.Settings) (document, error) {
		copied, err := backups.Copy(ctx, settings, to, c.Follow, s.meter())
		if err != nil {
			return nil, err
		}
		return copied, nil
	})
}

// acceptFlags holds the flag with which the user accepts incomplete or unsigned backups.
type acceptFlags struct {
	Accept []string `name:"accept" env:"-" enum:"loss,unsigned" help:"loss: if the latest backups cannot be read, use the latest readable revision and exit with 0 instead of 70. unsigned: read backups made by etcd-backup-restore, which are never signed, even if --backup-trusted-keys is set."`
}

func (a acceptFlags) accepts(what string) bool { return slices.Contains(a.Accept, what) }

// result returns the document and the error that a command prints: both if the backups are incomplete, only the
// document if the user has accepted that, and only the error in all other cases.
func (a acceptFlags) result(made document, err error) (document, error) {
	switch {
	case err == nil:
		return made, nil
	case !errors.Is(err, backups.ErrIncomplete):
		return nil, err
	case a.accepts("loss"):
		return made, nil
	default:
		return made, err
	}
}

// backupNowCommand implements `backup now`.
type backupNowCommand struct {
	wrapperPort `embed:""`
	output      `embed:""`
}

func (c *backupNowCommand) execute(s streams) exitcode.Code {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	meter := s.meter()
	made, err := backups.NewClient(uint16(c.WrapperPort)).Now(ctx, func(done, total int64) { meter.Show("uploaded", done, total) })
	meter.Clear()
	if err != nil && ctx.Err() != nil {
		return s.failed(errors.New("interrupted; the wrapper may still finish the backup"), exitcode.CutShort)
	}
	if err != nil {
		return s.failed(err, backupStatus(err))
	}
	return s.finish(c.output, made, nil)
}

// backupVerifyCommand implements `backup verify`.
type backupVerifyCommand struct {
	storeCommand             `embed:""`
	commandline.SigningFlags `embed:""`
	To                       *commandline.Target    `name:"to" env:"-" placeholder:"TARGET" help:"State to restore: latest, revision:N or time:T. By default, the newest full snapshot is restored without the segments that follow it."`
	Generation               commandline.Generation `name:"generation" env:"-" help:"Generation to use. Defaults to the newest one or, if --to is set, the newest one that contains the requested state."`
}

func (c *backupVerifyCommand) execute(s streams) exitcode.Code {
	own := commandline.Backups{SigningFlags: c.SigningFlags}
	return c.runInScratch(s, own, func(ctx context.Context, settings backups.Settings, dir string) (document, error) {
		restore := s.meter().TrackRestore(filepath.Join(dir, "db"), verifyBackupInChild(settings.Flags, dir))
		verified, err := backups.Verify(ctx, settings, backups.Selector{Target: targetIn(c.Generation, c.To), Full: c.To == nil}, restore)
		if verified.Full == "" {
			return nil, err
		}
		return verified, err
	})
}

// targetIn returns a target within a generation. If the target is nil, it selects the latest state.
func targetIn(generation commandline.Generation, target *commandline.Target) archive.Target {
	if target == nil {
		return archive.Target{Generation: int(generation)}
	}
	within := archive.Target(*target)
	within.Generation = int(generation)
	return within
}
