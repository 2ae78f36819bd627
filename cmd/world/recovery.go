package world

import (
	"fmt"
	"slices"
	"time"

	"etcd-wrapper/bootstrap/recovery"
	"etcd-wrapper/readiness/status"
)

// Recovery is how far data are that come back from the store; nil where there is nothing to tell of.
func (w *World) Recovery() *status.Recovery {
	if w.recovery == nil {
		return nil
	}
	is := w.recovery.Progress()
	if is.State == "" || is.State == recovery.Ready && !is.Restores() {
		return nil
	}
	told := &status.Recovery{State: string(is.State), Since: is.Since, Reason: is.Reason, Loss: is.Loss}
	if is.State == recovery.Build {
		told.Bytes, told.Of, told.Rate, told.Seconds = is.Bytes, is.Of, is.Rate, is.Left().Seconds()
	}
	return told
}

// awaiting are the states of recovery in which others are waited for.
var awaiting = []recovery.State{recovery.AskPeers, recovery.AskStore, recovery.Claim}

// Awaits says whom recovery waits for, since when and until when at most; empty if it does not wait.
func (w *World) Awaits() string {
	if w.recovery == nil {
		return ""
	}
	is := w.recovery.Progress()
	if !slices.Contains(awaiting, is.State) {
		return ""
	}
	return fmt.Sprintf("recovery is in %s since %s: %s", is.State, is.Since.UTC().Format(time.RFC3339), is.Reason)
}
