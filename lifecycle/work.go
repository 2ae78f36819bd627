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

// Sidecar is what answers for the data directory: etcd-backup-restore over HTTP, or the in-process stand-in for it.
type Sidecar interface {
	// Status says where initialization is. It gives each result once.
	Status(ctx context.Context) (bootstrap.InitializationStatus, error)
	// Trigger asks for an initialization, which then runs in the background.
	Trigger(ctx context.Context, mode bootstrap.Mode) error
	// Config returns etcd's configuration as YAML.
	Config(ctx context.Context) ([]byte, error)
}

// Explainer is a Sidecar that knows why its last initialization failed.
type FailureReporter interface {
	// WhyFailed is the reason, one sentence that names the file; nil if there is none or it is not known.
	WhyFailed() error
}

// Final is a reason that no further try can change: the run ends with that exit status. Clean means that one can.
type Final interface {
	error
	Status() exitcode.Code
}

// Volume is what the exit record and the data lie on.
type Volume interface {
	// Lock takes the volume's lock, or fails at once; bootstrap.ErrVolumeBusy says that another process holds it.
	Lock() error
	// Probe fails with bootstrap.ErrDataInUse while an etcd has a database on the volume open, whoever started it.
	Probe() error
	// Logs are the directories on the volume that hold a log of etcd's.
	Logs() []string
	// LockData takes the lock of the data directory that the configuration names, or fails at once, with
	// bootstrap.ErrDataInUse if another process holds it. With any other error etcd goes on without the lock.
	LockData() error
}

// Record is the exit record. Its methods are durable when they return.
type Record interface {
	Remove() error
	Restore() error
	Write(word exitcode.Word) error
	// Forfeit removes it for good: from now on Restore and Write leave none behind.
	Forfeit() error
	Forfeited() bool
}

// Member is the embedded etcd.
type Member interface {
	// Configure stores and checks the configuration. Its error says, in one sentence, what etcd cannot run with; it is
	// bootstrap.ErrCertificates if only certificate files are at fault, which may be in their place a moment later.
	Configure(yaml []byte) error
	// Open starts etcd and returns once it has joined its cluster, or with the reason why it will not. When ctx ends it
	// returns at once; etcd itself is then Close's to end.
	Open(ctx context.Context) error
	// Watch returns when etcd has stopped by itself, with the reason, or when ctx ends.
	Watch(ctx context.Context) error
	// Close ends what Open started, in order, and returns when nothing of etcd runs any more. An error means that etcd
	// was not closed in order. opened says whether etcd ever touched the data, or they were found unfit for it.
	Close() (opened bool, err error)
}

// Server is the wrapper's own server.
type Server interface {
	// Expose serves /readyz with the certificate that the configuration names, if it names one. Its error is
	// bootstrap.ErrCertificates if that can't be used now.
	Expose() error
}

// Runtime is everything the machine acts on. All fields are required.
type Runtime struct {
	Sidecar Sidecar
	Volume  Volume
	Record  Record
	Member  Member
	Server  Server
	// Mode chooses the validation mode from the last exit and says why.
	Mode func() (mode bootstrap.Mode, reason string)
	// LeaveReason keeps the reason of a crash for people.
	LeaveReason func(reason string) error
}

// completion is how a piece of work ends: with an event, or with the zero value if the next action of the row follows.
type completion struct {
	event   Event
	payload Payload
}

// work is what the blocking actions of one row share: the runtime, the facts and the payload with which the row was taken,
// and what one action hands to the next.
type work struct {
	runtime *Runtime
	facts   Facts
	payload Payload
	yaml    []byte
}

// blocking binds the actions that may block to what they do.
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
		var final Final
		if errors.As(payload.Err, &final) {
			payload.Status = final.Status()
		}
	}
	return completion{Replied, payload}
}

// probeData keeps the sidecar away from data that an etcd has open: it deletes what it finds corrupt.
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

// dataInUse ends the exit record at once: how the other writer of the data ends is never known.
func (w *work) dataInUse(err error) completion {
	return completion{DataInUse, Payload{Err: errors.Join(err, w.runtime.Record.Forfeit())}}
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

// prefetchConfig asks for the configuration while the validation runs: the real sidecar needs 7 s for it while etcd is
// down, and 37 s where it looks for other members.
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
	err := w.runtime.Volume.LockData()
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
	if err := w.runtime.Record.Remove(); err != nil {
		return completion{EtcdFailed, Payload{Err: err, Status: exitcode.BadRecord}}
	}
	return completion{}
}

func (w *work) openEtcd(ctx context.Context) completion {
	if err := w.runtime.Member.Open(ctx); err != nil {
		payload := Payload{Err: err, Status: exitcode.EtcdFailed}
		if setup := (bootstrap.SetupError{}); errors.As(err, &setup) {
			payload.Status = exitcode.BadConfig
		}
		return completion{EtcdFailed, payload}
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
	if w.runtime.Record.Forfeited() {
		return recordResult(err, "no exit record: somebody else had the data open for writing")
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
