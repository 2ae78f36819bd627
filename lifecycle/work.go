package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
)

// Sidecar validates the data directory. The implementation is either a client for etcd-backup-restore or its
// replacement in this process.
type Sidecar interface {
	// Status returns the status of the initialization. Each result is returned only once.
	Status(ctx context.Context) (bootstrap.InitializationStatus, error)
	// Trigger requests an initialization, which runs in the background.
	Trigger(ctx context.Context, mode bootstrap.Mode) error
	// Config returns the etcd configuration as YAML.
	Config(ctx context.Context) ([]byte, error)
	// WhyFailed returns the reason why the last initialization failed, or nil if it is unknown. If the error wraps an
	// exitcode.FinalError, the initialization is not retried and the run ends.
	WhyFailed() error
}

// Volume contains the exit record and the data.
type Volume interface {
	// Lock locks the volume without waiting. If another process holds the lock, the error is bootstrap.ErrVolumeBusy.
	Lock() error
	// Probe returns bootstrap.ErrDataInUse if another process has a database on the volume open for writing.
	Probe() error
	// Logs returns the WAL directories on the volume.
	Logs() []string
	// LockData locks the configured data directory without waiting. If another process holds the lock, the error is
	// bootstrap.ErrDataInUse. After any other error, etcd starts without the lock.
	LockData() error
}

// Record is the exit record on the volume. Changes are durable when a method returns.
type Record interface {
	Remove() error
	// Restore restores the record that Remove has deleted.
	Restore() error
	Write(word exitcode.Word) error
	// Invalidate removes the record and disables Restore and Write.
	Invalidate() error
	// Invalid reports whether Invalidate was called.
	Invalid() bool
}

// Member is the embedded etcd.
type Member interface {
	// Configure validates and stores the configuration. The error wraps bootstrap.ErrCertificates if only certificate
	// files are missing or invalid, which may be temporary.
	Configure(yaml []byte) error
	// Open starts etcd and returns once etcd has joined its cluster or failed. If ctx is done, Open returns
	// immediately. The caller must then call Close.
	Open(ctx context.Context) error
	// Watch waits until etcd stops unexpectedly and returns the reason. Watch also returns when ctx is done.
	Watch(ctx context.Context) error
	// Close closes etcd and returns once etcd is completely stopped. Close returns an error if etcd was not closed
	// cleanly. opened reports whether etcd has opened the data or the data was rejected.
	Close() (opened bool, err error)
}

// Server is the wrapper's own server.
type Server interface {
	// Expose serves /readyz with the configured certificate, if any. The error wraps bootstrap.ErrCertificates if the
	// certificate is temporarily unusable.
	Expose() error
}

// Runtime connects the state machine to the outside world. All fields are required.
type Runtime struct {
	Sidecar Sidecar
	Volume  Volume
	Record  Record
	Member  Member
	Server  Server
	// Mode returns the validation mode to use after the last exit, and the reason.
	Mode func() (mode bootstrap.Mode, reason string)
	// LeaveReason writes the reason for a crash to the volume.
	LeaveReason func(reason string) error
}

// A message is an event in a mailbox, or the result of a blocking action. A completion contains the number of its
// task, and Elapsed contains the number of its visit. If an action returns a message without an event, the next
// action of the row runs.
type message struct {
	event   Event
	payload Payload
	task    int
	visit   int
}

// work is the context of the blocking actions of a row, with the facts and the payload at the time of the transition.
type work struct {
	runtime *Runtime
	facts   Facts
	payload Payload
	yaml    []byte
}

