package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
)

// completion is how a piece of work ends: with an event, or with the zero value if the next action of the row follows.
type completion struct {
	event   Event
	payload Payload
}

// work is what the blocking actions of one row share: the world, the facts and the payload with which the row was taken,
// and what one action hands to the next.
type work struct {
	world   *World
	facts   Facts
	payload Payload
	yaml    []byte
}

// blocking binds the actions that may block to what they do.
var blocking = map[Action]func(*work, context.Context) completion{
	PrefetchConfig:  (*work).prefetchConfig,
	LockVolume:      (*work).lockVolume,
	AskStatus:       (*work).askStatus,
	ProbeData:       (*work).probeData,
	AskInit:         (*work).askInit,
	AskFullInit:     (*work).askFullInit,
	FetchEtcdConfig: (*work).fetchConfig,
	CheckEtcdConfig: (*work).checkConfig,
	ServeReadyz:     (*work).serveReadyz,
	LockData:        (*work).lockData,
	RemoveRecord:    (*work).removeRecord,
	OpenEtcd:        (*work).openEtcd,
	WatchEtcd:       (*work).watchEtcd,
	CloseEtcd:       (*work).closeEtcd,
	RestoreRecord:   (*work).restoreRecord,
	WriteRecord:     (*work).writeRecord,
	LeaveReason:     (*work).leaveReason,
}

// run does the actions in order, until one has something to report. A panic is reported as one.
func (w *work) run(ctx context.Context, actions []Action) (done completion) {
	defer func() {
		if cause := recover(); cause != nil {
			done = completion{Crashed, Payload{Err: fmt.Errorf("panic: %v\n%s", cause, debug.Stack())}}
		}
	}()
	for _, action := range actions {
		do, bound := blocking[action]
		if !bound {
			return completion{Crashed, Payload{Err: fmt.Errorf("action %q does nothing", action)}}
		}
		if done = do(w, ctx); done.event != "" {
			done.payload.Err = bootstrap.Advised(done.payload.Err, "")
			return done
		}
	}
	return done
}

func (w *work) lockVolume(context.Context) completion {
	if err := w.world.Volume.Lock(); err != nil {
		return completion{VolumeBusy, Payload{Err: err}}
	}
	return completion{}
}

func (w *work) askStatus(ctx context.Context) completion {
	word, err := w.world.Sidecar.Status(ctx)
	if err != nil {
		return completion{NoAnswer, Payload{Err: err}}
	}
	payload := Payload{Word: word}
	if word == bootstrap.Successful {
		payload.Logs = w.world.Volume.Logs()
	}
	if explainer, is := w.world.Sidecar.(Explainer); is && word == bootstrap.Failed {
		payload.Err = explainer.WhyFailed()
		var final Final
		if errors.As(payload.Err, &final) {
			payload.Status = final.Status()
		}
	}
	return completion{Replied, payload}
}

// probeData keeps the sidecar away from data that an etcd has open: it deletes what it finds corrupt.
func (w *work) probeData(context.Context) completion {
	err := w.world.Volume.Probe()
	switch {
	case errors.Is(err, bootstrap.ErrDataInUse):
		return w.dataInUse(err)
	case err != nil:
		return completion{NotAccepted, Payload{Err: err}}
	default:
		return completion{}
	}
}

// dataInUse ends the exit record at once: nobody will know how whoever else has the data open for writing ends.
func (w *work) dataInUse(err error) completion {
	return completion{DataInUse, Payload{Err: errors.Join(err, w.world.Record.Forfeit())}}
}

func (w *work) askInit(ctx context.Context) completion {
	mode, why := w.world.Mode()
	return w.trigger(ctx, mode, why)
}

func (w *work) askFullInit(ctx context.Context) completion {
	return w.trigger(ctx, bootstrap.Full, "the last validation failed")
}

func (w *work) trigger(ctx context.Context, mode bootstrap.Mode, why string) completion {
	payload := Payload{Validation: Validation{mode, why}, Detail: fmt.Sprintf("%s validation: %s", mode, why)}
	payload.Logs = w.world.Volume.Logs()
	if payload.Err = w.world.Sidecar.Trigger(ctx, mode); payload.Err != nil {
		return completion{NotAccepted, payload}
	}
	return completion{Accepted, payload}
}

