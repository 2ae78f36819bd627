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
	is := r.parts.Recovery.Progress()
	if is.State == "" || is.State == recovery.Ready && !is.Restores() && !is.Warning && !r.isUnverified(is) {
		return nil
	}
	state := &status.Recovery{State: string(is.State), Since: is.Since, Reason: is.Reason, Loss: is.Loss}
	if is.State == recovery.Build {
		state.RestoredBytes, state.TotalBytes, state.BytesPerSecond, state.RemainingSeconds = is.Bytes, is.Of, is.Rate, is.Left().Seconds()
	}
	return state
}

// isUnverified reports whether etcd was started without comparing its data with the store. The first backup proves
// that the data matches, because the backup writer compares the two before it makes one.
func (r *Runtime) isUnverified(is recovery.Progress) bool {
	return is.Uncompared && (r.parts.Backups == nil || r.parts.Backups.Facts().Writer.Revision == 0)
}

// RecoveryProgress describes what recovery is doing or waiting for, and since when. In states that take no time,
// RecoveryProgress returns an empty string.
func (r *Runtime) RecoveryProgress() string {
	if r.parts.Recovery == nil {
		return ""
	}
	return describeRecovery(r.parts.Recovery.Progress())
}

func describeRecovery(is recovery.Progress) string {
	doing, far := status.DescribeRecovery(string(is.State)), is.Reason
	if doing == "" {
		return ""
	}
	if is.State == recovery.Build && is.Rate > 0 {
		far = fmt.Sprintf("restored %s of about %s at %s/s, %v left",
			terminal.Size(is.Bytes), terminal.Size(is.Of), terminal.Size(int64(is.Rate)), terminal.Round(is.Left()))
	}
	return fmt.Sprintf("recovery has been %s since %s: %s", doing, is.Since.UTC().Format(time.RFC3339), far)
}
