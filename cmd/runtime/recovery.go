package runtime

import (
	"fmt"
	"slices"
	"time"

	"etcd-wrapper/readiness/status"
	"etcd-wrapper/readiness/status/terminal"
	"etcd-wrapper/recovery"
)

// recoveryStatus returns the state of a recovery; nil if there is nothing to report.
func (r *Runtime) recoveryStatus() *status.Recovery {
	if r.parts.Recovery == nil {
		return nil
	}
	is := r.parts.Recovery.Progress()
	if is.State == "" || is.State == recovery.Ready && !is.Restores() && !is.Warning && !r.isUnverified(is) {
		return nil
	}
	told := &status.Recovery{State: string(is.State), Since: is.Since, Reason: is.Reason, Loss: is.Loss}
	if is.State == recovery.Build {
		told.RestoredBytes, told.TotalBytes, told.BytesPerSecond, told.RemainingSeconds = is.Bytes, is.Of, is.Rate, is.Left().Seconds()
	}
	return told
}

// isUnverified reports whether etcd was started without an answer from the store. The backup writer compares the data
// first, so backups that were made since prove them.
func (r *Runtime) isUnverified(is recovery.Progress) bool {
	return is.Uncompared && (r.parts.Backups == nil || r.parts.Backups.Facts().Shipped.Stored == 0)
}

// lasting lists the states of recovery that may take long.
var lasting = []recovery.State{
	recovery.AskPeers, recovery.AskStore, recovery.Flush, recovery.Build, recovery.Prove, recovery.Claim,
}

// RecoveryProgress describes what recovery waits for or how far it is, and since when; empty in states that take no time.
func (r *Runtime) RecoveryProgress() string {
	if r.parts.Recovery == nil {
		return ""
	}
	return describeRecovery(r.parts.Recovery.Progress())
}

func describeRecovery(is recovery.Progress) string {
	if !slices.Contains(lasting, is.State) {
		return ""
	}
	far := is.Reason
	if is.State == recovery.Build && is.Rate > 0 {
		far = fmt.Sprintf("%s of about %s are restored, %s/s, %v left",
			terminal.Size(is.Bytes), terminal.Size(is.Of), terminal.Size(int64(is.Rate)), terminal.Round(is.Left()))
	}
	return fmt.Sprintf("recovery has been %s since %s: %s", status.DescribeRecovery(string(is.State)), is.Since.UTC().Format(time.RFC3339), far)
}
