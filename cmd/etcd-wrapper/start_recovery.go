package main

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/rs/zerolog"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/cmd/backups"
	"etcd-wrapper/recovery"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/recovery/standalone"
)

// recovery returns what brings data back that are broken or lost, from a store or from other members; nil with a sidecar, which
// owns that.
func (c *startCommand) recovery(settings backups.Settings, kept *backup.Backups, log zerolog.Logger) *recovery.Recovery {
	if !c.Standalone {
		return nil
	}
	options := recovery.Options{
		VolumeDir: c.VolumeDir, Never: c.Recovery.Recover == "never", Request: c.request(), Validate: validate(), Inspect: inspectInChild(), Log: log,
	}
	if settings.Store != nil {
		options.Archive, options.Flush, options.FlushSpool = settings.Archive(), flusher(kept), spoolFlusher(kept)
		options.SpoolDir = filepath.Join(c.VolumeDir, spoolDir)
	}
	return recovery.New(options)
}

// request is the restore that is asked for; nil if none is.
func (c *startCommand) request() *recovery.Request {
	if c.Recovery.RestoreTo == "" {
		return nil
	}
	target, _ := c.Recovery.Target() // the command line was checked
	return &recovery.Request{Target: archive.Target{Revision: target.Revision, Time: target.Time}, ID: c.Recovery.RestoreID}
}

// validate judges what was restored as any data directory.
func validate() standalone.VerifyFunc {
	if inChild := verifyInChild(); inChild != nil {
		return inChild
	}
	return datadir.Verify
}

// flusher brings into the store what a database has that no etcd has open.
func flusher(kept *backup.Backups) func(context.Context, string, datadir.Position) error {
	return func(ctx context.Context, dataDir string, stands datadir.Position) error {
		return kept.FlushAtRest(ctx, dataDir, stands.MemberID, stands.ClusterID)
	}
}

// spoolFlusher brings into the store what waits for it.
func spoolFlusher(kept *backup.Backups) func(context.Context, datadir.Position) error {
	return func(ctx context.Context, stands datadir.Position) error {
		return kept.FlushSpool(ctx, stands.ClusterID, stands.HighestRevision)
	}
}

// recovers is how the stand-in for the sidecar asks for it; nil if there is none.
func (c *startCommand) recovers(by *recovery.Recovery) standalone.RecoverFunc {
	if by == nil {
		return nil
	}
	return func(ctx context.Context, yaml []byte, dataDir string, examine func(context.Context) error) ([]byte, error) {
		checked, err := etcdconf.Parse(yaml)
		switch {
		case errors.Is(err, bootstrap.ErrCertificates):
			return yaml, err // they are being replaced, perhaps
		case err != nil:
			return yaml, examine(ctx) // etcd will not be started with it, and the lifecycle says why
		}
		others, err := peers.Of(checked.Etcd, peers.OptionsOf(c.EtcdCertPath, c.EtcdKeyPath))
		if err != nil {
			return yaml, err
		}
		member := recovery.MemberOf(checked, dataDir)
		if others != nil {
			defer others.Close()
			member.Peers = others
		}
		start, err := by.Run(ctx, member, examine)
		if err != nil || start.InitialCluster == "" {
			return yaml, err
		}
		return etcdconf.Joining(yaml, start.InitialCluster)
	}
}