// prefetchConfig asks for the configuration while the validation runs: the real sidecar needs 7 s for it while etcd is
// down, and 37 s where it looks for other members.
func (w *work) prefetchConfig(ctx context.Context) completion {
	asked := time.Now()
	yaml, err := w.world.Sidecar.Config(ctx)
	if err != nil {
		return completion{ConfigPrefetched, Payload{Err: err}}
	}
	return completion{ConfigPrefetched, Payload{Config: yaml, Asked: asked}}
}

func (w *work) fetchConfig(ctx context.Context) completion {
	yaml, err := w.world.Sidecar.Config(ctx)
	if err != nil {
		return completion{ConfigUnavailable, Payload{Err: err}}
	}
	return completion{ConfigFetched, Payload{Config: yaml}}
}

func (w *work) checkConfig(context.Context) completion {
	return unlessCertificates(w.world.Member.Configure(w.yaml), exitcode.BadConfig)
}

func (w *work) serveReadyz(context.Context) completion {
	return unlessCertificates(w.world.Server.Expose(), exitcode.ServerTaken)
}

// unlessCertificates ends the run with status, unless the error is about certificate files alone: they are waited for, as
// the configuration is.
func unlessCertificates(err error, status exitcode.Code) completion {
	switch {
	case errors.Is(err, bootstrap.ErrCertificates):
		return completion{ConfigUnavailable, Payload{Err: err}}
	case err != nil:
		return completion{ConfigInvalid, Payload{Err: err, Status: status}}
	default:
		return completion{}
	}
}

func (w *work) lockData(context.Context) completion {
	err := w.world.Volume.LockData()
	if errors.Is(err, bootstrap.ErrDataInUse) {
		return w.dataInUse(err)
	}
	// A file system without locks stops nobody; of a directory that can't be used etcd says so, once the record is gone.
	return completion{ConfigValid, Payload{Err: err}}
}

func (w *work) removeRecord(ctx context.Context) completion {
	// A stop that is already asked for must find the record as it was.
	if ctx.Err() != nil {
		return completion{EtcdFailed, Payload{Err: ctx.Err(), Status: exitcode.EtcdFailed}}
	}
	if err := w.world.Record.Remove(); err != nil {
		return completion{EtcdFailed, Payload{Err: err, Status: exitcode.BadRecord}}
	}
	return completion{}
}

func (w *work) openEtcd(ctx context.Context) completion {
	if err := w.world.Member.Open(ctx); err != nil {
		return completion{EtcdFailed, Payload{Err: err, Status: exitcode.EtcdFailed}}
	}
	return completion{EtcdReady, Payload{}}
}

func (w *work) watchEtcd(ctx context.Context) completion {
	return completion{EtcdFailed, Payload{Err: w.world.Member.Watch(ctx), Status: exitcode.EtcdFailed}}
}

func (w *work) closeEtcd(context.Context) completion {
	opened, err := w.world.Member.Close()
	payload := Payload{NeverOpened: !opened, ClosedInOrder: opened && err == nil, Err: err}
	if err != nil {
		payload.Status = exitcode.EtcdFailed
	}
	return completion{EtcdClosed, payload}
}

func (w *work) restoreRecord(context.Context) completion {
	return settled(w.world.Record.Restore(), "")
}

func (w *work) writeRecord(context.Context) completion {
	word := w.facts.RecordWord()
	err := w.world.Record.Write(word)
	if w.world.Record.Forfeited() {
		return settled(err, "no exit record: somebody else had the data open for writing")
	}
	return settled(err, "exit record written: "+string(word))
}

func (w *work) leaveReason(context.Context) completion {
	reason := "crash without a reason"
	if w.payload.Err != nil {
		reason = w.payload.Err.Error()
	}
	return settled(w.world.LeaveReason(reason), "")
}

func settled(err error, detail string) completion {
	if err != nil {
		return completion{RecordSettled, Payload{Err: err, Status: exitcode.BadRecord}}
	}
	return completion{RecordSettled, Payload{Detail: detail}}
}
