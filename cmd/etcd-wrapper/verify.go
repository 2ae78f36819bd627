package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/backup/rebuild"
	"etcd-wrapper/bootstrap/standalone"
	"etcd-wrapper/cmd/backups"
	"etcd-wrapper/exitcode"
)

// verifyCommand is the process of its own that a validation runs in: etcd's and bbolt's checks may panic on corrupt
// data, in goroutines of theirs.
type verifyCommand struct {
	DataDir string `name:"data-dir" env:"-" required:"" help:"etcd's data directory."`
	Mode    string `name:"mode" env:"-" enum:"sanity,full" default:"full" help:"How deeply to validate."`
}

func (c *verifyCommand) execute(s streams) exitcode.Code {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return exitcode.Code(standalone.RunChild(ctx, filepath.Clean(c.DataDir), bootstrap.Mode(c.Mode), s.out))
}

func verifyInChild() standalone.VerifyFunc {
	executable, err := os.Executable()
	if err != nil {
		return nil // validate in this process then
	}
	return standalone.InChild(executable, func(dataDir string, mode bootstrap.Mode) []string {
		return []string{"verify-data", "--data-dir", dataDir, "--mode", string(mode)}
	})
}

// inspectCommand is the process of its own in which a database of a backup is opened for the first time.
type inspectCommand struct {
	Database string `arg:"" name:"database" help:"The database's file."`
}

func (c *inspectCommand) execute(streams) exitcode.Code {
	rebuild.Inspect(c.Database)
	return exitcode.Clean
}

func inspectInChild() backups.Inspect {
	executable, err := os.Executable()
	if err != nil {
		return nil
	}
	return rebuild.InspectInChild(executable, func(path string) []string { return []string{"inspect-database", path} })
}
