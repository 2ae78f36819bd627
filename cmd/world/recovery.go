package world

import (
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
