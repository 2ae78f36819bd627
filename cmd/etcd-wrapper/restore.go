package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"path/filepath"
	"syscall"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/cmd/backups"
	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/recovery"
	"etcd-wrapper/recovery/seed"
)

// restoreCommand implements `restore`.
type restoreCommand struct {
	storeCommand   `embed:""`
	To             commandline.Target `name:"to" env:"-" default:"latest" help:"State to restore: latest, revision:N, time:2026-11-22T12:00:00Z or time:-15m."`
	acceptFlags    `embed:""`
	Snapshot       string `name:"snapshot" env:"-" placeholder:"FILE" help:"Restore from this stock etcd snapshot instead of a store."`
	DataDir        string `name:"data-dir" env:"-" required:"" placeholder:"DIR" help:"Data directory to create. It must be empty or not exist."`
	EtcdConfigFile string `name:"etcd-config-file" env:"-" placeholder:"PATH" help:"Read etcd's configuration from this file. If not set, restore a single member on loopback."`
	Token          string `name:"token" env:"-" help:"Token of the restored cluster. Members that restore the same revision separately need the same token, which no other cluster may have used. Defaults to a random token."`
}

func (c *restoreCommand) execute(s streams) exitcode.Code {
	s.command = "restore"
	plan, err := c.plan()
	if err != nil {
		return s.failed(err, exitcode.Usage)
	}
	if c.Snapshot == "" {
		return c.run(s, commandline.Backups{}, func(ctx context.Context, settings backups.Settings) (document, error) {
			settings.AcceptUnsigned = c.accepts("unsigned")
			restored, err := backups.Restore(ctx, settings, archive.Target(c.To), plan, s.meter())
			return c.result(restored, err)
		})
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	restored, err := backups.RestoreSnapshot(ctx, c.Snapshot, plan, inspectInChild(), s.meter())
	made, err := c.result(restored, err)
	return s.finish(c.output, made, err)
}

// plan describes the data directory to build. The error names the flag that is invalid.
func (c *restoreCommand) plan() (seed.Seed, error) {
	if c.Snapshot != "" && (c.Store != "" || c.To != (commandline.Target{})) {
		return seed.Seed{}, errors.New("--snapshot cannot be combined with --backup-store or --to: a snapshot has only one revision")
	}
	dir, err := filepath.Abs(c.DataDir)
	if err != nil {
		return seed.Seed{}, fmt.Errorf("--data-dir: %w", err)
	}
	if err := checkDirectory("--data-dir", filepath.Dir(dir)); err != nil {
		return seed.Seed{}, err
	}
	config, err := etcdconf.Source{File: c.EtcdConfigFile, DataDir: dir}.Load()
	if err != nil {
		return seed.Seed{}, fmt.Errorf("--etcd-config-file: %w", err)
	}
	token := c.Token
	if token == "" {
		token = seed.NewToken()
	}
	plan, err := recovery.SeedOf(config.YAML, dir, token)
	if err != nil {
		return seed.Seed{}, fmt.Errorf("--etcd-config-file: %w", err)
	}
	return plan, nil
}
