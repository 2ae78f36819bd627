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

// Sidecar validates the data directory: etcd-backup-restore over HTTP, or its replacement in this process.
type Sidecar interface {
	// Status returns the status of the initialization. It returns each result once.
	Status(ctx context.Context) (bootstrap.InitializationStatus, error)
	// Trigger requests an initialization, which runs in the background.
	Trigger(ctx context.Context, mode bootstrap.Mode) error
	// Config returns etcd's configuration as YAML.
	Config(ctx context.Context) ([]byte, error)
}

// FailureReporter is a Sidecar that knows why its last initialization failed.
type FailureReporter interface {
	// WhyFailed returns the reason, one sentence that names the file, or nil. An exitcode.FinalError ends the run.
	WhyFailed() error
}

// Volume holds the exit record and the data.
type Volume interface {
	// Lock locks the volume without waiting. It returns bootstrap.ErrVolumeBusy if another process holds the lock.
	Lock() error
	// Probe returns bootstrap.ErrDataInUse while any etcd has a database on the volume open.
	Probe() error
	// Logs returns the directories on the volume that contain an etcd log.
	Logs() []string
	// LockData locks the data directory of the configuration without waiting. It returns bootstrap.ErrDataInUse if another
	// process holds the lock. After any other error etcd starts without the lock.
	LockData() error
}

// Record is the exit record. Changes are durable when a method returns.
type Record interface {
	Remove() error
	Restore() error
	Write(word exitcode.Word) error
	// Invalidate removes the record. Afterwards Restore and Write do nothing.
	Invalidate() error
	Invalid() bool
}

// Member is the embedded etcd.
type Member interface {
	// Configure stores and checks the configuration. Its error is one sentence; it wraps bootstrap.ErrCertificates if only
	// certificate files are missing or invalid, which may change.
	Configure(yaml []byte) error
	// Open starts etcd and returns when it has joined its cluster, or failed. When ctx is done it returns immediately,
	// and Close ends etcd.
	Open(ctx context.Context) error
	// Watch returns the reason when etcd has stopped unexpectedly, or returns when ctx is done.
	Watch(ctx context.Context) error
	// Close closes etcd and returns when no part of it is running. An error means that it was not closed in order. opened
	// reports whether etcd ever opened the data, or they were found unfit for it.
	Close() (opened bool, err error)
}

// Server is the wrapper's own server.
type Server interface {
	// Expose serves /readyz with the certificate of the configuration, if any. Its error wraps bootstrap.ErrCertificates if the
	// certificate cannot be used now.
	Expose() error
}

// Runtime connects the machine to the outside world. All fields are required.
type Runtime struct {
	Sidecar Sidecar
	Volume  Volume
	Record  Record
	Member  Member
	Server  Server
	// Mode chooses the validation mode from the last exit and returns the reason.
	Mode func() (mode bootstrap.Mode, reason string)
	// LeaveReason stores the reason of a crash.
	LeaveReason func(reason string) error
}

// completion is the result of an action: an event, or the zero value to continue with the next action.
type completion struct {
	event   Event
	payload Payload
}

// work is the context of the blocking actions of a row: the runtime, and the facts and payload with which the row was taken.
type work struct {
	runtime *Runtime
	facts   Facts
	payload Payload
	yaml    []byte
}

// blocking binds the blocking actions.
var blocking = map[Action]func(*work, context.Context) completion{
	PrefetchConfig:  (*work).prefetchConfig,
	LockVolume:      (*work).lockVolume,
	AskStatus:       (*work).queryStatus,
	ProbeData:       (*work).probeData,
	AskInit:         (*work).requestInit,
	AskFullInit:     (*work).requestFullInit,
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

// run does the actions in order until one posts an event. A panic becomes Crashed.
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
			done.payload.Err = bootstrap.ExplainError(done.payload.Err, "")
			return done
		}
	}
	return done
}

func (w *work) lockVolume(context.Context) completion {
	if err := w.runtime.Volume.Lock(); err != nil {
		return completion{VolumeBusy, Payload{Err: err}}
	}
	return completion{}
}

func (w *work) queryStatus(ctx context.Context) completion {
	word, err := w.runtime.Sidecar.Status(ctx)
	if err != nil {
		return completion{NoAnswer, Payload{Err: err}}
	}
	payload := Payload{Word: word}
	if word == bootstrap.Successful {
		payload.Logs = w.runtime.Volume.Logs()
	}
	if explainer, is := w.runtime.Sidecar.(FailureReporter); is && word == bootstrap.Failed {
		payload.Err = explainer.WhyFailed()
		payload.Status = exitcode.StatusOf(payload.Err, exitcode.Clean)
	}
	return completion{Replied, payload}
}

// probeData protects data that an etcd has open: the sidecar deletes data that it finds corrupt.
func (w *work) probeData(context.Context) completion {
	err := w.runtime.Volume.Probe()
	switch {
	case errors.Is(err, bootstrap.ErrDataInUse):
		return w.dataInUse(err)
	case err != nil:
		return completion{NotAccepted, Payload{Err: err}}
	default:
		return completion{}
	}
}

