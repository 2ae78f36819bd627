package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/cmd/backups"
	"etcd-wrapper/readiness/metrics"
	"etcd-wrapper/recovery"
	"etcd-wrapper/recovery/peers"
)

// recovery returns what brings data back that are broken or lost, from a store or from other members; nil with a sidecar, which
// owns that.
func (c *startCommand) recovery(settings backups.Settings, kept *backup.Backups, died func() string, counts *metrics.Metrics, log zerolog.Logger) *recovery.Recovery {
	if !c.Standalone {
		return nil
	}
	options := recovery.Options{
		Config:    c.etcdConfig(),
		VolumeDir: c.VolumeDir, Never: c.Recovery.Recover == "never", Request: c.request(), Validate: verifyInChild(), Inspect: inspectInChild(), Log: log,
		Died:  died,
		Ended: func(o recovery.Outcome) { counts.Recovered(o.Cause, o.Ended, o.Lost) },
		Reach: peers.OptionsOf(c.EtcdCertPath, c.EtcdKeyPath),
	}
	if settings.Store != nil {
		options.Owner, options.Adopt = c.Recovery.Owner, c.Recovery.Adopt
		options.Archive, options.Flush, options.FlushSpool = settings.Archive(), flusher(kept), spoolFlusher(kept)
		options.SpoolDir = filepath.Join(c.VolumeDir, spoolDir)
	}
	return recovery.New(options)
}

// etcdConfig is where the configuration comes from that etcd is started with.
func (c *startCommand) etcdConfig() etcdconf.Source {
	return etcdconf.Source{File: c.EtcdConfigFile, DataDir: c.DataDir(), PodName: podName(), Namespace: os.Getenv("POD_NAMESPACE")}
}

// request is the restore that is asked for; nil if none is.
func (c *startCommand) request() *recovery.Request {
	if c.Recovery.RestoreTo == "" {
		return nil
	}
	target, _ := c.Recovery.Target() // the command line was checked
	return &recovery.Request{Target: archive.Target{Revision: target.Revision, Time: target.Time}, ID: c.Recovery.RestoreID}
}

// flusher brings into the store what a database has that no etcd has open.
func flusher(kept *backup.Backups) func(context.Context, string, datadir.Position) error {
	return func(ctx context.Context, dataDir string, stands datadir.Position) error {
		return kept.FlushAtRest(ctx, dataDir, stands.MemberID, stands.ClusterID)
	}
}

// spoolFlusher brings into the store what waits for it.
func spoolFlusher(kept *backup.Backups) func(context.Context, archive.Identity, int64) error {
	return kept.FlushSpool
}
