package runtime

import (
	"fmt"
	"slices"
	"time"

	"etcd-wrapper/readiness/status"
	"etcd-wrapper/readiness/status/terminal"
	"etcd-wrapper/recovery"
)

// Recovery is how far data are that come back from the store; nil where there is nothing to tell of.
func (r *Runtime) Recovery() *status.Recovery {
	if r.recovery == nil {
		return nil
	}
	is := r.recovery.Progress()
	if is.State == "" || is.State == recovery.Ready && !is.Restores() && !r.uncompared(is) {
		return nil
	}
	told := &status.Recovery{State: string(is.State), Since: is.Since, Reason: is.Reason, Loss: is.Loss}
	if is.State == recovery.Build {
		told.RestoredBytes, told.TotalBytes, told.BytesPerSecond, told.RemainingSeconds = is.Bytes, is.Of, is.Rate, is.Left().Seconds()
	}
	return told
}

// uncompared says that etcd was started without the store's word. Who makes backups compares the data first of all, so what is made
// by now was compared.
func (r *Runtime) uncompared(is recovery.Progress) bool {
	return is.Uncompared && (r.backups == nil || r.backups.Facts().Shipped.Stored == 0)
}

// lasting are the states of recovery that may take long: others are waited for, or much is read and written.
var lasting = []recovery.State{
	recovery.AskPeers, recovery.AskStore, recovery.Flush, recovery.Build, recovery.Prove, recovery.Claim,
}

// Awaits says what recovery waits for or how far it is, since when, and until when at most; empty if that is no matter.
func (r *Runtime) Awaits() string {
	if r.recovery == nil {
		return ""
	}
	return awaits(r.recovery.Progress())
}

func awaits(is recovery.Progress) string {
	if !slices.Contains(lasting, is.State) {
		return ""
	}
	far := is.Reason
	if is.State == recovery.Build && is.Rate > 0 {
		far = fmt.Sprintf("%s of about %s are restored, %s/s, %v left",
			terminal.Size(is.Bytes), terminal.Size(is.Of), terminal.Size(int64(is.Rate)), terminal.Rounded(is.Left()))
	}
	return fmt.Sprintf("recovery has been %s since %s: %s", status.RecoveryDoes(string(is.State)), is.Since.UTC().Format(time.RFC3339), far)
}