// dataInUse voids the exit record, because this process never learns how the other writer of the data ends.
func (w *work) dataInUse(err error) completion {
	return completion{DataInUse, Payload{Err: errors.Join(err, w.runtime.Record.Invalidate())}}
}

func (w *work) requestInit(ctx context.Context) completion {
	mode, why := w.runtime.Mode()
	return w.trigger(ctx, mode, why)
}

func (w *work) requestFullInit(ctx context.Context) completion {
	return w.trigger(ctx, bootstrap.Full, "the last validation failed")
}

func (w *work) trigger(ctx context.Context, mode bootstrap.Mode, why string) completion {
	payload := Payload{Validation: Validation{mode, why}, Detail: fmt.Sprintf("%s validation: %s", mode, why)}
	payload.Logs = w.runtime.Volume.Logs()
	if payload.Err = w.runtime.Sidecar.Trigger(ctx, mode); payload.Err != nil {
		return completion{NotAccepted, payload}
	}
	return completion{Accepted, payload}
}

// prefetchConfig requests the configuration during the validation: the real sidecar needs 7 s for it while etcd is down, and 37 s
// while it searches for other members.
func (w *work) prefetchConfig(ctx context.Context) completion {
	asked := time.Now()
	yaml, err := w.runtime.Sidecar.Config(ctx)
	if err != nil {
		return completion{ConfigPrefetched, Payload{Err: err}}
	}
	return completion{ConfigPrefetched, Payload{Config: yaml, Asked: asked}}
}

func (w *work) fetchConfig(ctx context.Context) completion {
	yaml, err := w.runtime.Sidecar.Config(ctx)
	if err != nil {
		return completion{ConfigUnavailable, Payload{Err: err}}
	}
	return completion{ConfigFetched, Payload{Config: yaml}}
}

func (w *work) checkConfig(context.Context) completion {
	return unlessCertificates(w.runtime.Member.Configure(w.yaml), exitcode.BadConfig)
}

func (w *work) serveReadyz(context.Context) completion {
	return unlessCertificates(w.runtime.Server.Expose(), exitcode.ServerTaken)
}

// unlessCertificates ends the run with status, unless only certificate files are missing or invalid: those are retried.
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
	err := w.runtime.Volume.LockData()
	if errors.Is(err, bootstrap.ErrDataInUse) {
		return w.dataInUse(err)
	}
	// Without file locks etcd starts anyway. It reports a directory that it cannot use, after the record is removed.
	return completion{ConfigValid, Payload{Err: err}}
}

func (w *work) removeRecord(ctx context.Context) completion {
	// After a request to stop, the record must stay as it was.
	if ctx.Err() != nil {
		return completion{EtcdFailed, Payload{Err: ctx.Err(), Status: exitcode.EtcdFailed}}
	}
	if err := w.runtime.Record.Remove(); err != nil {
		return completion{EtcdFailed, Payload{Err: err, Status: exitcode.BadRecord}}
	}
	return completion{}
}

func (w *work) openEtcd(ctx context.Context) completion {
	if err := w.runtime.Member.Open(ctx); err != nil {
		return completion{EtcdFailed, Payload{Err: err, Status: exitcode.StatusOf(err, exitcode.EtcdFailed)}}
	}
	return completion{EtcdReady, Payload{}}
}

func (w *work) watchEtcd(ctx context.Context) completion {
	return completion{EtcdFailed, Payload{Err: w.runtime.Member.Watch(ctx), Status: exitcode.EtcdFailed}}
}

func (w *work) closeEtcd(context.Context) completion {
	opened, err := w.runtime.Member.Close()
	payload := Payload{NeverOpened: !opened, ClosedInOrder: opened && err == nil, Err: err}
	if err != nil {
		payload.Status = exitcode.EtcdFailed
	}
	return completion{EtcdClosed, payload}
}

func (w *work) restoreRecord(context.Context) completion {
	return recordResult(w.runtime.Record.Restore(), "")
}

func (w *work) writeRecord(context.Context) completion {
	word := w.facts.RecordWord()
	err := w.runtime.Record.Write(word)
	if w.runtime.Record.Invalid() {
		return recordResult(err, "no exit record: another process had the data open for writing")
	}
	return recordResult(err, "exit record written: "+string(word))
}

func (w *work) leaveReason(context.Context) completion {
	reason := "crash without a reason"
	if w.payload.Err != nil {
		reason = w.payload.Err.Error()
	}
	return recordResult(w.runtime.LeaveReason(reason), "")
}

func recordResult(err error, detail string) completion {
	if err != nil {
		return completion{RecordSettled, Payload{Err: err, Status: exitcode.BadRecord}}
	}
	return completion{RecordSettled, Payload{Detail: detail}}
}