// blocking maps the blocking actions to their implementations.
var blocking = map[Action]func(*work, context.Context) message{
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

// run performs the actions in order until one of them returns an event. If an action panics, run returns Crashed.
func (w *work) run(ctx context.Context, actions []Action) (done message) {
	defer func() {
		if cause := recover(); cause != nil {
			done = message{event: Crashed, payload: Payload{Err: fmt.Errorf("panic: %v\n%s", cause, debug.Stack())}}
		}
	}()
	for _, action := range actions {
		do, bound := blocking[action]
		if !bound {
			return message{event: Crashed, payload: Payload{Err: fmt.Errorf("action %q is not implemented", action)}}
		}
		if done = do(w, ctx); done.event != "" {
			done.payload.Err = bootstrap.ExplainError(done.payload.Err, "")
			return done
		}
	}
	return done
}

func (w *work) lockVolume(context.Context) message {
	if err := w.runtime.Volume.Lock(); err != nil {
		return message{event: VolumeBusy, payload: Payload{Err: err}}
	}
	return message{}
}

func (w *work) queryStatus(ctx context.Context) message {
	word, err := w.runtime.Sidecar.Status(ctx)
	if err != nil {
		return message{event: NoAnswer, payload: Payload{Err: err}}
	}
	payload := Payload{Word: word}
	if word == bootstrap.Successful {
		payload.Logs = w.runtime.Volume.Logs()
	}
	if word == bootstrap.Failed {
		payload.Err = w.runtime.Sidecar.WhyFailed()
		payload.Status = exitcode.StatusOf(payload.Err, exitcode.Clean)
	}
	return message{event: Replied, payload: payload}
}

// probeData prevents an initialization while another process has the data open, because the sidecar deletes data that
// it considers corrupt.
func (w *work) probeData(context.Context) message {
	err := w.runtime.Volume.Probe()
	switch {
	case errors.Is(err, bootstrap.ErrDataInUse):
		return w.dataInUse(err)
	case err != nil:
		return message{event: NotAccepted, payload: Payload{Err: err}}
	default:
		return message{}
	}
}

// dataInUse invalidates the exit record, because this process cannot know whether the other etcd will be closed
// cleanly.
func (w *work) dataInUse(err error) message {
	return message{event: DataInUse, payload: Payload{Err: errors.Join(err, w.runtime.Record.Invalidate())}}
}

func (w *work) requestInit(ctx context.Context) message {
	mode, why := w.runtime.Mode()
	return w.trigger(ctx, mode, why)
}

func (w *work) requestFullInit(ctx context.Context) message {
	return w.trigger(ctx, bootstrap.Full, "the last validation failed")
}

func (w *work) trigger(ctx context.Context, mode bootstrap.Mode, why string) message {
	payload := Payload{Validation: Validation{mode, why}, Detail: fmt.Sprintf("%s validation: %s", mode, why)}
	payload.Logs = w.runtime.Volume.Logs()
	if payload.Err = w.runtime.Sidecar.Trigger(ctx, mode); payload.Err != nil {
		return message{event: NotAccepted, payload: payload}
	}
	return message{event: Accepted, payload: payload}
}

// prefetchConfig requests the configuration during the validation. While etcd is down, etcd-backup-restore needs 7 s
// for the response, and 37 s if it also searches for other members.
func (w *work) prefetchConfig(ctx context.Context) message {
	asked := time.Now()
	yaml, err := w.runtime.Sidecar.Config(ctx)
	if err != nil {
		return message{event: ConfigPrefetched, payload: Payload{Err: err}}
	}
	return message{event: ConfigPrefetched, payload: Payload{Config: yaml, Asked: asked}}
}

func (w *work) fetchConfig(ctx context.Context) message {
	yaml, err := w.runtime.Sidecar.Config(ctx)
	if err != nil {
		return message{event: ConfigUnavailable, payload: Payload{Err: err}}
	}
	return message{event: ConfigFetched, payload: Payload{Config: yaml}}
}

func (w *work) checkConfig(context.Context) message {
	return unlessCertificates(w.runtime.Member.Configure(w.yaml), exitcode.BadConfig)
}

func (w *work) serveReadyz(context.Context) message {
	return unlessCertificates(w.runtime.Server.Expose(), exitcode.ServerTaken)
}

// unlessCertificates returns the event that corresponds to an error. If certificate files are missing or invalid, the
// step is retried. Any other error ends the run with the given status.
func unlessCertificates(err error, status exitcode.Code) message {
	switch {
	case errors.Is(err, bootstrap.ErrCertificates):
		return message{event: ConfigUnavailable, payload: Payload{Err: err}}
	case err != nil:
		return message{event: ConfigInvalid, payload: Payload{Err: err, Status: status}}
	default:
		return message{}
	}
}

func (w *work) lockData(context.Context) message {
	err := w.runtime.Volume.LockData()
	if errors.Is(err, bootstrap.ErrDataInUse) {
		return w.dataInUse(err)
	}
	// Any other error is only reported: etcd must start even if the file system does not support locks, and if the
	// directory is unusable, etcd itself reports that.
	return message{event: ConfigValid, payload: Payload{Err: err}}
}

func (w *work) removeRecord(ctx context.Context) message {
	// The record must not be removed if a stop was requested in the meantime.
	if ctx.Err() != nil {
		return message{event: EtcdFailed, payload: Payload{Err: ctx.Err(), Status: exitcode.EtcdFailed}}
	}
	if err := w.runtime.Record.Remove(); err != nil {
		return message{event: EtcdFailed, payload: Payload{Err: err, Status: exitcode.BadRecord}}
	}
	return message{}
}

func (w *work) openEtcd(ctx context.Context) message {
	if err := w.runtime.Member.Open(ctx); err != nil {
		return message{event: EtcdFailed, payload: Payload{Err: err, Status: exitcode.StatusOf(err, exitcode.EtcdFailed)}}
	}
	return message{event: EtcdReady, payload: Payload{}}
}

func (w *work) watchEtcd(ctx context.Context) message {
	return message{event: EtcdFailed, payload: Payload{Err: w.runtime.Member.Watch(ctx), Status: exitcode.EtcdFailed}}
}

func (w *work) closeEtcd(context.Context) message {
	opened, err := w.runtime.Member.Close()
	payload := Payload{NeverOpened: !opened, ClosedCleanly: opened && err == nil, Err: err}
	if err != nil {
		payload.Status = exitcode.EtcdFailed
	}
	return message{event: EtcdClosed, payload: payload}
}

func (w *work) restoreRecord(context.Context) message {
	return recordResult(w.runtime.Record.Restore(), "")
}

func (w *work) writeRecord(context.Context) message {
	word := w.facts.RecordWord()
	err := w.runtime.Record.Write(word)
	if w.runtime.Record.Invalid() {
		return recordResult(err, "no exit record: another process had the data open for writing")
	}
	return recordResult(err, "exit record written: "+string(word))
}

func (w *work) leaveReason(context.Context) message {
	reason := cmp.Or(w.payload.Err, errors.New("unknown crash reason"))
	return recordResult(w.runtime.LeaveReason(reason.Error()), "")
}

func recordResult(err error, detail string) message {
	if err != nil {
		return message{event: RecordSettled, payload: Payload{Err: err, Status: exitcode.BadRecord}}
	}
	return message{event: RecordSettled, payload: Payload{Detail: detail}}
}
