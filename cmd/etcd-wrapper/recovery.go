package main

import (
	"context"
	"errors"

	"github.com/rs/zerolog"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/backup"
	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/recovery"
	"etcd-wrapper/bootstrap/standalone"
	"etcd-wrapper/cmd/backups"
)

// recovery returns what brings data back that are broken or lost; nil without a store.
func (c *startCommand) recovery(settings backups.Settings, kept *backup.Backups, log zerolog.Logger) *recovery.Recovery {
	if settings.Store == nil {
		return nil
	}
	return recovery.New(recovery.Options{
		Archive: settings.Archive(), VolumeDir: c.VolumeDir, Never: c.Recovery.Recover == "never", Request: c.request(),
		Validate: validate(), Inspect: inspectInChild(), Flush: flusher(kept), FlushSpool: kept.FlushSpool, Log: log,
	})
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
func flusher(kept *backup.Backups) func(context.Context, string, datadir.Standing) error {
	return func(ctx context.Context, dataDir string, stands datadir.Standing) error {
		return kept.FlushAtRest(ctx, dataDir, stands.MemberID, stands.ClusterID)
	}
}

// recovers is how the stand-in for the sidecar asks for it; nil if there is none.
func recovers(by *recovery.Recovery) standalone.RecoverFunc {
	if by == nil {
		return nil
	}
	return func(ctx context.Context, yaml []byte, dataDir string, examine func(context.Context) error) error {
		member, err := recovery.MemberOf(yaml, dataDir)
		switch {
		case errors.Is(err, bootstrap.ErrCertificates):
			return err // they are being replaced, perhaps
		case err != nil:
			return examine(ctx) // etcd will not be started with it, and the lifecycle says why
		}
		return by.Run(ctx, member, examine)
	}
}
