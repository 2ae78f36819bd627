package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"etcd-wrapper/readiness/status"
)

// backup makes metrics of the document's backups. What is not known yet is absent, so that no alert takes it for 0.
type backup []backupMetric

// backupMetric is a metric with what it is; false where it is not known.
type backupMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	is   func(*status.Backup) (float64, bool)
}

func newBackup() backup {
	return slices.Concat(backupsGoOn(), backupsAreKept(), backup{
		backupGauge("spool_bytes", "What waits on the volume for the store.", func(b *status.Backup) (float64, bool) {
			return float64(b.SpoolBytes), true
		}),
		backupGauge("spool_limit_bytes", "What may wait there.", func(b *status.Backup) (float64, bool) {
			return float64(b.SpoolLimit), true
		}),
		{desc("backup_uploaded_bytes_total", "What this process has put into the store."), prometheus.CounterValue, func(b *status.Backup) (float64, bool) {
			return float64(b.UploadedBytes), true
		}},
	})
}

func backupGauge(name, help string, is func(*status.Backup) (float64, bool)) backupMetric {
	return backupMetric{desc("backup_"+name, help), prometheus.GaugeValue, is}
}

// backupsGoOn are how far the store is behind, and what is wrong.
func backupsGoOn() backup {
	return backup{
		backupGauge("behind_revisions", "Revisions that etcd has and the store has not.", func(b *status.Backup) (float64, bool) {
			return float64(b.BehindRevisions), knowsHowFar(b)
		}),
		backupGauge("behind_seconds", "How long the oldest revision that the store has not is waiting; 0 if there is none.", func(b *status.Backup) (float64, bool) {
			return b.BehindSeconds, knowsHowFar(b)
		}),
		backupGauge("revision", "The newest revision in the store.", func(b *status.Backup) (float64, bool) {
			return float64(b.Revision), b.Revision > 0
		}),
		backupGauge("writer", "1 for the member that makes the backups.", func(b *status.Backup) (float64, bool) {
			return number(b.Role == "writes"), true
		}),
		backupGauge("trouble", "1 while something keeps backups from being made, or makes them worth less.", func(b *status.Backup) (float64, bool) {
			return number(b.Trouble != nil), true
		}),
		backupGauge("next_try_timestamp_seconds", "When what went wrong is tried again, in seconds since 1970.", func(b *status.Backup) (float64, bool) {
			if b.Trouble == nil {
				return 0, false
			}
			return at(b.Trouble.NextTry)
		}),
	}
}

// knowsHowFar is so of the member that writes. One that watches has a 0, by which an alert would take a store for up to date that
// nobody reaches.
func knowsHowFar(b *status.Backup) bool { return b.Role == "writes" && b.Revision > 0 }

// backupsAreKept are what lies in the store.
func backupsAreKept() backup {
	return backup{
		backupGauge("last_full_timestamp_seconds", "When the newest full was made, in seconds since 1970.", func(b *status.Backup) (float64, bool) {
			if b.LastFull == nil {
				return 0, false
			}
			return at(b.LastFull.At)
		}),
		backupGauge("last_full_bytes", "Size of the newest full in the store.", func(b *status.Backup) (float64, bool) {
			if b.LastFull == nil {
				return 0, false
			}
			return float64(b.LastFull.Bytes), true
		}),
		backupGauge("last_verification_timestamp_seconds", "When a backup was last restored to test it, in seconds since 1970.", func(b *status.Backup) (float64, bool) {
			if b.LastVerified == nil {
				return 0, false
			}
			return at(b.LastVerified.At)
		}),
		backupGauge("last_verification_passed", "1 if the last test restore gave back what etcd had.", func(b *status.Backup) (float64, bool) {
			return number(b.LastVerified != nil && b.LastVerified.Passed), b.LastVerified != nil
		}),
		backupGauge("window_start_timestamp_seconds", "The earliest time that can be gone back to, in seconds since 1970.", func(b *status.Backup) (float64, bool) {
			if b.Window == nil {
				return 0, false
			}
			return at(b.Window.From)
		}),
		backupGauge("stored_bytes", "Size of all of the cluster's objects in the store, as of the last listing.", func(b *status.Backup) (float64, bool) {
			return float64(b.StoredBytes), b.StoredBytes > 0
		}),
	}
}

func at(t time.Time) (float64, bool) { return float64(t.UnixMilli()) / 1000, !t.IsZero() }

func (all backup) describe(to chan<- *prometheus.Desc) {
	for _, metric := range all {
		to <- metric.desc
	}
}

func (all backup) collect(b *status.Backup, to chan<- prometheus.Metric) {
	if b == nil {
		return
	}
	for _, metric := range all {
		if is, known := metric.is(b); known {
			to <- prometheus.MustNewConstMetric(metric.desc, metric.kind, is)
		}
	}
}
