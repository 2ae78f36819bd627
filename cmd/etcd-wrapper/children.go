package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/restore/verification"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/cmd/backups"
	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/internal/printable"
)

// The hidden commands in this file are run as child processes of this program. Some need a process of their own
// because etcd and bbolt may panic on damaged data in goroutines whose panics cannot be recovered, others because
// they must run at a low priority.

// verifyCommand validates a data directory. start-etcd runs it with -o json as a child process.
type verifyCommand struct {
	output  `embed:""`
	DataDir string `name:"data-dir" env:"-" required:"" help:"Data directory to validate."`
	Mode    string `name:"mode" env:"-" enum:"sanity,full" default:"full" help:"Depth of the validation: sanity or full."`
}

func (c *verifyCommand) execute(s streams) exitcode.Code {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if _, err := os.Stat(c.DataDir); errors.Is(err, fs.ErrNotExist) {
		return s.logError("the data directory does not exist", err, exitcode.Usage)
	}
	switch empty := datadir.IsEmpty(c.DataDir); {
	case empty && c.json():
		_, _ = fmt.Fprintln(s.out, `{"valid":true,"empty":true}`) // fails if the reader has exited
		return exitcode.Clean
	case empty:
		_, _ = fmt.Fprintln(s.out, c.DataDir+" is empty") // fails if the reader has exited
		return exitcode.Clean
	case c.json():
		return exitcode.Code(datadir.RunValidation(ctx, filepath.Clean(c.DataDir), bootstrap.Mode(c.Mode), s.out))
	}
	warnings, err := verifyInChild()(ctx, c.DataDir, bootstrap.Mode(c.Mode))
	for _, warning := range warnings {
		_, _ = fmt.Fprintln(s.out, "warning: "+printable.Line(warning)) // fails if the reader has exited
	}
	if err != nil {
		return s.logError(c.DataDir+" is not valid", err, exitcode.ToolFailed)
	}
	_, _ = fmt.Fprintln(s.out, c.DataDir+" is valid") // fails if the reader has exited
	return exitcode.Clean
}

// self returns the path of this program's executable.
func self() string {
	path, err := os.Executable()
	if err != nil { // for example if /proc is not mounted
		return os.Args[0]
	}
	return path
}

func verifyInChild() datadir.Validation {
	verify := datadir.ValidateInChild(self(), func(dataDir string, mode bootstrap.Mode) []string {
		return []string{"verify-data", "--data-dir", dataDir, "--mode", string(mode), "-o", "json"}
	})
	return func(ctx context.Context, dataDir string, mode bootstrap.Mode) ([]string, error) {
		if _, err := os.Lstat(dataDir); errors.Is(err, fs.ErrNotExist) {
			return nil, nil // the member is new
		}
		return verify(ctx, dataDir, mode)
	}
}

// inspectCommand is the child process in which the database of a backup is opened for the first time.
type inspectCommand struct {
	Database string `arg:"" name:"database" help:"Path of the database file."`
}

func (c *inspectCommand) execute(streams) exitcode.Code {
	restore.Inspect(c.Database)
	return exitcode.Clean
}

func inspectInChild() backups.Inspect {
	return restore.InspectInChild(self(), inspectArgs)
}

// inspectArgs returns the arguments of inspectCommand.
func inspectArgs(path string) []string { return []string{"inspect-database", "--", path} }

// verifyBackupCommand is the child process that runs a restore test at a low priority. If it panics, the restore test
// has failed.
type verifyBackupCommand struct {
	commandline.StoreFlags `embed:""`
	Generation             int    `name:"generation" env:"-" required:"" help:"Generation of the full snapshot."`
	Full                   string `name:"full" env:"-" required:"" help:"Name of the full snapshot."`
	Revision               int64  `name:"revision" env:"-" required:"" help:"Revision to restore."`
	Scratch                string `name:"scratch" env:"-" required:"" help:"Temporary directory, which is emptied first and removed at the end."`
}

func (c *verifyBackupCommand) execute(s streams) exitcode.Code {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	settings, err := backups.Read(commandline.Backups{StoreFlags: c.StoreFlags})
	if err != nil {
		return s.failed(err, exitcode.Usage)
	}
	job := verification.Job{Generation: c.Generation, Full: c.Full, Revision: c.Revision}
	return exitcode.Code(verification.RunChild(ctx, settings.Archive(), job, c.Scratch, s.out))
}

// verifyBackupInChild returns a function that runs verifyBackupCommand with the flags of a store. While the function
// runs, no other process may use scratch.
func verifyBackupInChild(flags commandline.StoreFlags, scratch string) backups.RestoreFunc {
	return verification.InChild(self(), func(job verification.Job) []string {
		return append([]string{
			"verify-backup", "--generation", strconv.Itoa(job.Generation), "--full", job.Full, "--revision", strconv.FormatInt(job.Revision, 10),
			"--scratch", scratch,
		}, flags.Reading()...)
	})
}
