package runtime

import (
	"fmt"
	"time"

	"etcd-wrapper/readiness/status"
	"etcd-wrapper/readiness/status/terminal"
	"etcd-wrapper/recovery"
)

// recoveryStatus returns the status of recovery, or nil if there is nothing to report.
func (r *Runtime) recoveryStatus() *status.Recovery {
	if r.parts.Recovery == nil {
		return nil
	}
	progress := r.parts.Recovery.Progress()
	if progress.State == "" || progress.State == recovery.Ready && !progress.Restores() && !progress.Warning && !r.isUnverified(progress) {
		return nil
	}
	state := &status.Recovery{State: string(progress.State), Since: progress.Since, Reason: progress.Reason, Loss: progress.Loss}
	if progress.State == recovery.Build {
		state.RestoredBytes, state.TotalBytes, state.BytesPerSecond, state.RemainingSeconds = progress.Bytes, progress.Of, progress.Rate, progress.Left().Seconds()
	}
	return state
}

// isUnverified reports whether etcd was started without comparing its data with the store. The first backup proves
// that the data matches, because the backup writer compares the two before it makes one.
func (r *Runtime) isUnverified(progress recovery.Progress) bool {
	return progress.Uncompared && (r.parts.Backups == nil || r.parts.Backups.Facts().Writer.Revision == 0)
}

// RecoveryProgress describes what recovery is doing or waiting for, and since when. In states that take no time,
// RecoveryProgress returns an empty string.
func (r *Runtime) RecoveryProgress() string {
	if r.parts.Recovery == nil {
		return ""
	}
	return describeRecovery(r.parts.Recovery.Progress())
}

func describeRecovery(progress recovery.Progress) string {
	doing, far := status.DescribeRecovery(string(progress.State)), progress.Reason
	if doing == "" {
		return ""
	}
	if progress.State == recovery.Build && progress.Rate > 0 {
		far = fmt.Sprintf("restored %s of about %s at %s/s, %v left",
			terminal.Size(progress.Bytes), terminal.Size(progress.Of), terminal.Size(int64(progress.Rate)), terminal.Round(progress.Left()))
	}
	return fmt.Sprintf("recovery has been %s since %s: %s", doing, progress.Since.UTC().Format(time.RFC3339), far)
}
